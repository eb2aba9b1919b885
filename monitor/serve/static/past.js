// A run's past as the API sends it, and its rows in the order of an axis.
const NO_ROW = -1;

// What the API has sent so far; each answer brings the buckets from `start` on.
export class Past {
  width = 0;
  closed = 0;
  columns = { first_iteration: [], iteration: [], attempt: [], not_finite: [], time: [] };
  series = {};

  take(steps) {
    if (steps.start > this.columns.iteration.length) steps.start = 0;
    for (const [name, column] of Object.entries(this.columns)) {
      column.length = steps.start;
      for (const value of steps[name]) column.push(value);
    }
    const length = this.columns.iteration.length;
    for (const name of new Set([...Object.keys(this.series), ...Object.keys(steps.series)])) {
      const mine = (this.series[name] ||= { mean: [], low: [], high: [] });
      const got = steps.series[name] || {};
      for (const [figure, column] of Object.entries(mine)) {
        while (column.length < steps.start) column.push(null);
        column.length = steps.start;
        for (const value of got[figure] || got.mean || []) column.push(value);
        while (column.length < length) column.push(null);
      }
    }
    this.width = steps.width;
    this.closed = steps.closed;
  }
}

// The rows in the order of the axis. By iteration, work that a restart computed again is marked as lost.
export function ordered(past, byTime) {
  const { iteration, first_iteration: first, time, attempt } = past.columns;
  if (byTime) {
    const rows = [], x = [];
    const known = iteration.map((_, row) => row).filter((row) => time[row] !== null).sort((a, b) => time[a] - time[b]);
    known.forEach((row, place) => {
      const before = known[place - 1];
      if (place && attempt[before] !== attempt[row]) {
        rows.push(NO_ROW); // nothing was computed between two launches: the line breaks
        x.push((time[before] + time[row]) / 2);
      }
      rows.push(row);
      x.push(time[row]);
    });
    return { rows, x, kept: () => true };
  }
  const kept = new Uint8Array(iteration.length);
  let next = Infinity;
  for (let row = iteration.length - 1; row >= 0; row -= 1) {
    if (iteration[row] < next) {
      kept[row] = 1;
      next = Math.min(next, first[row]);
    }
  }
  const rows = iteration.map((_, row) => row).sort((a, b) => iteration[a] - iteration[b] || a - b);
  return { rows, x: rows.map((row) => iteration[row]), kept: (row) => kept[row] === 1 };
}
