// What differs between this run and another one that the same monitor shows.
import { ROOT, h } from "./live.js";

const PARTS = ["topology", "software", "environment"];
const NOTHING = "Nothing that either log tells.";

function differences(one, other) {
  return PARTS.flatMap((part) => {
    const mine = one[part] || {}, theirs = other[part] || {};
    const names = [...new Set([...Object.keys(mine), ...Object.keys(theirs)])];
    return names.filter((name) => mine[name] !== theirs[name]).map((name) => [name.replaceAll("_", " "), mine[name], theirs[name]]);
  });
}

async function runs() {
  const answer = await fetch(`${ROOT}api/v1/runs`, { cache: "no-store" });
  return answer.ok ? (await answer.json()).runs : [];
}

// A choice of the other runs, and the table of what differs from the chosen one.
export async function offerComparison(box, name) {
  const others = (await runs()).filter((run) => run.run !== name);
  if (!others.length) return;
  const choice = h("select", {}, h("option", { value: "" }, "a run"), ...others.map((run) => h("option", {}, run.run)));
  const table = h("div", { class: "scroll" });
  choice.addEventListener("change", async () => {
    const known = await runs(), find = (wanted) => known.find((run) => run.run === wanted);
    const one = find(name), other = find(choice.value);
    if (!one || !other) return table.replaceChildren();
    const found = differences(one, other);
    const cell = (value) => h("td", {}, value === undefined ? "\u2013" : String(value));
    return table.replaceChildren(found.length
      ? h("table", {}, h("thead", {}, h("tr", {}, ...["Setting", name, other.run].map((text) => h("th", { scope: "col" }, text)))),
        h("tbody", {}, ...found.map(([setting, a, b]) => h("tr", {}, h("th", { scope: "row" }, setting), cell(a), cell(b)))))
      : h("p", { class: "soft" }, NOTHING));
  });
  box.append(h("p", {}, h("label", {}, "Compare its configuration with ", choice)), table);
}
