// Comparison with another run of this monitor: in the charts, and of the configuration.
import { ROOT, h } from "./live.js";

const NOTHING = "No difference in what both logs print.";

async function request(path) {
  const answer = await fetch(`${ROOT}api/v1/runs${path}`, { cache: "no-store" });
  if (!answer.ok) throw new Error(`the monitor answers ${answer.status}`);
  return answer.json();
}

const configurationOf = (path) => request(path.startsWith("?") ? `/configuration${path}` : `/${path}/configuration`);

// A kind of setting that only one log prints is skipped; within a kind, a setting that one log lacks is a difference.
function differences(one, other) {
  return Object.keys(one).flatMap((kind) => {
    const mine = one[kind], theirs = other[kind];
    if (!Object.keys(mine).length || !Object.keys(theirs).length) return [];
    const names = [...new Set([...Object.keys(mine), ...Object.keys(theirs)])];
    return names.filter((name) => mine[name] !== theirs[name]).map((name) => [kind, name, mine[name], theirs[name]]);
  });
}

const REFRESH = 30000; // ms between two requests for the other run

// Add a menu of the other runs; the chosen run is drawn in the charts, and the differences are listed in `box`.
export async function offerComparison(box, choices, charts, name, path) {
  const others = (await request("?view=fleet")).runs.filter((run) => run.run !== name);
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
      const history = request(wanted.startsWith("?") ? `/history${wanted}` : `/${wanted}/history`);
      const [one, other, past] = await Promise.all([configurationOf(path), configurationOf(wanted), history]);
      if (choice.value !== wanted) return null; // another run was chosen meanwhile
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
  setInterval(() => choice.value && !document.hidden && compare(), REFRESH);
}
