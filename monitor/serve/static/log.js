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

// Scroll to the marked line, else to the newest lines at the end.
function scroll(part) {
  const text = part.querySelector("pre"), mark = text.querySelector("mark");
  text.scrollTop = mark ? mark.getBoundingClientRect().top - text.getBoundingClientRect().top + text.scrollTop - text.clientHeight / 2 : text.scrollHeight;
}

box.addEventListener("toggle", ({ target }) => scroll(target), true);
for (const part of box.querySelectorAll("details[open]")) scroll(part); // unfolded by the server

// Keep unchanged parts in place: a part that is inserted again loses its scroll position and its selection.
function show({ streams = [], incidents = {} }) {
  document.getElementById("log-section").hidden = streams.length === 0;
  const fresh = [
    ...Object.entries(incidents).map(([kind, around]) => details(`Around the ${kind}`, around.stream, around.lines, around.marked)),
    ...streams.map(({ stream, lines }) => details("Last lines", stream, lines)),
  ];
  const titleOf = (part) => part.firstElementChild.textContent;
  const known = new Map([...box.children].map((part) => [titleOf(part), part]));
  const titles = new Set(fresh.map(titleOf));
  for (const [title, part] of known) if (!titles.has(title)) part.remove();
  fresh.forEach((part, at) => {
    const old = known.get(titleOf(part));
    if (!old) {
      box.insertBefore(part, box.children[at] || null);
      scroll(part);
    } else if (old.querySelector("pre").textContent !== part.querySelector("pre").textContent) {
      const { scrollTop } = old.querySelector("pre");
      old.querySelector("pre").replaceWith(part.querySelector("pre"));
      old.querySelector("pre").scrollTop = scrollTop;
    }
  });
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
