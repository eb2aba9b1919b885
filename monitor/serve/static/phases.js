// The phases of a run over time.
import { duration, instant, known } from "./format.js";
import { h } from "./live.js";

const LANES = ["starting", "loading", "first_iteration", "training", "evaluating", "saving", "exiting", "hung", "crashed", "finished"];
const OTHER_LANES_AT = 4; // other phases are inserted after training
const OVER = ["finished", "crashed"];

// One lane a phase, so that the chart does not depend on colours.
export function showPhases(box, answer, now) {
  const { run, phases } = answer;
  const first = phases[0];
  if (phases.length < 2) return false;
  const times = answer.lastTime ? [answer.lastTime] : [];
  const over = [...OVER, "stopped", "lost"].includes(run.state);
  const end = over ? Math.max(phases[phases.length - 1].time, ...times) : now;
  const stretches = phases.map((phase, at) => ({
    lane: phase.phase, from: phase.time, to: at + 1 < phases.length ? phases[at + 1].time : end,
  }));
  if (run.state === "hung" && known(run.progress_at)) {
    stretches[stretches.length - 1].to = Math.max(stretches[stretches.length - 1].from, run.progress_at);
    stretches.push({ lane: "hung", from: run.progress_at, to: end });
  }
  const span = Math.max(end - first.time, 1);
  const found = new Set(stretches.map((stretch) => stretch.lane));
  const others = [...found].filter((lane) => !LANES.includes(lane)); // phases of other kinds of training
  const lanes = [...LANES.slice(0, OTHER_LANES_AT), ...others, ...LANES.slice(OTHER_LANES_AT)].filter((lane) => found.has(lane)).map((lane) => {
    const mine = stretches.filter((stretch) => stretch.lane === lane);
    const total = mine.reduce((sum, { from, to }) => sum + Math.max(0, to - from), 0);
    const words = OVER.includes(lane) ? instant(mine[0].from) : `${duration(total)}${mine.length > 1 ? ` in ${mine.length} stretches` : ""}`;
    return { lane, mine, words };
  });
  const rows = lanes.map(({ lane, mine, words }) => {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    for (const [name, value] of Object.entries({ viewBox: "0 0 1000 10", preserveAspectRatio: "none", "aria-hidden": "true", class: `lane ${lane}` })) {
      svg.setAttribute(name, value);
    }
    for (const { from, to } of mine) {
      const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      const x = (1000 * (from - first.time)) / span, width = Math.max((1000 * (to - from)) / span, 1.5);
      const figures = { x: Math.min(x, 1000 - width), y: 0, width, height: 10 };
      for (const [name, value] of Object.entries(figures)) rect.setAttribute(name, value);
      svg.append(rect);
    }
    return h("tr", {}, h("th", { scope: "row" }, lane.replace("_", " ")), h("td", {}, svg), h("td", { class: "soft" }, words));
  });
  const table = h("table", { class: "phases" },
    h("caption", { class: "soft" }, `${instant(first.time)} to ${instant(end)}`), h("tbody", {}, ...rows));
  box.replaceChildren(table);
  return true;
}
