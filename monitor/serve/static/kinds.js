// The list of charts, and the series that each draws from a run's history.
import { known, number } from "./format.js";

export const OTHER = "+ "; // begins the name of another run's line
const GIB = 2 ** 30;
// `outliers`: a few very high points, such as the first iterations, are cut off.
export const CHARTS = [
  { key: "lm_loss", title: "Loss", maySmooth: true, nats: true, notFinite: true },
  { key: "validation", title: "Validation loss", lines: (source) => validation(source), nats: true, points: true },
  { key: "grad_norm", title: "Grad norm", maySmooth: true, notFinite: true },
  { key: "seconds_per_iteration", title: "Seconds per iteration", normal: true, batch: true, maySmooth: true, outliers: true, phases: true },
  { key: "parts", title: "Where an iteration goes, seconds", stack: true, lines: (source) => timed(source, "series"), outliers: true, phases: true },
  { key: "spread", title: "Rank skew, seconds", lines: (source) => timed(source, "spread"), outliers: true },
  { key: "tflops", title: "TFLOPs per GPU" },
  { key: "memory_bytes", title: "GPU memory, GiB", factor: 1 / GIB, limit: (run) => run.gpu_memory_capacity_bytes / GIB },
  { key: "learning_rate", title: "Learning rate" },
  { key: "loss_scale", title: "Loss scale", log: 2 },
  { key: "global_batch_size", title: "Batch size" },
];

export function titleOf(chart, choices) {
  return chart.nats && choices.perplexity ? chart.title.replace(/loss/i, (word) => (word === "Loss" ? "Perplexity" : "perplexity")) : chart.title;
}

// Return { data: columns for uPlot, names of the series }, or null if there is nothing to draw.
export function drawn(chart, source) {
  if (!chart.lines) return series(chart, source);
  const found = chart.lines(source);
  if (!found) return null;
  if (!chart.stack) return found;
  // cumulative sums, largest first: the highest line is the total
  const [x, ...columns] = found.data;
  const sums = columns.map((_, many) => x.map((_, at) => columns.slice(0, many + 1).reduce((sum, column) => sum + (column[at] ?? 0), 0)));
  return { data: [x, ...sums.reverse()], names: found.names };
}

// Columns: mean, high, low, lost work, then normal pace with its band, batch size, limit.
function series(chart, source) {
  const { past, axis, choices, run, others } = source;
  const figures = past.series[chart.key];
  if (!figures || !figures.mean.some(known)) return null;
  const { rows, x } = axis, factor = chart.factor || 1, exp = chart.nats && choices.perplexity;
  const shown = (value) => (exp ? Math.exp(value) : value * factor);
  // undefined: no value here; null: a missing value, which breaks the line
  const pick = (column, mine = true) => rows.map((row) => (axis.kept(row) === mine ? (known(column[row]) ? shown(column[row]) : null) : undefined));
  const line = pick(figures.mean);
  if (!line.some(known)) return null;
  const data = [x, chart.maySmooth ? trailing(line, choices.smooth) : line, pick(figures.high), pick(figures.low), pick(figures.mean, false)];
  const names = ["line", "high", "low", "lost"];
  const add = (name, column) => {
    names.push(name);
    data.push(column);
  };
  if (chart.normal && past.series.baseline_seconds) {
    const slow = run.incidents.find(({ incident, severity }) => incident === "slowdown" && severity !== "info");
    const since = slow && known(run.normal_seconds) ? slow.onset_iteration ?? Infinity : Infinity; // the normal pace is learned again from there
    const normal = pick(past.series.baseline_seconds.mean.map((value, row) => (past.columns.iteration[row] >= since ? run.normal_seconds : value)));
    const [low, high] = run.baseline_band || [1, 1];
    const times = (part) => normal.map((value) => (known(value) ? value * part : value));
    add("normal", normal);
    add("above", times(high));
    add("below", times(low));
  }
  const batch = past.series.global_batch_size;
  if (chart.batch && batch && new Set(batch.mean.filter(known)).size > 1) {
    add("batch", rows.map((row) => (axis.kept(row) ? batch.mean[row] ?? null : undefined)));
  }
  const limit = chart.limit ? chart.limit(run) : null;
  if (known(limit) && limit > 0) add("limit", x.map(() => limit));
  return others.reduce((drawing, other) => {
    const theirs = series(chart, { ...source, ...other, others: [] });
    return theirs ? withOther(drawing, theirs.data, OTHER + other.name) : drawing;
  }, { data, names });
}

// Add another run's line; points with the same x share a row.
function withOther({ data: [x, ...columns], names }, [otherX, otherLine], name) {
  const at = new Map(x.map((place, row) => [place, row]));
  const rows = x.map((place, row) => [place, row, undefined]), more = [];
  otherX.forEach((place, row) => {
    if (at.has(place)) rows[at.get(place)][2] = otherLine[row];
    else more.push([place, undefined, otherLine[row]]);
  });
  const all = [...rows, ...more].sort((a, b) => a[0] - b[0]);
  return {
    data: [all.map(([place]) => place), ...columns.map((column) => all.map(([, row]) => (row === undefined ? undefined : column[row]))), all.map(([, , value]) => value)],
    names: [...names, name],
  };
}

function validation({ axis, choices, answer }) {
  const shown = (loss) => (known(loss) ? (choices.perplexity ? Math.exp(loss) : loss) : null);
  const names = Object.keys(answer.validation).filter((name) => answer.validation[name].series.loss);
  return together(names, names.map((name) => {
    const { iteration, time, series: { loss } } = answer.validation[name];
    return new Map(loss.mean.map((value, place) => [axis.at(iteration[place], time[place]), shown(value)]));
  }));
}

function timed({ axis, answer }, figures) {
  const parts = answer.parts, names = parts ? Object.keys(parts[figures]) : [];
  return together(names, names.map((name) =>
    new Map(parts[figures][name].mean.map((value, place) => [axis.at(parts.iteration[place], parts.time[place]), value]))));
}

// Merge several lines over one x; a later point replaces an earlier one with the same x.
function together(names, maps) {
  const x = [...new Set(maps.flatMap((map) => [...map.keys()]))].filter(known).sort((a, b) => a - b);
  return x.length ? { data: [x, ...maps.map((map) => x.map((at) => map.get(at)))], names } : null;
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

const ENOUGH = 10; // points that show that a series is constant

// The only value of a chart, of all its runs; null if there are several.
export function constantOf(chart, { data, names }) {
  const values = chart.lines ? [] : data.slice(1).filter((_, at) => names[at] !== "limit").flat().filter(known);
  const same = (value) => Math.abs(value - values[0]) <= 1e-6 * Math.abs(values[0]); // means of buckets are rounded
  return values.length >= ENOUGH && values.every(same) ? values[0] : null;
}

// Describe the values at one place.
export function describe(chart, names, values) {
  if (chart.stack) {
    const sums = values.slice().reverse();
    return names.map((name, at) => `${name} ${number(sums[at] - (at ? sums[at - 1] : 0))}`).join(", ");
  }
  if (chart.lines) {
    return names.map((name, at) => [name, values[at]]).filter(([, value]) => known(value)).map(([name, value]) => `${name} ${number(value)}`).join(", ") || "no value";
  }
  const of = Object.fromEntries(names.map((name, at) => [name, values[at]]));
  const range = known(of.high) && of.high > of.low ? ` (${number(of.low)} to ${number(of.high)})` : "";
  const references = ["normal", "batch"].filter((name) => known(of[name])).map((name) => `, ${name} ${number(of[name])}`).join("");
  const limit = known(of.limit) ? ` of ${number(of.limit)}` : "";
  const other = names.filter((name) => name.startsWith(OTHER) && known(of[name])).map((name) => `${name.replace(OTHER, "")} ${number(of[name])}`).join(", ");
  if (known(of.line)) return `${number(of.line)}${range}${limit}${references}${other && ", "}${other}`;
  if (other) return other;
  return known(of.lost) ? `${number(of.lost)}, repeated later` : "no value";
}

const MAX_CUT = 0.02; // share of the points that may be cut off,
const CUT_FACTOR = 2.5; // if they exceed all others by this factor

// The upper end of the axis without a few outliers; null if there are none.
export function cutAbove(column) {
  const sorted = column.filter(known).sort((a, b) => a - b);
  if (sorted.length < 5) return null;
  const usual = sorted[sorted.length - 1 - Math.max(1, Math.floor(MAX_CUT * sorted.length))];
  return usual > 0 && sorted[sorted.length - 1] > CUT_FACTOR * usual ? usual * 1.25 : null;
}
