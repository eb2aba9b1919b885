// Marks in the charts: restarts, incidents from onset to end, phases, NaN.
import { known } from "./format.js";
import { SYMBOLS } from "./live.js";

const TONES = { critical: "--bad", warning: "--warn", info: "--soft" };
const FAINT = { critical: 0.12, warning: 0.08, info: 0 }; // opacity of an incident's band
const LASTING = ["configuration", "launch_blocking"]; // these last a whole attempt and get no band
const PHASES = { starting: "--soft", loading: "--soft", evaluating: "--line-3", saving: "--line-1" };
const STRIP = 4; // height of the strip of phases, pixels

// All marks with their places on the axis; an open incident extends to the end of the axis.
export function marksOf(answer, axis) {
  const end = axis.full()[1];
  const restarts = answer.restarts.map((restart) => ({
    x: axis.at(restart.iteration, restart.time), symbol: "┆", text: "restart", colour: "--text", dash: [4, 4],
  }));
  const incidents = new Map(); // open marks; a mark takes the incident's latest severity
  const over = [];
  for (const item of answer.incidents) {
    const mark = incidents.get(item.incident);
    const time = item.since ?? Date.parse(item.time) / 1000;
    if (item.status === "resolved") {
      if (mark) mark.to = axis.at(item.iteration, Date.parse(item.time) / 1000);
      incidents.delete(item.incident);
    } else {
      const symbol = SYMBOLS[item.severity] || "";
      const from = mark ? mark.x : axis.at(item.onset_iteration ?? item.iteration, time);
      const grown = { x: from, to: end, symbol, text: `${symbol} ${item.incident}`, colour: TONES[item.severity] || "--soft", faint: LASTING.includes(item.incident) ? 0 : FAINT[item.severity] || 0, dash: [] };
      if (mark) Object.assign(mark, grown);
      else over.push(grown);
      incidents.set(item.incident, mark || grown);
    }
  }
  const lines = [...restarts, ...over].filter((mark) => known(mark.x)).sort((a, b) => a.x - b.x);
  return { lines, strip: stripOf(answer.phases, axis, end) };
}

function stripOf(phases, axis, end) {
  return phases.flatMap((phase, place) => {
    const next = phases[place + 1], colour = PHASES[phase.phase];
    const from = axis.at(phase.iteration, phase.time), to = next ? axis.at(next.iteration, next.time) : end;
    return colour && known(from) && known(to) ? [{ from, to, colour }] : [];
  });
}

// Behind the lines of a chart.
export function drawBands(plot, marks, colour) {
  const { ctx, bbox } = plot;
  ctx.save();
  for (const { x, to, faint, colour: tone } of marks.lines) {
    if (!faint || !known(to)) continue;
    const [from, width] = inside(plot, x, to, 1);
    if (width <= 0) continue;
    ctx.globalAlpha = faint;
    ctx.fillStyle = colour(tone);
    ctx.fillRect(from, bbox.top, width, bbox.height);
  }
  ctx.restore();
}

// Over the lines of a chart.
export function drawMarks(plot, marks, colour, withPhases) {
  const { ctx } = plot, ratio = devicePixelRatio, { left, top, width, height } = plot.bbox;
  ctx.save();
  ctx.font = `${11 * ratio}px system-ui, sans-serif`;
  ctx.textAlign = "center";
  let free = Infinity;
  for (const mark of [...marks.lines].reverse()) { // the latest label wins where labels would overlap
    const x = plot.valToPos(mark.x, "x", true);
    if (x < left - 1 || x > left + width + 1) continue;
    ctx.strokeStyle = ctx.fillStyle = colour(mark.colour);
    ctx.lineWidth = ratio;
    ctx.setLineDash(mark.dash.map((length) => length * ratio));
    ctx.beginPath();
    ctx.moveTo(x, top);
    ctx.lineTo(x, top + height);
    ctx.stroke();
    const wide = ctx.measureText(mark.text).width / 2, narrow = ctx.measureText(mark.symbol).width / 2;
    const [text, half] = x + wide < free ? [mark.text, wide] : [mark.symbol, narrow];
    if (x + narrow > free) continue;
    const middle = Math.min(Math.max(x, left + half), left + width - half);
    ctx.fillText(text, middle, top - 3 * ratio);
    free = middle - half - 4 * ratio;
  }
  if (withPhases) {
    for (const { from, to, colour: tone } of marks.strip) {
      const [start, long] = inside(plot, from, to, 2 * ratio);
      if (long <= 0) continue;
      ctx.fillStyle = colour(tone);
      ctx.fillRect(start, top + height - STRIP * ratio, long, STRIP * ratio);
    }
  }
  ctx.restore();
}

// Draw a sign at these places of the axis, at the top or bottom of the chart.
export function drawSigns(plot, sign, places, tone, atTop) {
  const { ctx } = plot, ratio = devicePixelRatio, { left, top, width, height } = plot.bbox;
  ctx.save();
  ctx.font = `${11 * ratio}px system-ui, sans-serif`;
  ctx.textAlign = "center";
  ctx.fillStyle = tone;
  for (const place of places) {
    const x = plot.valToPos(place, "x", true);
    if (x >= left && x <= left + width) ctx.fillText(sign, x, atTop ? top + 10 * ratio : top + height - 2 * ratio);
  }
  ctx.restore();
}

function inside(plot, from, to, least) {
  const { left, width } = plot.bbox;
  const start = Math.max(plot.valToPos(from, "x", true), left);
  const end = Math.min(Math.max(plot.valToPos(to, "x", true), start + least), left + width);
  return [start, end - start];
}
