// What both pages share: asking the API again and again, and putting figures into the page. Texts of a log only ever
// become text nodes and attributes, never markup.

import { DASH } from "./format.js";

export const ROOT = document.documentElement.dataset.root || "";
export const SYMBOLS = JSON.parse(document.documentElement.dataset.symbols);
const EVERY = 2000; // ms between two questions; a page that nobody sees asks nothing
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
    const wanted = key === "state" ? `state ${run.state}` : `value ${tone}`;
    if (value.className !== wanted) value.className = wanted;
    setText(scope.querySelector(`[data-n="${key}"]`), note);
    value.closest("td, .cards > div")?.classList.toggle("unknown", text === DASH);
  }
  const bar = scope.querySelector("progress");
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

function article(incident) {
  const { last_line: line } = incident.evidence || {};
  return h("article", { class: `incident ${incident.severity}` },
    h("h3", {}, h("a", { href: `${ROOT}runs/${incident.path}` }, incident.run),
      ` ${SYMBOLS[incident.severity] || ""} ${incident.incident} `, h("small", {}, incident.age)),
    h("p", {}, incident.said), incident.place ? h("p", { class: "place" }, incident.place) : null, advised(incident),
    h("details", {}, h("summary", {}, "Evidence"), h("dl", { class: "facts" }, ...definitions(incident.facts))),
    line ? h("pre", {}, String(line)) : null);
}

function advised({ advice, runbook_url: runbook }) {
  const link = runbook ? [" ", h("a", { href: runbook }, "runbook")] : [];
  return advice ? h("p", {}, h("b", {}, "Do:"), ` ${advice}`, ...link) : null;
}

const RANK = { critical: 0, warning: 1, info: 2 };
let known = null; // keys of the incidents shown last

// The list of open incidents; an article is replaced only when it has changed. New ones are announced.
export function showIncidents(incidents) {
  const box = document.getElementById("incidents");
  const sorted = [...incidents].sort((a, b) => (RANK[a.severity] ?? 3) - (RANK[b.severity] ?? 3) || a.since - b.since);
  const keys = sorted.map((incident) => `${incident.run}\n${incident.incident}`);
  const old = new Map([...box.children].map((node) => [node.dataset.key, node]));
  const nodes = sorted.map((incident, place) => {
    const fresh = article(incident), there = old.get(keys[place]);
    fresh.dataset.key = keys[place];
    if (!there || there.className !== fresh.className) return fresh;
    [...fresh.children].forEach((child, at) => {
      const old = there.children[at];
      if (!old) there.append(child.cloneNode(true));
      else if (old.tagName === "DETAILS" && child.tagName === "DETAILS") { // which stays as open as its reader left it
        if (!old.lastChild.isEqualNode(child.lastChild)) old.lastChild.replaceWith(child.lastChild.cloneNode(true));
      }
      else if (old.tagName === "H3") setText(old.querySelector("small"), child.querySelector("small").textContent);
      else if (!old.isEqualNode(child)) old.replaceWith(child.cloneNode(true));
    });
    while (there.children.length > fresh.children.length) there.lastElementChild.remove();
    return there;
  });
  if (nodes.length !== box.children.length || nodes.some((node, at) => box.children[at] !== node)) {
    box.replaceChildren(...nodes);
  }
  const fresh = known === null ? [] : sorted.filter((_, at) => !known.has(keys[at]));
  if (fresh.length) {
    setText(document.getElementById("announce"), fresh.map((i) => `${i.run}: ${i.incident}, ${i.severity}`).join("; "));
  }
  known = new Set(keys);
}

// Calls take(answer) after each answer. Times in it are of the server's clock: the browser's may be wrong.
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
      setText(connection, `▲ not connected (${error.name === "AbortError" ? "no answer" : error.message}); figures are old`);
    } finally {
      clearTimeout(timer);
      asking = false;
    }
  }
  setInterval(ask, EVERY);
  document.addEventListener("visibilitychange", ask);
  return ask();
}
