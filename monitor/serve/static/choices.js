// What a reader chose of the charts: kept in the address, to be sent to others, and in the browser for the next run.
import { AXES } from "./axis.js";
import { h } from "./live.js";

const SMOOTHING = { none: 1, "10 points": 10, "50 points": 50, "200 points": 200 };
const KEPT = "megatron-monitor charts";

export class Choices {
  axis = "iteration";
  log = false; // of the values
  logAxis = false;
  perplexity = false;
  smooth = 1; // points of which the line is the mean
  with = ""; // the path of a run that is drawn beside this one
  view = null; // [min, max] of the axis; null shows all and follows

  constructor() {
    let kept = "";
    try {
      kept = localStorage.getItem(KEPT) || "";
    } catch { /* the browser keeps nothing for this page */ }
    const here = location.hash.includes("=") ? location.hash.slice(1) : kept;
    const told = new URLSearchParams(here), smooth = Number(told.get("smooth"));
    if (Object.hasOwn(AXES, told.get("axis"))) this.axis = told.get("axis");
    for (const name of ["log", "logAxis", "perplexity"]) this[name] = told.get(name) === "1";
    if (Object.values(SMOOTHING).includes(smooth)) this.smooth = smooth;
    this.with = location.hash.includes("=") ? told.get("with") || "" : "";
    const view = (told.get("view") || "").split("_").map(Number);
    if (view.length === 2 && view.every(Number.isFinite) && view[0] < view[1]) this.view = view;
  }

  keep() {
    const told = new URLSearchParams();
    if (this.axis !== "iteration") told.set("axis", this.axis);
    for (const name of ["log", "logAxis", "perplexity"]) if (this[name]) told.set(name, "1");
    if (this.smooth > 1) told.set("smooth", this.smooth);
    const habits = String(told); // the part of a run that is looked at is none, nor is another run
    if (this.with) told.set("with", this.with);
    if (this.view) told.set("view", this.view.map((at) => Number(at.toPrecision(12))).join("_"));
    try {
      localStorage.setItem(KEPT, habits);
      window.history.replaceState(null, "", String(told) ? `#${told}` : location.pathname + location.search);
    } catch { /* as above; and some browsers refuse a hundred changes of the address in half a minute */ }
  }

  // The controls of these choices. `offered(axis)` is called to ask which axes the run has; `changed()` after each change.
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
    return [axisLabel, smoothLabel, tick("log", "log scale"), tick("logAxis", "log axis"), tick("perplexity", "perplexity")];
  }

  // The axis to draw: what was chosen, iteration where the run does not have it.
  axisOf(offered) {
    const used = offered(this.axis) ? this.axis : "iteration";
    for (const option of this.axisSelect.options) option.disabled = !offered(option.value);
    if (this.axisSelect.value !== used) this.axisSelect.value = used;
    return used;
  }
}
