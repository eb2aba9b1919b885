// Shared by all pages: requests the page again and replaces what changed, so that focus, selection and folding stay.

export const ROOT = document.documentElement.dataset.root || "";
export const SYMBOLS = JSON.parse(document.documentElement.dataset.symbols);
const INTERVAL = 2000; // ms between two requests; a hidden page sends none
const TIMEOUT = 10000; // ms
const connection = document.getElementById("connection");

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

// Call take(answer) after each answer. Returns a function that asks now.
export function poll(address, take, format = "text") {
  let asking = false, again = false;
  async function ask() {
    if (asking || document.hidden) return void (again = asking);
    asking = true;
    try {
      const answer = await fetch(address(), { signal: AbortSignal.timeout(TIMEOUT), cache: "no-store" });
      if (!answer.ok) throw new Error(`the monitor answers ${answer.status}`);
      const value = await answer[format]();
      if (!again) take(value);
      connection.className = "";
      setText(connection, "· live");
    } catch (error) {
      connection.className = "warning";
      setText(connection, `▲ not connected (${error.name === "TimeoutError" ? "no answer" : error.message}); the page is not updated`);
    }
    asking = false;
    if (again) ask(again = false);
  }
  setInterval(ask, INTERVAL);
  document.addEventListener("visibilitychange", ask);
  ask();
  return ask;
}

const keyOf = (node) => node?.dataset?.key || node?.id || "";

// Make `old` equal to `fresh` with as few changes as possible. Scripts own what has data-own; readers own what is unfolded.
function renew(old, fresh) {
  if (old.isEqualNode(fresh) || "own" in old.dataset) return;
  for (const { name } of [...old.attributes]) if (name !== "open" && !fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (name !== "open" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  const wanted = new Set([...fresh.children].map(keyOf));
  for (const child of [...old.children]) if (!wanted.has(keyOf(child))) child.remove();
  const known = new Map([...old.children].map((child) => [keyOf(child), child]));
  let next = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    const key = keyOf(child), same = next?.nodeName === child.nodeName && !keyOf(next) ? next : null;
    const there = key ? known.get(key) : same;
    if (there === next && there) next = next.nextSibling;
    else old.insertBefore(there || child, next);
    if (there?.nodeType === Node.ELEMENT_NODE) renew(there, child);
    else if (there && there.data !== child.data) there.data = child.data;
  }
  while (next) {
    const after = next.nextSibling;
    next.remove();
    next = after;
  }
}

const incidents = (scope) => new Map([...scope.querySelectorAll("article[data-key]")].map((node) => [node.dataset.key, node.querySelector("h3").textContent]));

// The page's own address, which holds the reader's choices.
export const ask = poll(() => location.pathname + location.search, (text) => {
  const fresh = new DOMParser().parseFromString(text, "text/html"), before = incidents(document);
  const news = [...incidents(fresh)].filter(([key]) => !before.has(key)).map(([, words]) => words);
  renew(document.body, fresh.body);
  document.title = fresh.title;
  if (news.length) setText(document.getElementById("announce"), news.join("; "));
});

// Without TLS, browsers let a page copy only the selection.
document.addEventListener("click", async ({ target }) => {
  const button = target.closest?.("[data-copies]"), source = button?.previousElementSibling;
  if (!button) return;
  try {
    await navigator.clipboard.writeText(source.textContent);
  } catch {
    getSelection().selectAllChildren(source);
    document.execCommand("copy");
  }
  setText(button, "Copied");
});
