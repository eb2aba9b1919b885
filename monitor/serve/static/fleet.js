// The page of all runs. The query of the address holds filter, order and columns; the server answers with the rows.
import { ask } from "./live.js";

const KEPT = "megatron-monitor columns";
const form = document.getElementById("filter");

function choose(params) {
  window.history.replaceState(null, "", `?${params}`);
  ask();
}

function stored(columns) {
  try {
    if (columns) localStorage.setItem(KEPT, columns);
    return (localStorage.getItem(KEPT) || "").split(",").filter(Boolean);
  } catch {
    return []; // the browser stores nothing for this page
  }
}

form?.addEventListener("input", ({ target }) => {
  const params = new URLSearchParams(location.search), given = new FormData(form);
  for (const name of ["q", "state", ...(target.name === "columns" ? ["columns"] : [])]) {
    params.delete(name);
    for (const value of given.getAll(name)) if (value) params.append(name, value);
  }
  if (target.name === "columns") stored(given.getAll("columns"));
  choose(params);
});
form?.addEventListener("submit", (event) => event.preventDefault());

// Links to this page with another query.
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("main a");
  if (!link || link.pathname !== location.pathname || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const params = new URLSearchParams(link.search);
  form.elements.q.value = params.get("q") || "";
  for (const box of form.querySelectorAll("[name=state]")) box.checked = params.getAll("state").includes(box.value);
  choose(params);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && form && !/input|textarea/i.test(document.activeElement.tagName)) {
    event.preventDefault();
    form.elements.q.focus();
  }
});

const params = new URLSearchParams(location.search), columns = stored();
if (columns.length && !params.has("columns")) {
  for (const key of columns) params.append("columns", key);
  choose(params);
}
