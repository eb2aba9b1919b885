// The open incidents: one line each, most severe first; the rest and those of severity info are folded.
import { ROOT, badge, definitions, h, setText } from "./live.js";

const MAX_UNFOLDED = 5; // as in page.py
const nodes = new Map(); // shown cards by run and kind, kept so that unfolded ones stay unfolded
let known = null; // keys of the incidents in the last answer

const keyOf = ({ run, incident }) => `${run}\n${incident}`;
const before = (a, b) => a.order[0] - b.order[0] || a.order[1] - b.order[1] || a.order[2] - b.order[2];

function card(incident, opened) {
  const line = incident.line || incident.evidence?.last_line;
  return h("article", { class: `incident ${incident.severity}` },
    h("h3", {}, badge(incident), " ", h("a", { href: `${ROOT}runs/${incident.path}` }, incident.run)),
    h("details", opened ? { open: "" } : {},
      h("summary", {},
        h("span", { class: "said" }, incident.said), h("span", { class: "place" }, incident.place), h("small", {}, incident.lasted)),
      h("div", {}, h("p", { class: "soft" }, incident.age), ...advised(incident), line ? h("pre", {}, String(line)) : null,
        h("details", {}, h("summary", {}, "Evidence"), h("dl", { class: "facts" }, ...definitions(incident.facts))))));
}

function advised({ advice, command, runbook_url: runbook }) {
  const link = runbook ? [" ", h("a", { href: runbook }, "runbook")] : [];
  return [...(advice ? [h("p", {}, h("b", {}, "Do:"), ` ${advice}`, ...link)] : []),
    ...(command ? [h("p", { class: "command" }, h("code", {}, command), copier())] : [])];
}

const copier = () => h("button", { type: "button", "data-copies": "" }, "Copy");

// Replace only the parts that changed, so that folding, selection and focus stay.
function renew(there, fresh) {
  for (const place of ["summary", "details > div"]) {
    const old = there.querySelector(place), now = fresh.querySelector(place);
    [...now.childNodes].forEach((child, at) => {
      const same = old.childNodes[at];
      if (!same) old.append(child.cloneNode(true));
      else if (same.tagName === "DETAILS" && child.tagName === "DETAILS") {
        if (!same.lastChild.isEqualNode(child.lastChild)) same.lastChild.replaceWith(child.lastChild.cloneNode(true));
      } else if (!same.isEqualNode(child)) same.replaceWith(child.cloneNode(true));
    });
    while (old.childNodes.length > now.childNodes.length) old.lastChild.remove();
  }
}

function place(box, incidents, opened) {
  const wanted = incidents.map((incident) => {
    const key = keyOf(incident), there = nodes.get(key), fresh = card(incident, opened);
    if (there?.className === fresh.className) renew(there, fresh);
    else nodes.set(key, fresh);
    return nodes.get(key);
  });
  if (wanted.length !== box.children.length || wanted.some((node, at) => box.children[at] !== node)) box.replaceChildren(...wanted);
}

function counted(incidents, words) {
  const kinds = new Map();
  for (const { incident } of incidents) kinds.set(incident, (kinds.get(incident) || 0) + 1);
  return `${incidents.length} ${words}: ${[...kinds].sort((a, b) => b[1] - a[1]).map(([kind, count]) => `${count} ${kind}`).join(", ")}`;
}

function fold(id, incidents, words) {
  const box = document.getElementById(id);
  box.hidden = incidents.length === 0;
  setText(box.firstElementChild, counted(incidents, words));
  place(box.lastElementChild, incidents, false);
}

export function showIncidents(incidents, opened = false) {
  const shown = incidents.filter(({ severity }) => severity !== "info").sort(before);
  place(document.getElementById("incidents"), shown.slice(0, MAX_UNFOLDED), opened);
  fold("more", shown.slice(MAX_UNFOLDED), "more");
  fold("infos", incidents.filter(({ severity }) => severity === "info").sort(before), "info");
  const keys = new Set(incidents.map(keyOf)), fresh = known === null ? [] : incidents.filter((incident) => !known.has(keyOf(incident)));
  for (const key of [...nodes.keys()]) if (!keys.has(key)) nodes.delete(key);
  if (fresh.length) {
    setText(document.getElementById("announce"), fresh.map(({ run, incident, severity }) => `${run}: ${incident}, ${severity}`).join("; "));
  }
  known = keys;
}

// Without TLS, browsers let a page copy only the selection.
async function copy(button) {
  const text = button.previousElementSibling.textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    getSelection().selectAllChildren(button.previousElementSibling);
    document.execCommand("copy");
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

document.addEventListener("click", ({ target }) => {
  const button = target.closest?.("[data-copies]");
  if (button) copy(button);
});
