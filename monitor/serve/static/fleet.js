// The page of all runs.
import { ROOT, badge, live, setText, showFigures, showIncidents } from "./live.js";

const table = document.getElementById("runs");
const body = table.tBodies[0];
const template = document.getElementById("row");
const query = document.getElementById("query");
let runs = [];

function newRow(run) {
  const row = template.content.firstElementChild.cloneNode(true);
  row.dataset.run = run.run;
  const link = row.querySelector("a");
  link.textContent = run.run;
  link.href = `${ROOT}runs/${run.path}`;
  return row;
}

function show() {
  const wanted = query.value.trim().toLowerCase();
  const there = new Map([...body.rows].map((row) => [row.dataset.run, row]));
  runs.forEach((run, place) => {
    const row = there.get(run.run) || newRow(run);
    if (body.rows[place] !== row) body.insertBefore(row, body.rows[place] || null);
    row.hidden = wanted !== "" && !run.run.toLowerCase().includes(wanted);
    showFigures(row, run);
    const cell = row.querySelector("[data-k=incidents]");
    const badges = run.incidents.map(badge);
    const text = badges.map((node) => node.textContent).join(" ");
    if (cell.dataset.shown !== text || !cell.childNodes.length) {
      cell.dataset.shown = text;
      cell.classList.toggle("unknown", badges.length === 0);
      cell.replaceChildren(...(badges.length ? badges.flatMap((node) => [node, " "]) : ["–"]));
    }
  });
  while (body.rows.length > runs.length) body.rows[body.rows.length - 1].remove();
}

function take(value) {
  runs = value.runs;
  setText(document.getElementById("summary"), value.summary);
  const incidents = runs.flatMap((run) => run.incidents);
  showIncidents(incidents);
  const jump = document.getElementById("jump");
  jump.hidden = incidents.length === 0;
  setText(jump, `${incidents.length} open incident${incidents.length === 1 ? "" : "s"}, all runs below`);
  document.getElementById("none").hidden = incidents.length > 0;
  document.getElementById("empty").hidden = runs.length > 0;
  document.getElementById("filter").hidden = runs.length < 8;
  table.classList.toggle("hidden", runs.length === 0);
  const critical = incidents.filter((incident) => incident.severity === "critical").length;
  document.title = critical ? `(${critical}) megatron-monitor` : "megatron-monitor";
  show();
}

query.addEventListener("input", show);
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !/input|textarea/i.test(document.activeElement.tagName)) {
    event.preventDefault();
    query.focus();
  }
});
live(() => `${ROOT}api/v1/runs?view=fleet`, take);
