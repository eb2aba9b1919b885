// The x-axis of the charts: iteration, time, samples, tokens or GPU-hours.
import { count, instant, known, number } from "./format.js";

const NO_ROW = -1;
export const AXES = {
  iteration: { label: "iteration", words: (at) => number(Math.round(at)) },
  time: { label: "time", words: instant },
  samples: { label: "samples", words: count },
  tokens: { label: "tokens", words: count },
  gpu_hours: { label: "GPU-hours", words: number },
};
const CHRONICLE = ["time", "gpu_hours"]; // never decrease: repeated work comes after the lost work

export function available(past, name) {
  return name === "iteration" || values(past, name).filter(known).length > 1;
}

function values(past, name) {
  return name === "iteration" || name === "time" ? past.columns[name] : past.axes[name] || [];
}

export class Axis {
  constructor(past, name, log) {
    this.past = past;
    this.name = name;
    this.log = log && name !== "time";
    const column = values(past, name), { iteration, first_iteration: first, attempt, time } = past.columns;
    const usable = (row) => known(column[row]) && (!this.log || column[row] > 0);
    const all = iteration.map((_, row) => row).filter(usable);
    all.sort((a, b) => column[a] - column[b] || a - b);
    this.lasting = lasting(iteration, first);
    this.rows = [];
    this.x = [];
    this.chronicle = CHRONICLE.includes(name);
    const pause = name === "time" ? longest(all.map((row) => column[row])) : Infinity;
    for (const row of all) {
      const before = this.rows[this.rows.length - 1];
      const apart = before !== undefined && (attempt[before] !== attempt[row] || column[row] - column[before] > pause);
      if (this.chronicle && apart) {
        this.rows.push(NO_ROW); // break the line between attempts and at long pauses
        this.x.push((column[before] + column[row]) / 2);
      }
      this.rows.push(row);
      this.x.push(column[row]);
    }
    const places = (by, rows) => rows.filter((row) => known(by[row]) && usable(row)).map((row) => [by[row], column[row]]).sort((a, b) => a[0] - b[0]);
    this.byIteration = places(iteration, iteration.map((_, row) => row).filter((row) => this.lasting[row]));
    this.byTime = name === "gpu_hours" ? places(time, all) : [];
  }

  // False for work that a later attempt repeated, unless the axis is chronological.
  kept(row) {
    return this.chronicle || this.lasting[row] === 1;
  }

  // The place of an iteration and time on the axis; null if unknown.
  at(iteration, time) {
    if (this.name === "time") return known(time) ? time : null;
    if (this.name === "iteration") return known(iteration) && (!this.log || iteration > 0) ? iteration : null;
    if (this.byTime.length > 1 && known(time)) return between(this.byTime, time);
    return known(iteration) && this.byIteration.length ? between(this.byIteration, iteration) : null;
  }

  full() {
    const beside = this.name === "time" ? [] : (this.beside || []).filter(({ x }) => x.length), all = [this, ...beside].map((axis) => axis.own());
    return [Math.min(...all.map(([low]) => low)), Math.max(...all.map(([, high]) => high))];
  }

  own() {
    const { rows, x } = this;
    if (!x.length) return [this.log ? 1 : 0, this.log ? 10 : 1];
    const first = this.name === "iteration" ? this.past.columns.first_iteration[rows[0]] : x[0];
    const low = first > 0 || !this.log ? Math.min(x[0], first) : x[0], high = x[x.length - 1];
    return high > low ? [low, high] : this.log ? [low / 2, high * 2] : [low - 1, high + 1];
  }

  words(at) {
    return AXES[this.name].words(at);
  }

  where(at) {
    return this.name === "time" ? this.words(at) : this.name === "iteration" ? `iteration ${this.words(at)}` : `${this.words(at)} ${AXES[this.name].label}`;
  }
}

const PAUSE = 30; // a gap of this many median gaps breaks the line

function longest(times) {
  const gaps = times.slice(1).map((time, at) => time - times[at]).sort((a, b) => a - b);
  return gaps.length > 4 ? PAUSE * Math.max(gaps[gaps.length >> 1], 1) : Infinity;
}

// 1 for each row that no later attempt repeated.
function lasting(iteration, first) {
  const kept = new Uint8Array(iteration.length);
  let next = Infinity;
  for (let row = iteration.length - 1; row >= 0; row -= 1) {
    if (iteration[row] < next) {
      kept[row] = 1;
      next = Math.min(next, first[row]);
    }
  }
  return kept;
}

// Interpolate linearly; clamp at both ends.
function between(places, at) {
  let low = 0, high = places.length - 1;
  if (at <= places[low][0]) return places[low][1];
  if (at >= places[high][0]) return places[high][1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (places[middle][0] <= at) low = middle;
    else high = middle;
  }
  const [from, x] = places[low], [to, y] = places[high];
  return to > from ? x + ((y - x) * (at - from)) / (to - from) : x;
}
