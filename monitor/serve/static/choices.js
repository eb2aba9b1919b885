// The settings of the charts, kept in the address (for sharing) and in the browser (for the next run).
import { AXES } from "./axis.js";
import { h } from "./live.js";

const SMOOTHING = { none: 1, "10 points": 10, "50 points": 50, "200 points": 200 };
const KEPT = "megatron-monitor charts";

export class Choices {
  axis = "iteration";
  log = false; // logarithmic y-axis
  logAxis = false;
  perplexity = false;
  constant = false; // also charts of a value that never changes
  smooth = 1; // number of points in the moving average
  view = null; // [min, max] of the axis; null shows all and follows

  constructor() {
    let kept = "";
    try {
      kept = localStorage.getItem(KEPT) || "";
    } catch { /* the browser stores nothing for this page */ }
    const here = location.hash.includes("=") ? location.hash.slice(1) : kept;
    const params = new URLSearchParams(here), smooth = Number(params.get("smooth"));
    if (Object.hasOwn(AXES, params.get("axis"))) this.axis = params.get("axis");
    for (const name of ["log", "logAxis", "perplexity", "constant"]) this[name] = params.get(name) === "1";
    if (Object.values(SMOOTHING).includes(smooth)) this.smooth = smooth;
    const view = (params.get("view") || "").split("_").map(Number);
    if (view.length === 2 && view.every(Number.isFinite) && view[0] < view[1]) this.view = view;
  }

  keep() {
    const params = new URLSearchParams();
    if (this.axis !== "iteration") params.set("axis", this.axis);
    for (const name of ["log", "logAxis", "perplexity", "constant"]) if (this[name]) params.set(name, "1");
    if (this.smooth > 1) params.set("smooth", this.smooth);
    const stored = String(params); // without the zoom, which concerns this run only
    if (this.view) params.set("view", this.view.map((at) => Number(at.toPrecision(12))).join("_"));
    try {
      localStorage.setItem(KEPT, stored);
      window.history.replaceState(null, "", String(params) ? `#${params}` : location.pathname + location.search);
    } catch { /* as above; some browsers also limit how often the address changes */ }
  }

  // The controls; `changed()` is called after each change.
  controls(changed) {
    const change = (act) => (event) => {
      act(event.target);
      this.keep();
      changed();
    };
    const tick = (name, text) => {
      const input = h("input", { type: "checkbox" });
      input.checked = this[name];
      input.addEventListener("change", change((node) => (this[name] = node.checked)));
      return h("label", {}, input, ` ${text}`);
    };
    const select = (text, options, value, act) => {
      const node = h("select", {}, ...options.map(([key, words]) => h("option", { value: key }, words)));
      node.value = value;
      node.addEventListener("change", change(act));
      return [node, h("label", {}, `${text} `, node)];
    };
    const [axis, axisLabel] = select("x-axis", Object.entries(AXES).map(([key, { label }]) => [key, label]), this.axis, (node) => {
      this.axis = node.value;
      this.view = null;
    });
    const [, smoothLabel] = select("smoothing", Object.entries(SMOOTHING).map(([text, points]) => [points, text]), this.smooth, (node) => (this.smooth = Number(node.value)));
    this.axisSelect = axis;
    return [axisLabel, smoothLabel, tick("log", "log scale"), tick("logAxis", "log axis"), tick("perplexity", "perplexity"), tick("constant", "constant series")];
  }

  // The axis to draw: the chosen one, or iteration if the run does not have it.
  axisOf(offered) {
    const used = offered(this.axis) ? this.axis : "iteration";
    for (const option of this.axisSelect.options) option.disabled = !offered(option.value);
    if (this.axisSelect.value !== used) this.axisSelect.value = used;
    return used;
  }
}
