// What differs between the configuration of this run and that of another one that the same monitor shows.
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

// A choice of the other runs, and the table of what differs from the chosen one.
export async function offerComparison(box, name, path) {
  const others = (await asked("?view=fleet")).runs.filter((run) => run.run !== name);
  if (!others.length) return;
  others.sort((a, b) => (a.run < b.run ? -1 : 1));
  const choice = h("select", {}, h("option", { value: "" }, "a run"), ...others.map((run) => h("option", { value: run.path }, run.run)));
  const table = h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "What differs" });
  const show = (...nodes) => table.replaceChildren(...nodes);
  choice.addEventListener("change", async () => {
    const wanted = choice.value, label = choice.selectedOptions[0].text;
    if (!wanted) return show();
    try {
      const [one, other] = await Promise.all([path, wanted].map(configurationOf));
      if (choice.value !== wanted) return null; // the reader has chosen again meanwhile
      const found = differences(one, other);
      const cell = (value) => h("td", {}, value === undefined ? "\u2013" : String(value));
      return show(found.length
        ? h("table", { class: "compared" }, h("thead", {}, h("tr", {}, ...["", "Setting", name, label].map((text) => h("th", { scope: "col" }, text)))),
          h("tbody", {}, ...found.map(([kind, setting, a, b]) => h("tr", {}, h("td", { class: "soft" }, kind), h("th", { scope: "row" }, setting), cell(a), cell(b)))))
        : h("p", { class: "soft" }, NOTHING));
    } catch (error) {
      return show(h("p", { class: "warning" }, `▲ not compared: ${error.message}`));
    }
  });
  box.append(h("p", {}, h("label", {}, "Compare its configuration with ", choice)), table);
}
