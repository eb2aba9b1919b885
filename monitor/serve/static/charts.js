// Charts of a run's past with uPlot: one x axis for all, zoom by drag, buttons and keys, restarts and incidents marked.
import { instant, known, number } from "./format.js";
import { SYMBOLS, h, setText } from "./live.js";
import { Past, ordered } from "./past.js";

const CHARTS = [
  { key: "lm_loss", title: "Loss", mayLog: true, maySmooth: true, nats: true },
  { key: "validation", title: "Validation loss", mayLog: true, nats: true },
  { key: "grad_norm", title: "Grad norm", mayLog: true, maySmooth: true },
  { key: "seconds_per_iteration", title: "Seconds per iteration", normal: true, maySmooth: true },
  { key: "parts", title: "Where an iteration goes, seconds", parts: true },
  { key: "tflops", title: "TFLOPs per GPU" },
  { key: "memory_bytes", title: "GPU memory, GiB", factor: 1 / 2 ** 30 },
  { key: "learning_rate", title: "Learning rate" },
  { key: "loss_scale", title: "Loss scale", log: 2 },
  { key: "global_batch_size", title: "Batch size" },
];
const SMOOTHING = { none: 1, "10 points": 10, "50 points": 50, "200 points": 200 };
const HEIGHT = 190;
const KEYS = "Arrow keys move, plus and minus zoom, 0 shows all.";
const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3]];

export class Charts {
  byTime = false;
  log = false;
  smooth = 1; // points of which the line is the mean
  perplexity = false;
  view = null; // [min, max] of the axis; null shows all and follows
  plots = [];

  constructor(box, controls) {
    this.box = box;
    this.controls = controls;
    this.past = new Past();
    this.validation = {};
    this.parts = null; // seconds by category of the iterations whose timers the log prints
    this.marks = [];
    this.band = null;
    this.buildControls();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.rebuild());
    new ResizeObserver(() => this.resize()).observe(box);
  }

  take(answer) {
    this.past.take(answer.steps);
    this.validation = answer.validation;
    this.parts = answer.parts;
    this.band = answer.run.baseline_band;
    this.marks = marksOf(answer);
    this.timeChoice.disabled = this.past.columns.time.filter((time) => time !== null).length < 2;
    this.draw();
  }

  // --- controls ---

  buildControls() {
    const radio = (label, byTime) => {
      const input = h("input", { type: "radio", name: "axis" });
      input.checked = !byTime;
      input.addEventListener("change", () => {
        this.byTime = byTime;
        this.view = null;
        this.rebuild();
      });
      return [input, h("label", {}, input, ` ${label}`)];
    };
    const [, byIteration] = radio("iteration", false);
    const [timeChoice, byTime] = radio("time", true);
    this.timeChoice = timeChoice;
    const log = h("input", { type: "checkbox" });
    log.addEventListener("change", () => {
      this.log = log.checked;
      this.rebuild();
    });
    const perplexity = h("input", { type: "checkbox" });
    perplexity.addEventListener("change", () => {
      this.perplexity = perplexity.checked;
      this.rebuild();
    });
    const smooth = h("select", {}, ...Object.entries(SMOOTHING).map(([text, count]) => h("option", { value: count }, text)));
    smooth.addEventListener("change", () => {
      this.smooth = Number(smooth.value);
      this.rebuild();
    });
    const button = (text, label, act) => {
      const node = h("button", { type: "button", "aria-label": label, title: label }, text);
      node.addEventListener("click", act);
      return node;
    };
    this.range = h("span", { class: "soft", id: "range" });
    this.controls.append(
      h("fieldset", {}, h("legend", { class: "hidden" }, "Axis"), byIteration, byTime),
      h("label", {}, log, " log scale"), h("label", {}, perplexity, " perplexity"), h("label", {}, "smoothing ", smooth),
      h("span", { class: "buttons" },
        button("◀", "Earlier", () => this.move(-0.5)), button("▶", "Later", () => this.move(0.5)),
        button("−", "Zoom out", () => this.zoom(2)), button("+", "Zoom in", () => this.zoom(0.5)),
        button("Latest", "Zoom to the latest tenth", () => this.latest()), button("All", "Show all", () => this.show(null))),
      this.range,
      h("small", { class: "soft" }, `Drag over a chart to zoom. ┆ restart  ${SYMBOLS.critical} critical  ` +
        `${SYMBOLS.warning} warning  ${SYMBOLS.info} info  ✕ NaN or Inf; shaded: lowest to highest`),
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

  full() {
    const { x, rows } = this.order;
    if (!x.length) return [0, 1];
    const low = this.byTime ? x[0] : Math.min(x[0], this.past.columns.first_iteration[rows[0]]);
    const high = x[x.length - 1];
    return high > low ? [low, high] : [low - 1, high + 1];
  }

  show(range) {
    const [low, high] = this.full();
    if (range) {
      const span = Math.min(Math.max(range[1] - range[0], (high - low) / 5000), high - low);
      const start = Math.min(Math.max(range[0], low), high - span);
      range = span >= (high - low) * 0.999 ? null : [start, start + span];
    }
    this.view = range;
    const [min, max] = range || [low, high];
    for (const { plot } of this.plots) plot.setScale("x", { min, max });
    const words = this.byTime ? instant : (at) => number(Math.round(at));
    setText(this.range, this.order.x.length ? `${range ? "" : "all: "}${words(min)} to ${words(max)}` : "");
  }

  zoom(factor) {
    const [min, max] = this.view || this.full();
    const middle = (min + max) / 2, half = ((max - min) / 2) * factor;
    this.show([middle - half, middle + half]);
  }

  move(part) {
    const [min, max] = this.view || this.full();
    const by = (max - min) * part;
    this.show([min + by, max + by]);
  }

  latest() {
    const [low, high] = this.full();
    this.show([high - (high - low) / 10, high]);
  }

  // --- drawing ---

  rebuild() {
    for (const { plot, figure } of this.plots) {
      plot.destroy();
      figure.remove();
    }
    this.plots = [];
    this.draw();
  }

  resize() {
    for (const { plot, frame } of this.plots) plot.setSize({ width: frame.clientWidth, height: HEIGHT });
  }

  draw() {
    this.order = ordered(this.past, this.byTime);
    for (const chart of CHARTS) {
      const data = chart.parts ? this.partsData() : chart.key === "validation" ? this.validationData() : this.seriesData(chart);
      if (!data) continue;
      const there = this.plots.find(({ key }) => key === chart.key);
      if (there && there.plot.series.length === data.length) {
        there.plot.setData(data, false);
        this.describe(there, chart, data);
      } else {
        this.add(chart, data, there);
      }
    }
    this.show(this.view);
  }

  seriesData(chart) {
    const figures = this.past.series[chart.key];
    if (!figures || !figures.mean.some((value) => value !== null)) return null;
    const { rows, x, kept } = this.order, factor = chart.factor || 1;
    // undefined: no value belongs here; null: a value is missing, which breaks the line
    const shown = (value) => (chart.nats && this.perplexity ? Math.exp(value) : value * factor);
    const pick = (column, mine) => rows.map((row) =>
      kept(row) === mine ? (known(column[row]) ? shown(column[row]) : null) : undefined);
    const line = pick(figures.mean, true);
    const data = [x, chart.maySmooth ? trailing(line, this.smooth) : line, pick(figures.high, true), pick(figures.low, true), pick(figures.mean, false)];
    if (chart.normal) {
      const normal = pick((this.past.series.baseline_seconds || { mean: [] }).mean.map((v) => v ?? null), true);
      const [low, high] = this.band || [1, 1];
      const times = (part) => normal.map((value) => (known(value) ? value * part : value));
      data.push(normal, times(high), times(low));
    }
    return data;
  }

  validationData() {
    const names = Object.keys(this.validation);
    if (!names.length) return null;
    const points = names.map((name) => {
      const { iteration, time, series } = this.validation[name], losses = (series.loss || { mean: [] }).mean;
      return new Map((this.byTime ? time : iteration).map((at, place) => [at, this.perplexity && known(losses[place]) ? Math.exp(losses[place]) : losses[place]])
        .filter(([at]) => at !== null));
    });
    const x = [...new Set(points.flatMap((map) => [...map.keys()]))].sort((a, b) => a - b);
    return x.length ? [x, ...points.map((map) => x.map((at) => map.get(at)))] : null;
  }

  partNames() {
    return this.parts ? Object.keys(this.parts.series) : [];
  }

  // Sums from the top down: the highest line is the whole, the lowest the first part alone.
  partsData() {
    const names = this.partNames();
    if (!names.length) return null;
    const rows = new Map();
    (this.byTime ? this.parts.time : this.parts.iteration).forEach((at, row) => at !== null && rows.set(at, row));
    const x = [...rows.keys()].sort((a, b) => a - b);
    const sums = names.map((_, many) => x.map((at) =>
      names.slice(0, many + 1).reduce((sum, name) => sum + (this.parts.series[name].mean[rows.get(at)] ?? 0), 0)));
    return x.length ? [x, ...sums.reverse()] : null;
  }

  add(chart, data, there) {
    const readout = h("span", { class: "readout" });
    const frame = h("div", { class: "frame", tabindex: 0, role: "group" });
    const figure = h("section", { class: "chart" }, h("h3", {}, chart.nats && this.perplexity ? chart.title.replace("Loss", "Perplexity").replace("loss", "perplexity") : chart.title, " ", readout), frame);
    frame.addEventListener("keydown", (event) => this.onKey(event));
    if (there) {
      there.plot.destroy();
      there.figure.replaceWith(figure);
      this.plots.splice(this.plots.indexOf(there), 1);
    } else {
      const later = CHARTS.slice(CHARTS.indexOf(chart) + 1).map(({ key }) => key);
      const next = this.plots.find(({ key }) => later.includes(key));
      this.box.insertBefore(figure, next ? next.figure : null);
    }
    const entry = { key: chart.key, figure, frame, readout };
    entry.plot = new uPlot(this.options(chart, data, entry), data, frame);
    this.plots.push(entry);
    this.plots.sort((a, b) => CHARTS.findIndex((c) => c.key === a.key) - CHARTS.findIndex((c) => c.key === b.key));
    this.describe(entry, chart, data);
  }

  options(chart, data, entry) {
    const css = getComputedStyle(document.documentElement), colour = (name) => css.getPropertyValue(name).trim();
    const positive = data.slice(1).every((column) => column.every((value) => !known(value) || value > 0));
    const log = positive && (chart.log || (this.log && chart.mayLog ? 10 : 0));
    const axis = {
      stroke: colour("--soft"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { stroke: colour("--grid"), width: 1 },
      font: "12px system-ui, sans-serif",
    };
    return {
      width: this.box.firstElementChild?.clientWidth - 2 || 320, height: HEIGHT, legend: { show: false },
      cursor: { sync: { key: "run", scales: ["x", null] }, drag: { x: true, y: false, setScale: false }, y: false },
      tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
      scales: { x: { time: this.byTime }, y: log ? { distr: 3, log } : {} },
      axes: [
        { ...axis, size: 34, values: this.byTime ? clockTicks : (_, ticks) => ticks.map(number) },
        { ...axis, size: 64, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick))) },
      ],
      series: [{}, ...seriesOf(chart, data, colour, chart.parts ? this.partNames() : Object.keys(this.validation))],
      bands: chart.key === "validation" ? [] : chart.parts ? partBands(this.partNames(), colour) : [
        { series: [2, 3], fill: colour("--range") },
        ...(chart.normal ? [{ series: [6, 7], fill: colour("--band") }] : []),
      ],
      hooks: {
        draw: [(plot) => this.drawMarks(plot, chart, colour)],
        setCursor: [(plot) => this.read(plot, chart, entry)],
        setSelect: [(plot) => {
          const { left, width } = plot.select;
          if (width < 4) return;
          this.show([plot.posToVal(left, "x"), plot.posToVal(left + width, "x")]);
          plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        }],
        ready: [(plot) => plot.over.addEventListener("dblclick", () => this.show(null))],
      },
    };
  }

  drawMarks(plot, chart, colour) {
    const { ctx } = plot, ratio = devicePixelRatio, { left, top, width, height } = plot.bbox;
    ctx.save();
    ctx.font = `${11 * ratio}px system-ui, sans-serif`;
    ctx.textAlign = "center";
    let free = -Infinity;
    for (const mark of this.marks) {
      const at = this.byTime ? mark.time : mark.iteration;
      if (!known(at)) continue;
      const x = plot.valToPos(at, "x", true);
      if (x < left - 1 || x > left + width + 1) continue;
      ctx.strokeStyle = ctx.fillStyle = colour(mark.colour);
      ctx.lineWidth = ratio;
      ctx.setLineDash(mark.dash.map((length) => length * ratio));
      ctx.beginPath();
      ctx.moveTo(x, top);
      ctx.lineTo(x, top + height);
      ctx.stroke();
      const half = ctx.measureText(mark.text).width / 2;
      const text = x - half > free ? mark.text : mark.symbol;
      ctx.fillText(text, Math.min(Math.max(x, left + half), left + width - half), top - 3 * ratio);
      free = x + half + 4 * ratio;
    }
    if (chart.key === "lm_loss" || chart.key === "grad_norm") {
      ctx.fillStyle = colour("--bad");
      const { rows } = this.order;
      rows.forEach((row, place) => {
        if (this.past.columns.not_finite[row]) {
          const x = plot.valToPos(this.order.x[place], "x", true);
          if (x >= left && x <= left + width) ctx.fillText("✕", x, top + height - 2 * ratio);
        }
      });
    }
    ctx.restore();
  }

  read(plot, chart, entry) {
    const place = plot.cursor.idx, data = plot.data;
    if (place === null || place === undefined) return setText(entry.readout, entry.last || "");
    const where = this.byTime ? instant(data[0][place]) : `iteration ${number(data[0][place])}`;
    if (chart.key === "validation") {
      const names = Object.keys(this.validation);
      const losses = names.map((name, at) => [name, data[at + 1][place]]).filter(([, loss]) => known(loss));
      return setText(entry.readout, `${where}: ${losses.map(([name, loss]) => `${name} ${number(loss)}`).join(", ")}`);
    }
    if (chart.parts) {
      const sums = data.slice(1).map((column) => column[place]).reverse();
      const parts = this.partNames().map((name, at) => `${name} ${number(sums[at] - (at ? sums[at - 1] : 0))}`);
      return setText(entry.readout, `${where}: ${parts.join(", ")}`);
    }
    const [, mean, high, low, lost] = data.map((column) => column[place]);
    const range = known(high) && high > low ? ` (${number(low)} to ${number(high)})` : "";
    const normal = chart.normal && known(data[5][place]) ? `, normal ${number(data[5][place])}` : "";
    const text = known(mean) ? `${number(mean)}${range}${normal}` : known(lost) ? `${number(lost)}, computed again later` : "no value";
    return setText(entry.readout, `${where}: ${text}`);
  }

  describe(entry, chart, data) {
    const values = data[1].filter(known);
    const last = values.length ? number(values[values.length - 1]) : "no value";
    const names = chart.parts ? this.partNames() : Object.keys(this.validation);
    entry.last = chart.parts || chart.key === "validation" ? names.join(", ") : last;
    if (entry.plot.cursor.idx === null || entry.plot.cursor.idx === undefined) setText(entry.readout, entry.last);
    const lowest = values.reduce((a, b) => Math.min(a, b), Infinity), highest = values.reduce((a, b) => Math.max(a, b), -Infinity);
    const label = `Chart of ${chart.title}: last ${last}, lowest ${number(lowest)}, highest ${number(highest)}. ${KEYS}`;
    if (entry.frame.getAttribute("aria-label") !== label) entry.frame.setAttribute("aria-label", label);
  }
}

// The mean of the last `count` values up to each; gaps stay gaps.
function trailing(column, count) {
  const last = [];
  let sum = 0;
  return count <= 1 ? column : column.map((value) => {
    if (!known(value)) return value;
    last.push(value);
    sum += value;
    if (last.length > count) sum -= last.shift();
    return sum / last.length;
  });
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

const PART_COLOURS = {
  compute: "--line-4", communication: "--line-1", data: "--line-2", optimizer: "--line-3", untimed: "--soft",
};
const partColour = (name, colour) => colour(PART_COLOURS[name] || "--warn");

function partBands(names, colour) {
  return names.slice(1).map((_, at) => ({
    series: [at + 1, at + 2], fill: `${partColour(names[names.length - 1 - at], colour)}66`,
  }));
}

function seriesOf(chart, data, colour, names) {
  const line = colour("--line-1"), none = { show: false };
  if (chart.parts) {
    return [...names].reverse().map((name, at) => ({
      label: name, stroke: partColour(name, colour), width: 1.5, dash: DASHES[(names.length - 1 - at) % 4], points: none,
      ...(at === names.length - 1 ? { fill: `${partColour(name, colour)}66` } : {}),
    }));
  }
  if (chart.key === "validation") {
    return data.slice(1).map((_, at) => ({
      label: names[at], stroke: colour(`--line-${1 + (at % 4)}`), width: 1.5, dash: DASHES[at % 4], spanGaps: true,
      points: { show: true, size: 6 },
    }));
  }
  const edge = (label) => ({ label, stroke: "transparent", width: 0, points: none });
  const series = [
    { label: chart.title, stroke: line, width: 1.5 }, edge("high"), edge("low"),
    { label: "computed again later", stroke: colour("--soft"), width: 1, dash: [3, 3], points: none },
  ];
  if (chart.normal) {
    series.push({ label: "normal", stroke: colour("--line-2"), width: 1.5, dash: [8, 4], points: none }, edge("above"), edge("below"));
  }
  return series;
}

const TONES = { critical: "--bad", warning: "--warn", info: "--soft" };

function marksOf(answer) {
  const restarts = answer.restarts.map((restart) => ({
    iteration: restart.iteration, time: restart.time, symbol: "┆", text: "restart", colour: "--text", dash: [4, 4],
  }));
  const incidents = answer.incidents.filter((item) => item.status === "firing").map((item) => {
    const symbol = SYMBOLS[item.severity] || "";
    return {
      iteration: item.onset_iteration ?? item.iteration, time: Date.parse(item.time) / 1000, symbol,
      text: `${symbol} ${item.incident}`, colour: TONES[item.severity] || "--soft", dash: [],
    };
  });
  // An incident that grew worse is one mark: the last word at a place stands.
  const last = new Map([...restarts, ...incidents].map((mark) => [`${mark.iteration} ${mark.text.replace(/^\S+ /, "")}`, mark]));
  return [...last.values()].sort((a, b) => (a.iteration ?? 0) - (b.iteration ?? 0));
}
