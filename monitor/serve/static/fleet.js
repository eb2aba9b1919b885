// The page of all runs. The query of the address holds filter and order; the server answers with the rows.
import { ask } from "./live.js";

const form = document.getElementById("filter");

function choose(params) {
  window.history.replaceState(null, "", `?${params}`);
  ask();
}

form?.addEventListener("input", () => {
  const params = new URLSearchParams(location.search), given = new FormData(form);
  for (const name of ["q", "state"]) {
    params.delete(name);
    for (const value of given.getAll(name)) if (value) params.append(name, value);
  }
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
