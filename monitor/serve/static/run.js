// The page of one run: charts, comparison, and the place in its log.
import { Charts } from "./charts.js";
import { offerComparison } from "./compare.js";
import { ROOT, poll } from "./live.js";

const { path } = document.querySelector("main").dataset;
const charts = new Charts(document.getElementById("charts"), document.getElementById("controls"));
const history = path.startsWith("?") ? `history${path}&` : `${path}/history?`;
let shown = null;

poll(() => `${ROOT}api/v1/runs/${history}width=${charts.past.width}&from=${charts.past.closed}&key=${shown ? shown.key : ""}`, (news) => {
  shown = { ...shown, ...news }; // validation, phases and restarts come only when they have changed
  document.getElementById("charts-section").hidden = false;
  charts.take(shown);
}, "json");
offerComparison(charts);

// Scroll a part of the log to its marked line, else to the newest lines at the end.
function scroll(part) {
  const text = part.querySelector("pre"), mark = text.querySelector("mark");
  text.scrollTop = mark ? mark.getBoundingClientRect().top - text.getBoundingClientRect().top + text.scrollTop - text.clientHeight / 2 : text.scrollHeight;
}

document.addEventListener("toggle", ({ target }) => target.matches(".log") && scroll(target), true);
for (const part of document.querySelectorAll(".log[open]")) scroll(part); // unfolded by the server
