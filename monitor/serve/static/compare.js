// Other runs in the charts: those that are chosen on the page.
import { ROOT, ask } from "./live.js";

const REFRESH = 30000; // ms between two requests for the other runs
const form = document.getElementById("compare");

async function historyOf({ value, dataset: { path } }) {
  const answer = await fetch(`${ROOT}api/v1/runs/${path.startsWith("?") ? `history${path}` : `${path}/history`}`, { cache: "no-store" });
  return { name: value, answer: answer.ok ? await answer.json() : null };
}

export function offerComparison(charts) {
  const chosen = () => [...document.querySelectorAll("#compare [name=with]:checked")];
  const draw = async () => {
    const boxes = chosen(), found = await Promise.all(boxes.map(historyOf));
    if (boxes.length === chosen().length && boxes.every(({ checked }) => checked)) charts.compare(found.filter(({ answer }) => answer));
  };
  const drawn = () => draw().catch(() => {}); // the page works without the comparison
  form?.addEventListener("input", () => {
    const params = new URLSearchParams(location.search), given = new FormData(form);
    for (const name of ["with", "attempt"]) {
      params.delete(name);
      for (const value of given.getAll(name)) params.append(name, value);
    }
    window.history.replaceState(null, "", location.pathname + (String(params) && `?${params}`) + location.hash);
    ask();
    drawn();
  });
  if (chosen().length) drawn();
  setInterval(() => chosen().length && !document.hidden && drawn(), REFRESH);
}
