// The page of one run.
import { DASH, instant, number } from "./format.js";
import { Charts } from "./charts.js";
import { offerComparison } from "./compare.js";
import { followLog } from "./log.js";
import { showPhases } from "./phases.js";
import { showIncidents } from "./incidents.js";
import { ROOT, SYMBOLS, definitions, h, live, setText, showFigures } from "./live.js";

const main = document.querySelector("main");
const path = main.dataset.path;
const charts = new Charts(document.getElementById("charts"), document.getElementById("controls"));
const history = path.startsWith("?") ? `history${path}&` : `${path}/history?`;
let shown = null;

function take(news) {
  const answer = { ...shown, ...news }; // validation, phases and restarts come only when they have changed
  shown = answer;
  showFigures(document.body, answer.run);
  document.title = `${answer.run.figures.state[0]} · ${answer.run.run}`;
  setText(document.getElementById("summary"), `${["crashed", "finished"].includes(answer.run.phase) ? "" : `${answer.run.phase.replace("_", " ")}; `}${instant(answer.at)}`);
  showIncidents(answer.run.incidents, true);
  document.getElementById("open-section").hidden = answer.run.incidents.length === 0;
  setText(document.querySelector("[data-k=last_line]"), answer.run.last_line || "");
  document.querySelector("section[aria-labelledby=last]").hidden = !answer.run.last_line;
  showPast(answer);
  showFacts(answer.run);
  document.getElementById("charts-section").hidden = false;
  charts.take(answer);
  const times = charts.past.columns.time.filter((time) => time !== null);
  answer.lastTime = times.length ? times[times.length - 1] : null;
  document.getElementById("phases-section").hidden = !showPhases(document.getElementById("phases"), answer, answer.at);
}

function replaceIfNew(node, children) {
  const fresh = node.cloneNode(false);
  fresh.append(...children);
  if (!fresh.isEqualNode(node)) node.replaceChildren(...fresh.childNodes);
}

function showPast(answer) {
  const incidents = answer.incidents.map((item) => {
    const kind = item.status === "resolved" ? "resolved" : item.severity;
    return {
      time: item.time.slice(0, 19).replace("T", " "), kind, words: `${SYMBOLS[kind] || "✔"} ${item.incident} ${kind}`,
      where: item.onset_iteration ?? item.iteration, summary: item.summary,
    };
  });
  const restarts = answer.restarts.map((restart) => {
    const again = restart.after_iteration - restart.iteration + 1;
    const changed = (answer.changes || []).filter((change) => change.iteration === restart.iteration && change.time === restart.time)
      .flatMap((change) => change.arguments.map(([name, before, now]) => `${name} ${before || DASH} → ${now || DASH}`));
    return {
      time: restart.time === null ? "" : instant(restart.time).slice(0, 19), kind: "restart", words: "┆ restart", where: restart.iteration,
      summary: `after iteration ${number(restart.after_iteration)}${again > 0 ? `: ${number(again)} computed again` : ""}` +
        (changed.length ? `; other arguments: ${changed.join(", ")}` : ""),
    };
  });
  const rows = [...incidents, ...restarts].sort((a, b) => (a.time < b.time ? 1 : a.time > b.time ? -1 : 0)).map((row) =>
    h("tr", {}, h("td", {}, row.time || "–"), h("td", { class: row.kind }, row.words),
      h("td", {}, row.where === undefined || row.where === null ? "–" : String(row.where)), h("td", {}, row.summary)));
  const nothing = h("tr", {}, h("td", { colspan: 4 }, "None."));
  replaceIfNew(document.getElementById("past"), rows.length ? rows : [nothing]);
}

function showFacts(run) {
  replaceIfNew(document.querySelector("section[aria-labelledby=known] dl"), definitions(run.facts));
}

offerComparison(document.getElementById("compare"), document.getElementById("beside"), charts, main.dataset.run, path).catch(() => {}); // the page works without the comparison
live(() => `${ROOT}api/v1/runs/${history}width=${charts.past.width}&from=${charts.past.closed}&key=${shown ? shown.key : ""}`, take);
followLog(path);
