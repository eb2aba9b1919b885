// This run beside another one that the same monitor shows: in its charts, and what differs in the configuration.
import { ROOT, h } from "./live.js";

const NOTHING = "Nothing that both logs tell.";

async function asked(path) {
  const answer = await fetch(`${ROOT}api/v1/runs${path}`, { cache: "no-store" });
  if (!answer.ok) throw new Error(`the monitor answers ${answer.status}`);
  return answer.json();
}

const configurationOf = (path) => asked(path.startsWith("?") ? `/configuration${path}` : `/${path}/configuration`);

// What only one of the logs tells at all is no difference; within a kind, what one lacks is one.
function differences(one, other) {
  return Object.keys(one).flatMap((kind) => {
    const mine = one[kind], theirs = other[kind];
    if (!Object.keys(mine).length || !Object.keys(theirs).length) return [];
    const names = [...new Set([...Object.keys(mine), ...Object.keys(theirs)])];
    return names.filter((name) => mine[name] !== theirs[name]).map((name) => [kind, name, mine[name], theirs[name]]);
  });
}

const AGAIN = 30000; // ms until the other run's past is asked for anew

// A choice of the other runs beside the charts' own; the chosen one is drawn, and below stands what differs.
export async function offerComparison(box, choices, charts, name, path) {
  const others = (await asked("?view=fleet")).runs.filter((run) => run.run !== name);
  if (!others.length) return;
  others.sort((a, b) => (a.run < b.run ? -1 : 1));
  const choice = h("select", {}, h("option", { value: "" }, "no other run"), ...others.map((run) => h("option", { value: run.path }, run.run)));
  const table = h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "What differs" });
  const title = h("p", {}), show = (...nodes) => table.replaceChildren(...nodes);
  const compare = async () => {
    const wanted = choice.value, label = choice.selectedOptions[0].text;
    title.textContent = wanted ? `Compared with ${label}` : "";
    if (!wanted) {
      charts.compare("", null);
      return show();
    }
    try {
      const history = asked(wanted.startsWith("?") ? `/history${wanted}` : `/${wanted}/history`);
      const [one, other, past] = await Promise.all([configurationOf(path), configurationOf(wanted), history]);
      if (choice.value !== wanted) return null; // the reader has chosen again meanwhile
      charts.compare(label, past);
      const found = differences(one, other);
      const cell = (value) => h("td", {}, value === undefined ? "\u2013" : String(value));
      return show(found.length
        ? h("table", { class: "compared" }, h("thead", {}, h("tr", {}, ...["", "Setting", name, label].map((text) => h("th", { scope: "col" }, text)))),
          h("tbody", {}, ...found.map(([kind, setting, a, b]) => h("tr", {}, h("td", { class: "soft" }, kind), h("th", { scope: "row" }, setting), cell(a), cell(b)))))
        : h("p", { class: "soft" }, NOTHING));
    } catch (error) {
      return show(h("p", { class: "warning" }, `▲ not compared: ${error.message}`));
    }
  };
  choice.addEventListener("change", () => {
    charts.choices.with = choice.value;
    charts.choices.keep();
    compare();
  });
  choices.append(h("label", {}, "Compare with ", choice));
  box.append(title, table);
  choice.value = others.some((run) => run.path === charts.choices.with) ? charts.choices.with : "";
  if (choice.value) compare();
  setInterval(() => choice.value && !document.hidden && compare(), AGAIN);
}
