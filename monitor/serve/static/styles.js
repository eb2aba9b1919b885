// How the lines of each chart look. Lines differ by dash as well as by colour.
const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3]];
const PARTS = {
  compute: "--line-4", communication: "--line-1", data: "--line-2", optimizer: "--line-3", untimed: "--soft",
  rollout: "--line-5", reward: "--line-6", sync: "--line-1", checkpoint: "--line-7", evaluation: "--line-3",
};
const OTHERS = [4, 5, 3, 6, 7]; // colours of compared runs: none looks like the normal pace or the batch size
const NONE = { show: false };

// In the order of `names`; of a stack the last one is on top, and drawn first.
export function seriesOf(chart, names, colour) {
  if (chart.stack) {
    return [...names].reverse().map((name, at) => ({
      label: name, stroke: partColour(name, colour), width: 1.5, dash: DASHES[(names.length - 1 - at) % 4], points: NONE,
      ...(at === names.length - 1 ? { fill: `${partColour(name, colour)}66` } : {}),
    }));
  }
  if (chart.lines) {
    return names.map((name, at) => ({
      label: name, stroke: chart.points ? colour(`--line-${1 + (at % 4)}`) : partColour(name, colour), width: 1.5,
      dash: DASHES[at % 4], spanGaps: true, points: chart.points ? { show: true, size: 6 } : NONE,
    }));
  }
  const edge = { stroke: "transparent", width: 0, points: NONE };
  const dashed = (name, dash, more = {}) => ({ stroke: colour(name), width: 1.5, dash, points: NONE, ...more });
  const looks = {
    line: { stroke: colour("--line-1"), width: 1.5 }, high: edge, low: edge, above: edge, below: edge,
    lost: dashed("--soft", [3, 3], { width: 1 }), normal: dashed("--line-2", [8, 4]), limit: dashed("--bad", [8, 4]),
    batch: dashed("--line-3", [2, 3], { scale: "batch", paths: uPlot.paths.stepped({ align: 1 }) }),
  };
  const others = names.filter((name) => !Object.hasOwn(looks, name)), other = (at) => dashed(`--line-${OTHERS[at % 5]}`, DASHES[(at + 1) % 4], { spanGaps: true });
  return names.map((name) => ({ label: name, ...(looks[name] || other(others.indexOf(name))) }));
}

export function bandsOf(chart, names, colour) {
  if (chart.stack) {
    return names.slice(1).map((_, at) => ({
      series: [at + 1, at + 2], fill: `${partColour(names[names.length - 1 - at], colour)}66`,
    }));
  }
  const place = (name) => 1 + names.indexOf(name);
  return [["high", "low", "--range"], ["above", "below", "--band"]].filter(([name]) => !chart.lines && names.includes(name))
    .map(([above, below, fill]) => ({ series: [place(above), place(below)], fill: colour(fill) }));
}

const partColour = (name, colour) => colour(PARTS[name] || "--warn");
