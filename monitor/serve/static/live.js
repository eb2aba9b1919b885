// Shared by all pages: polling the API and showing figures. Log texts become text nodes and attributes, never markup.

import { DASH } from "./format.js";

export const ROOT = document.documentElement.dataset.root || "";
export const SYMBOLS = JSON.parse(document.documentElement.dataset.symbols);
const INTERVAL = 2000; // ms between two requests; a hidden page sends none
const TIMEOUT = 10000; // ms

export function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

export function setText(node, text) {
  if (node && node.textContent !== text) node.textContent = text;
}

export function showFigures(scope, run) {
  for (const [key, [text, note, tone]] of Object.entries(run.figures)) {
    const value = scope.querySelector(`[data-k="${key}"]`);
    if (!value) continue;
    setText(value, text);
    const wanted = `${key === "state" ? `state ${run.state}` : "value"} ${tone}`;
    if (value.className !== wanted) value.className = wanted;
    setText(scope.querySelector(`[data-n="${key}"]`), note);
    const cell = value.closest(".fleet td");
    if (cell && cell.title !== note) cell.title = note;
    value.closest("td, .cards > div")?.classList.toggle("unknown", text === DASH);
  }
  const bar = scope.querySelector("progress");
  if (!bar) return;
  const measured = Number.isFinite(run.iteration) && run.train_iterations > 0;
  bar.hidden = !measured;
  if (measured) {
    bar.max = run.train_iterations;
    bar.value = Math.min(run.iteration, run.train_iterations);
  }
}

export function badge(incident) {
  return h("span", { class: `badge ${incident.severity}` }, `${SYMBOLS[incident.severity] || ""} ${incident.incident}`,
    h("span", { class: "hidden" }, ` ${incident.severity}`));
}

export function definitions(facts) {
  return facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]);
}

// Call take(answer) after each answer. Times are by the server's clock, as the browser's may be wrong.
export function live(address, take) {
  let asking = false;
  const connection = document.getElementById("connection");
  async function ask() {
    if (asking || document.hidden) return;
    asking = true;
    const control = new AbortController();
    const timer = setTimeout(() => control.abort(), TIMEOUT);
    try {
      const answer = await fetch(address(), { signal: control.signal, cache: "no-store" });
      if (!answer.ok) throw new Error(`the monitor answers ${answer.status}`);
      const value = await answer.json();
      connection.className = "";
      setText(connection, "· live");
      take(value);
    } catch (error) {
      connection.className = "warning";
      setText(connection, `▲ not connected (${error.name === "AbortError" ? "no answer" : error.message}); the page is not updated`);
    } finally {
      clearTimeout(timer);
      asking = false;
    }
  }
  setInterval(ask, INTERVAL);
  document.addEventListener("visibilitychange", ask);
  ask();
  return ask;
}
