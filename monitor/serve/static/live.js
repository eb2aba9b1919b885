// What both pages share: asking the API again and again, and putting figures into the page. Texts of a log only ever
// become text nodes and attributes, never markup.
import { SYMBOLS, duration, figures, instant, plain } from "./format.js";

export const ROOT = document.documentElement.dataset.root || "";
const EVERY = 2000; // ms between two questions; a page that nobody sees asks nothing
const PATIENCE = 10000;

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

// As page.run_path.
export function runPath(name) {
  const segments = name.split("/");
  const awkward = segments.some((segment) => ["", ".", ".."].includes(segment)) || /[%\\]/.test(name);
  return awkward ? `?name=${encodeURIComponent(name)}` : segments.map(encodeURIComponent).join("/");
}

export function showFigures(scope, run, now) {
  for (const [key, [text, note = "", tone = ""]] of Object.entries(figures(run, now))) {
    const value = scope.querySelector(`[data-k="${key}"]`);
    if (!value) continue;
    setText(value, text);
    const wanted = key === "state" ? `state ${run.state}` : `value ${tone}`;
    if (value.className !== wanted) value.className = wanted;
    setText(scope.querySelector(`[data-n="${key}"]`), note);
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

function article(incident, now) {
  const evidence = incident.evidence || {};
  const facts = h("dl", { class: "facts" });
  for (const [name, value] of Object.entries(evidence)) {
    if (name !== "last_line") facts.append(h("dt", {}, name.replaceAll("_", " ")), h("dd", {}, plain(name, value)));
  }
  return h("article", { class: `incident ${incident.severity}` },
    h("h3", {}, h("a", { href: `${ROOT}runs/${runPath(incident.run)}` }, incident.run),
      ` ${SYMBOLS[incident.severity] || ""} ${incident.incident} `,
      h("small", {}, `${incident.severity}, since ${instant(incident.since)}, ${duration(now - incident.since)}`)),
    h("p", {}, incident.summary), facts, evidence.last_line ? h("pre", {}, String(evidence.last_line)) : null);
}

const RANK = { critical: 0, warning: 1, info: 2 };
let told = null;

// The list of open incidents; an article is replaced only when what it says has changed. New ones are announced.
export function showIncidents(incidents, now) {
  const box = document.getElementById("incidents");
  const sorted = [...incidents].sort((a, b) => (RANK[a.severity] ?? 3) - (RANK[b.severity] ?? 3) || a.since - b.since);
  const keys = sorted.map((incident) => `${incident.run}\n${incident.incident}`);
  const old = new Map([...box.children].map((node) => [node.dataset.key, node]));
  const nodes = sorted.map((incident, place) => {
    const fresh = article(incident, now), known = old.get(keys[place]);
    fresh.dataset.key = keys[place];
    if (!known || known.className !== fresh.className) return fresh;
    [...fresh.children].forEach((child, at) => {
      const there = known.children[at];
      if (!there) known.append(child.cloneNode(true));
      else if (there.tagName === "H3") setText(there.querySelector("small"), child.querySelector("small").textContent);
      else if (!there.isEqualNode(child)) there.replaceWith(child.cloneNode(true));
    });
    return known;
  });
  if (nodes.length !== box.children.length || nodes.some((node, at) => box.children[at] !== node)) {
    box.replaceChildren(...nodes);
  }
  const fresh = told === null ? [] : sorted.filter((_, at) => !told.has(keys[at]));
  if (fresh.length) {
    setText(document.getElementById("announce"), fresh.map((i) => `${i.run}: ${i.incident}, ${i.severity}`).join("; "));
  }
  told = new Set(keys);
}

// Calls take(answer) after each answer and tick(now) each second. `now` is the server's clock: the browser's may be wrong.
export function live(address, take, tick) {
  let base = null, mark = 0, asking = false, failures = 0;
  const now = () => base + (performance.now() - mark) / 1000;
  const connection = document.getElementById("connection");
  async function ask() {
    if (asking || document.hidden) return;
    asking = true;
    const control = new AbortController();
    const timer = setTimeout(() => control.abort(), PATIENCE);
    try {
      const answer = await fetch(address(), { signal: control.signal, cache: "no-store" });
      if (!answer.ok) throw new Error(`the monitor answers ${answer.status}`);
      const value = await answer.json();
      base = value.at;
      mark = performance.now();
      failures = 0;
      connection.className = "";
      setText(connection, "· live");
      take(value, now());
    } catch (error) {
      failures += 1;
      connection.className = "warning";
      setText(connection, `▲ not connected (${error.name === "AbortError" ? "no answer" : error.message}); figures are old`);
    } finally {
      clearTimeout(timer);
      asking = false;
    }
  }
  setInterval(ask, EVERY);
  setInterval(() => base !== null && tick(now()), 1000);
  document.addEventListener("visibilitychange", ask);
  return ask();
}
