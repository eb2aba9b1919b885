// The last lines of a run's log, and the lines around an open incident.
import { ROOT, h, setText } from "./live.js";

const INTERVAL = 5000; // ms between two requests
const box = document.getElementById("log");
const note = document.getElementById("log-note");

function details(title, stream, lines, marked) {
  const shown = lines.flatMap((line, at) => [at === marked ? h("mark", {}, line) : line, "\n"]);
  return h("details", marked === undefined ? { class: "log" } : { class: "log", open: "" }, h("summary", {}, `${title} `, h("small", {}, stream)), h("pre", { tabindex: "0", role: "group", "aria-label": title }, ...shown),
    h("button", { type: "button", "data-copies": "" }, "Copy"));
}

// On unfolding, scroll to the marked line, else to the newest lines at the end.
box.addEventListener("toggle", ({ target }) => {
  const text = target.querySelector("pre"), mark = text.querySelector("mark");
  text.scrollTop = mark ? mark.offsetTop - text.offsetTop - text.clientHeight / 2 : text.scrollHeight;
}, true);

// Keep unfolded parts and replace only changed ones, so that a selection stays.
function show({ streams = [], incidents = {} }) {
  const fresh = [
    ...Object.entries(incidents).map(([kind, around]) => details(`Around the ${kind}`, around.stream, around.lines, around.marked)),
    ...streams.map(({ stream, lines }) => details("Last lines", stream, lines)),
  ];
  const known = new Map([...box.children].map((node) => [node.firstElementChild.textContent, node]));
  box.replaceChildren(...fresh.map((node) => {
    const old = known.get(node.firstElementChild.textContent);
    if (!old) return node;
    if (old.querySelector("pre").textContent !== node.querySelector("pre").textContent) old.querySelector("pre").replaceWith(node.querySelector("pre"));
    return old;
  }));
  document.getElementById("log-section").hidden = streams.length === 0;
}

export function followLog(path) {
  const address = `${ROOT}api/v1/runs/${path.startsWith("?") ? `log${path}` : `${path}/log`}`;
  async function ask() {
    if (document.hidden) return;
    try {
      const answer = await fetch(address, { cache: "no-store" });
      if (answer.ok) show(await answer.json());
      setText(note, "");
    } catch (error) {
      setText(note, `not connected (${error.message}); the lines are not updated`);
    }
  }
  setInterval(ask, INTERVAL);
  ask();
}
