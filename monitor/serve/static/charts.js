// Charts of a run's past with uPlot: one x axis for all, zoom by drag, buttons and keys; what happened is marked.
import { Axis, available } from "./axis.js";
import { Choices } from "./choices.js";
import { instant, known, number } from "./format.js";
import { CHARTS, OTHER, constantOf, cutAbove, drawn, titleOf, describe } from "./kinds.js";
import { SYMBOLS, h, setText } from "./live.js";
import { drawBands, drawMarks, drawSigns, marksOf } from "./marks.js";
import { Past } from "./past.js";
import { bandsOf, seriesOf } from "./styles.js";

const HEIGHT = 190;
const WHOLE = ["iteration", "samples", "tokens"]; // axes on which there is nothing between two whole numbers
const STEPS = Array.from({ length: 16 }, (_, digits) => [1, 2, 5].map((first) => first * 10 ** digits)).flat();
const BESIDE = ["normal", "batch", "limit"]; // reference lines
const KEYS = "Arrow keys move, plus and minus zoom, 0 shows all.";

export class Charts {
  choices = new Choices();
  past = new Past();
  plots = [];
  others = [];

  constructor(box, controls) {
    this.box = box;
    this.buildControls(controls);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.rebuild());
    new ResizeObserver(() => this.resize()).observe(box);
  }

  // The pasts of other runs, drawn beside this one's.
  compare(found) {
    this.others = found.map(({ name, answer }) => {
      const past = new Past();
      past.take(answer.steps);
      return { name, past, answer, run: answer.run };
    });
    this.rebuild();
  }

  take(answer) {
    this.past.take(answer.steps);
    this.answer = answer;
    this.draw();
  }

  // --- controls ---

  buildControls(controls) {
    const button = (text, label, act) => {
      const node = h("button", { type: "button", "aria-label": label, title: label }, text);
      node.addEventListener("click", act);
      return node;
    };
    this.range = h("span", { class: "soft", id: "range" });
    this.constants = h("span", { class: "soft", id: "constants" });
    controls.append(
      ...this.choices.controls(() => this.rebuild()),
      h("span", { class: "buttons" },
        button("◀", "Earlier", () => this.move(-0.5)), button("▶", "Later", () => this.move(0.5)),
        button("−", "Zoom out", () => this.zoom(2)), button("+", "Zoom in", () => this.zoom(0.5)),
        button("Latest", "Zoom to the latest tenth", () => this.latest()), button("All", "Show all", () => this.show(null))),
      this.range,
      this.constants,
      h("small", { class: "soft" }, `Drag over a chart to zoom. ┆ restart  ${SYMBOLS.critical} critical  ` +
        `${SYMBOLS.warning} warning  ${SYMBOLS.info} info, tinted while it lasts  ✕ NaN or Inf  ▴ beyond the axis; shaded: lowest to highest`),
    );
  }

  onKey(event) {
    const acts = {
      ArrowLeft: () => this.move(-0.25), ArrowRight: () => this.move(0.25), "+": () => this.zoom(0.5),
      "=": () => this.zoom(0.5), "-": () => this.zoom(2), 0: () => this.show(null), Escape: () => this.show(null),
    };
    const act = event.ctrlKey || event.metaKey || event.altKey ? null : acts[event.key];
    if (act) {
      event.preventDefault();
      act();
    }
  }

  // The view, in the measure in which it is moved: a log axis moves by factors.
  measured() {
    const to = this.axis.log ? Math.log10 : (at) => at, from = this.axis.log ? (at) => 10 ** at : (at) => at;
    return { full: this.axis.full().map(to), view: (this.choices.view || this.axis.full()).map(to), from };
  }

  show(range, keep = true) {
    const { full: [low, high], from } = this.measured();
    if (range) {
      const span = Math.min(Math.max(range[1] - range[0], (high - low) / 5000), high - low);
      const start = Math.min(Math.max(range[0], low), high - span);
      range = span >= (high - low) * 0.999 ? null : [from(start), from(start + span)];
    }
    this.choices.view = range;
    if (keep) this.choices.keep();
    const [min, max] = range || this.axis.full();
    for (const { plot } of this.plots) plot.setScale("x", { min, max });
    const words = (at) => this.axis.words(at);
    setText(this.range, this.axis.x.length ? `${range ? "" : "all: "}${words(min)} to ${words(max)}` : "");
  }

  zoom(factor) {
    const [min, max] = this.measured().view;
    const middle = (min + max) / 2, half = ((max - min) / 2) * factor;
    this.show([middle - half, middle + half]);
  }

  move(part) {
    const [min, max] = this.measured().view, by = (max - min) * part;
    this.show([min + by, max + by]);
  }

  latest() {
    const [low, high] = this.measured().full;
    this.show([high - (high - low) / 10, high]);
  }

  // --- drawing ---

  rebuild() {
    for (const { plot, figure } of this.plots) {
      plot.destroy();
      figure.remove();
    }
    this.plots = [];
    if (this.answer) this.draw();
  }

  resize() {
    for (const { plot, frame } of this.plots) plot.setSize({ width: frame.clientWidth, height: HEIGHT });
  }

  draw() {
    const { past, answer, choices } = this;
    const axis = this.axis = new Axis(past, choices.axisOf((name) => available(past, name)), choices.logAxis);
    const others = this.others.map((other) => ({ ...other, axis: new Axis(other.past, axis.name, choices.logAxis) }));
    axis.beside = others.map((other) => other.axis);
    this.marks = marksOf(answer, axis);
    const constants = [];
    for (const chart of CHARTS) {
      let found = drawn(chart, { past, answer, axis, choices, run: answer.run, others });
      const only = found && constantOf(chart, found);
      if (known(only)) constants.push(`${chart.title} ${number(only)}`);
      if (known(only) && !choices.constant) found = null;
      const there = this.plots.find((entry) => entry.chart === chart);
      if (!found) {
        if (there) this.remove(there);
      } else if (there && String(there.names) === String(found.names)) {
        there.plot.setData(found.data, false);
        this.describe(there, found.data);
      } else {
        if (there) this.remove(there);
        this.add(chart, found);
      }
    }
    setText(this.constants, constants.length && !choices.constant ? `Constant: ${constants.join(", ")}` : "");
    const view = choices.view && this.axis.log ? choices.view.map(Math.log10) : choices.view;
    this.show(view, false);
  }

  remove(entry) {
    entry.plot.destroy();
    entry.figure.remove();
    this.plots.splice(this.plots.indexOf(entry), 1);
  }

  add(chart, { data, names }) {
    const readout = h("span", { class: "readout" });
    const frame = h("div", { class: "frame", tabindex: 0, role: "group" });
    const figure = h("section", { class: "chart" }, h("h3", {}, titleOf(chart, this.choices), " ", readout), frame);
    frame.addEventListener("keydown", (event) => this.onKey(event));
    const order = (entry) => CHARTS.indexOf(entry.chart);
    const next = this.plots.find((entry) => order(entry) > CHARTS.indexOf(chart));
    this.box.insertBefore(figure, next ? next.figure : null);
    const entry = { chart, names, figure, frame, readout };
    entry.plot = new uPlot(this.options(entry, data), data, frame);
    this.plots.push(entry);
    this.plots.sort((a, b) => order(a) - order(b));
    this.describe(entry, data);
  }

  options(entry, data) {
    const { chart, names } = entry, time = this.axis.name === "time";
    const css = getComputedStyle(document.documentElement), colour = (name) => css.getPropertyValue(name).trim();
    const values = data.slice(1).filter((_, at) => names[at] !== "batch");
    const positive = values.every((column) => column.every((value) => !known(value) || value > 0));
    const log = positive && !chart.stack && (chart.log || (this.choices.log ? 10 : 0));
    const axis = {
      stroke: colour("--soft"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { stroke: colour("--grid"), width: 1 },
      font: "12px system-ui, sans-serif",
    };
    const figures = (_, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick)));
    const batch = names.includes("batch");
    return {
      width: this.box.firstElementChild?.clientWidth - 2 || 320, height: HEIGHT, legend: { show: false },
      cursor: { sync: { key: "run", scales: ["x", null] }, drag: { x: true, y: false, setScale: false }, y: false },
      tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
      scales: {
        x: this.axis.log ? { time: false, distr: 3, log: 10, range: (_, low, high) => [low, high] } : { time },
        y: log ? { distr: 3, log, range: (_, low, high) => logRange(low, high, log) } : chart.outliers ? { range: (plot) => this.rangeOf(plot, entry) } : {},
        ...(batch ? { batch: { range: (_, low, high) => [0, Math.max(high, low) * 1.05] } } : {}),
      },
      axes: [
        { ...axis, size: 34, ...(WHOLE.includes(this.axis.name) ? { incrs: STEPS } : {}), values: time ? clockTicks : (_, ticks) => ticks.map((tick) => (tick === null ? "" : this.axis.words(tick))) },
        { ...axis, size: 64, values: figures },
        ...(batch ? [{ ...axis, scale: "batch", side: 1, size: 56, grid: { show: false }, values: figures }] : []),
      ],
      series: [{}, ...seriesOf(chart, names, colour)],
      bands: bandsOf(chart, names, colour),
      hooks: {
        drawClear: [(plot) => drawBands(plot, this.marks, colour)],
        draw: [(plot) => {
          drawMarks(plot, this.marks, colour, chart.phases);
          if (chart.notFinite) drawSigns(plot, "✕", this.notFinite(), colour("--bad"), false);
          if (entry.cut) drawSigns(plot, "▴", plot.data[0].filter((_, at) => plot.data[1][at] > entry.cut), colour("--line-1"), true);
        }],
        setCursor: [(plot) => this.read(plot, entry)],
        setSelect: [(plot) => {
          const { left, width } = plot.select;
          if (width < 4) return;
          const to = this.axis.log ? Math.log10 : (at) => at;
          this.show([plot.posToVal(left, "x"), plot.posToVal(left + width, "x")].map(to));
          plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        }],
        ready: [(plot) => plot.over.addEventListener("dblclick", () => this.show(null))],
      },
    };
  }

  // The values' axis of what is in view, without the few that would flatten all others.
  rangeOf(plot, entry) {
    const { chart, names } = entry, [from, to] = plot.series[0].idxs || [0, plot.data[0].length - 1];
    const columns = plot.data.slice(1).map((column) => column.slice(from, to + 1));
    entry.cut = cutAbove(columns[0]);
    const all = columns.filter((_, at) => !["batch", "above", "below"].includes(names[at])).flat().filter(known);
    const low = chart.stack || chart.lines ? 0 : all.reduce((a, b) => Math.min(a, b), Infinity);
    const high = entry.cut ?? all.reduce((a, b) => Math.max(a, b), -Infinity);
    return all.length ? uPlot.rangeNum(low, high, 0.1, true) : [0, 1];
  }

  notFinite() {
    const { rows, x } = this.axis, { not_finite: bad } = this.past.columns;
    return x.filter((_, place) => bad[rows[place]]);
  }

  read(plot, entry) {
    const place = plot.cursor.idx;
    if (place === null || place === undefined) return entry.readout.replaceChildren(...(entry.last || []));
    const values = plot.data.slice(1).map((column) => column[place]);
    return setText(entry.readout, `${this.axis.where(plot.data[0][place])}: ${describe(entry.chart, entry.names, values)}`);
  }

  describe(entry, data) {
    const { chart, names } = entry, values = data[1].filter(known);
    const last = values.length ? number(values[values.length - 1]) : "no value";
    const limit = names.includes("limit") ? ` of ${number(data[1 + names.indexOf("limit")][0])}` : "";
    entry.last = chart.lines ? names.flatMap((name, at) => [...(at ? [", "] : []), keyOf(entry, name)]) : [`${last}${limit}`, ...names.filter((name) => BESIDE.includes(name) || name.startsWith(OTHER)).flatMap((name) => [" ", keyOf(entry, name)])];
    if (entry.plot.cursor.idx === null || entry.plot.cursor.idx === undefined) this.read(entry.plot, entry);
    const lowest = values.reduce((a, b) => Math.min(a, b), Infinity), highest = values.reduce((a, b) => Math.max(a, b), -Infinity);
    const label = `Chart of ${chart.title}: last ${last}${limit}, lowest ${number(lowest)}, highest ${number(highest)}. ${KEYS}`;
    if (entry.frame.getAttribute("aria-label") !== label) entry.frame.setAttribute("aria-label", label);
  }
}

// Nothing of a log axis is left empty; a line that never moves is in its middle.
function logRange(low, high, base) {
  if (!(low > 0)) return [1, base];
  return high > low * 1.01 ? uPlot.rangeLog(low, high, base, false) : [low / base, low * base];
}

// A line's name behind a piece of it. Styles are set by script: the page's policy allows none in its text.
function keyOf({ plot, names, chart }, name) {
  const series = plot.series[1 + (chart.stack ? names.length - 1 - names.indexOf(name) : names.indexOf(name))];
  const piece = h("i", {});
  piece.style.borderTop = `3px ${series.dash?.length ? "dashed" : "solid"} ${series.stroke()}`;
  return h("span", { class: "key" }, piece, { batch: "batch size, right", limit: "capacity" }[name] || name.replace(OTHER, ""));
}

// UTC, as all other times of the page; the date where a day begins and at the left.
function clockTicks(_, ticks, __, ___, step) {
  let day = "";
  return ticks.map((tick) => {
    const text = instant(tick), date = text.slice(5, 10), clock = text.slice(11, step < 60 ? 19 : 16);
    const fresh = date !== day;
    day = date;
    return step >= 86400 ? date : fresh && step >= 60 ? `${date} ${clock}` : clock;
  });
}
