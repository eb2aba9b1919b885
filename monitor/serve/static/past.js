// A run's history; each answer of the API brings the buckets from `start` on.
export class Past {
  width = 0;
  closed = 0;
  columns = { first_iteration: [], iteration: [], attempt: [], not_finite: [], time: [] };
  axes = {}; // totals at the end of each bucket: samples, tokens, GPU-hours
  series = {};

  take(steps) {
    if (steps.start > this.columns.iteration.length) steps.start = 0;
    for (const [name, column] of Object.entries(this.columns)) replaceFrom(column, steps.start, steps[name]);
    const length = this.columns.iteration.length;
    for (const name of names(this.axes, steps.axes)) {
      replaceFrom((this.axes[name] ||= []), steps.start, steps.axes[name] || [], length);
    }
    for (const name of names(this.series, steps.series)) {
      const mine = (this.series[name] ||= { mean: [], low: [], high: [] });
      const got = steps.series[name] || {};
      for (const [figure, column] of Object.entries(mine)) {
        replaceFrom(column, steps.start, got[figure] || got.mean || [], length);
      }
    }
    this.width = steps.width;
    this.closed = steps.closed;
  }
}

const names = (one, other) => new Set([...Object.keys(one), ...Object.keys(other)]);

function replaceFrom(column, start, values, length = 0) {
  while (column.length < start) column.push(null);
  column.length = start;
  for (const value of values) column.push(value);
  while (column.length < length) column.push(null);
}
