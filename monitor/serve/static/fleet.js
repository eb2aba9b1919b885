// The page of all runs: filter, columns and order, which are kept in the address.
import { DASH } from "./format.js";
import { showIncidents } from "./incidents.js";
import { ROOT, SYMBOLS, badge, h, live, setText, showFigures } from "./live.js";

const KEPT = "megatron-monitor columns";
const MAX_ENDED_SHOWN = 3; // more ended runs than this are folded
const PAGE = 50; // rows at first and per click: 500 are too many for a phone
const table = document.getElementById("runs"), head = table.tHead.rows[0], body = table.tBodies[0];
const labels = JSON.parse(table.dataset.labels), usual = table.dataset.columns.split(",");
const filter = document.getElementById("filter"), over = document.getElementById("over"), more = document.getElementById("more-runs");
const stored = () => { try { return localStorage.getItem(KEPT); } catch { return null; } };
let runs = [], chosen = {}, room = PAGE;

function read() {
  const params = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
  const listed = (text) => (text || "").split(",").filter(Boolean);
  const columns = listed(params.get("columns") ?? stored()).filter((key) => Object.hasOwn(labels, key));
  chosen = { query: params.get("q") || "", states: new Set(listed(params.get("state"))), sort: params.get("sort") || "", over: params.get("over") === "1", columns: columns.length ? columns : usual };
}

function keep() {
  const params = new URLSearchParams(), columns = String(chosen.columns) === String(usual) ? "" : String(chosen.columns);
  const values = { q: chosen.query.trim(), state: [...chosen.states].join(","), sort: chosen.sort, over: chosen.over ? "1" : "", columns };
  for (const [name, value] of Object.entries(values)) if (value) params.set(name, value);
  try {
    localStorage.setItem(KEPT, columns);
    window.history.replaceState(null, "", String(params) ? `#${params}` : location.pathname + location.search);
  } catch { /* the browser stores nothing for this page */ }
}

// --- controls ---

const query = h("input", { type: "search", id: "query", autocomplete: "off", placeholder: "Filter by name ( / )", "aria-label": "Show runs named" });
const states = h("span", { class: "chips", role: "group", "aria-label": "Show runs in these states" });
const picks = Object.entries(labels).map(([key, label]) => {
  const input = h("input", { type: "checkbox", value: key });
  input.addEventListener("change", () => {
    chosen.columns = picks.map(([input]) => input).filter(({ checked }) => checked).map(({ value }) => value);
    if (!chosen.columns.length) chosen.columns = usual;
    changed();
    heads();
    ask();
  });
  return [input, h("label", {}, input, ` ${label}`)];
});
filter.append(query, states, h("details", { class: "menu" }, h("summary", {}, "Columns"), h("div", {}, ...picks.map(([, label]) => label))));
filter.hidden = false;

function changed() {
  keep();
  show();
}

function chips() {
  const counts = new Map();
  for (const run of runs) counts.set(run.state, [(counts.get(run.state)?.[0] || 0) + 1, run.figures.state[0]]);
  for (const state of chosen.states) if (!counts.has(state)) counts.set(state, [0, state]);
  const order = Object.keys(SYMBOLS), inOrder = [...counts].sort(([a], [b]) => order.indexOf(a) - order.indexOf(b));
  const wanted = inOrder.map(([state, [count, words]]) => ({ state, text: `${words} ${count}`, on: String(chosen.states.has(state)) }));
  if (states.dataset.shown === JSON.stringify(wanted)) return;
  states.dataset.shown = JSON.stringify(wanted);
  const focused = document.activeElement?.dataset.state;
  states.replaceChildren(...wanted.map(({ state, text, on }) => h("button", { type: "button", "data-state": state, "aria-pressed": on }, text)));
  if (focused) states.querySelector(`[data-state="${focused}"]`)?.focus();
}

// Clicks on a heading sort by its column: largest first, smallest first, then the default order again.
function heads() {
  const [sorted, down] = [chosen.sort.replace(/^-/, ""), chosen.sort.startsWith("-")];
  const all = [["run", "Run"], ["state", "State"], ["incidents", "Open incidents"], ...chosen.columns.map((key) => [key, labels[key]])];
  head.replaceChildren(...all.map(([key, label]) => h("th", { scope: "col", "data-key": key, "aria-sort": key === sorted ? (down ? "descending" : "ascending") : "none" },
    h("button", { type: "button", "data-sort": key }, label))));
}

// --- rows ---

function newRow(run) {
  const value = (key) => [h("span", { "data-k": key }), " ", h("small", { "data-n": key })];
  return h("tr", { "data-run": run.run },
    h("th", { scope: "row" }, h("a", { href: `${ROOT}runs/${run.path}`, title: run.run }, run.run)),
    h("td", { "data-label": "State" }, ...value("state")), h("td", { "data-label": "Open incidents", "data-k": "incidents" }),
    ...chosen.columns.map((key) => h("td", { "data-label": labels[key] }, ...value(key),
      ...(key === "iteration" ? [" ", h("progress", { "aria-label": "iterations done" })] : []))));
}

const rank = (run) => Math.min(3, ...run.incidents.map(({ order }) => order[0]));

function sorted(all) {
  const key = chosen.sort.replace(/^-/, ""), sign = chosen.sort.startsWith("-") ? -1 : 1;
  if (!key) return all;
  const since = key === "progress_at" ? -1 : 1; // the longest silence is the largest
  const figure = (run) => (Number.isFinite(run.order[key]) ? since * run.order[key] : null);
  const of = { run: (run) => run.run, state: (run) => run.state, incidents: (run) => 3 - rank(run) }[key] || figure;
  const unknown = (value) => value === null;
  return all.map((run) => [of(run), run]).sort(([a], [b]) => {
    if (unknown(a) || unknown(b)) return unknown(a) - unknown(b); // unknown values come last in both directions
    return a < b ? -sign : a > b ? sign : 0;
  }).map(([, run]) => run);
}

function show() {
  const wanted = chosen.query.trim().toLowerCase(), filtered = wanted !== "" || chosen.states.size > 0;
  const ended = runs.filter((run) => run.over).length, folded = !chosen.over && !filtered && ended > MAX_ENDED_SHOWN && ended < runs.length;
  const there = new Map([...body.rows].map((row) => [row.dataset.run, row])), columns = String(chosen.columns);
  if (body.dataset.columns !== columns) there.clear();
  body.dataset.columns = columns;
  table.toggleAttribute("data-own", columns !== String(usual));
  const fits = (run) => !(folded && run.over) && run.run.toLowerCase().includes(wanted) && (!chosen.states.size || chosen.states.has(run.state));
  const fitting = sorted(runs.filter(fits)), rest = Math.max(0, fitting.length - room);
  const rows = fitting.slice(0, room).map((run) => {
    const row = there.get(run.run) || newRow(run);
    showFigures(row, run);
    showBadges(row.querySelector("[data-k=incidents]"), run.incidents);
    return row;
  });
  if (rows.length !== body.rows.length || rows.some((row, at) => body.rows[at] !== row)) body.replaceChildren(...rows);
  more.hidden = rest === 0;
  setText(more, `▸ Show ${Math.min(PAGE, rest)} more of ${rest}`);
  over.hidden = filtered || ended <= MAX_ENDED_SHOWN || ended === runs.length;
  setText(over, `${chosen.over ? "▾ Hide" : "▸ Show"} ${ended} runs that are over`);
  chips();
}

function showBadges(cell, incidents) {
  const badges = incidents.map(badge), text = badges.map((node) => node.textContent).join(" ");
  if (cell.dataset.shown === text && cell.childNodes.length) return;
  cell.dataset.shown = text;
  cell.classList.toggle("unknown", badges.length === 0);
  cell.replaceChildren(...(badges.length ? badges.flatMap((node) => [node, " "]) : [DASH]));
}

function take(value) {
  if (value.runs.some((run) => chosen.columns.some((key) => !run.figures[key]))) return; // asked before other columns were chosen
  runs = value.runs;
  setText(document.getElementById("summary"), value.summary);
  const incidents = runs.flatMap((run) => run.incidents);
  showIncidents(incidents);
  document.getElementById("none").hidden = incidents.length > 0;
  document.getElementById("empty").hidden = runs.length > 0;
  table.classList.toggle("hidden", runs.length === 0);
  const critical = incidents.filter((incident) => incident.severity === "critical").length;
  document.title = critical ? `(${critical}) megatron-monitor` : "megatron-monitor";
  show();
}

function restore() {
  read();
  query.value = chosen.query;
  for (const [input] of picks) input.checked = chosen.columns.includes(input.value);
  heads();
  show();
}

query.addEventListener("input", () => {
  chosen.query = query.value;
  changed();
});
more.addEventListener("click", () => {
  room += PAGE;
  show();
});
over.addEventListener("click", () => {
  chosen.over = !chosen.over;
  changed();
});
states.addEventListener("click", ({ target: { dataset: { state } } }) => {
  if (!state) return;
  if (!chosen.states.delete(state)) chosen.states.add(state);
  changed();
});
head.addEventListener("click", ({ target: { dataset: { sort: key } } }) => {
  if (!key) return;
  chosen.sort = chosen.sort === `-${key}` ? key : chosen.sort === key ? "" : `-${key}`;
  changed();
  heads();
  head.querySelector(`[data-sort="${key}"]`).focus();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !/input|textarea/i.test(document.activeElement.tagName)) {
    event.preventDefault();
    query.focus();
  }
});
addEventListener("hashchange", restore);
read();
heads();
for (const row of [...body.rows].slice(PAGE)) row.remove();
for (const [input] of picks) input.checked = chosen.columns.includes(input.value);
query.value = chosen.query;
const ask = live(() => `${ROOT}api/v1/runs?view=fleet${String(chosen.columns) === String(usual) ? "" : `&columns=${chosen.columns}`}`, take);
