"""The house's lint of dashboards: one function a rule, each gives sentences, none is an empty list.

Rules of Grafana's dashboard-linter that fit (its job and instance rules do not: our routine labels are `run`
and `cluster`), and our own.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Dashboard = dict[str, Any]
Panel = dict[str, Any]
FOLDER = Path(__file__).parents[2] / "grafana" / "dashboards"
BOARDS = sorted(path.stem for path in FOLDER.glob("*.json"))
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
UIDS = {f"megatron-{name}" for name in BOARDS}
MOST_QUERIES = 30  # before a row is opened
UNITS = {"none", "short", "s", "percentunit", "bytes", "sci", "locale", "dateTimeAsIsoNoDateIfToday", "dateTimeFromNow"}
BUILT_IN = {"__rate_interval": "4m", "__interval": "1m", "__range": "21600s"}
"""Grafana's own variables, for a day sampled every minute: $__rate_interval is four samples."""


def fill(text: str, values: dict[str, str]) -> str:
    """The text with $name and ${name[:format]} replaced, as Grafana does; a name that is not known is a KeyError."""
    known = {**BUILT_IN, **values}
    return re.sub(r"\$(?:\{(\w+)(?::\w+)?\}|([a-z_]\w*))", lambda name: known[name[1] or name[2]], text)


def load(name: str) -> Dashboard:
    """A committed dashboard."""
    made: Dashboard = json.loads((FOLDER / f"{name}.json").read_text())
    return made


def panels(dashboard: Dashboard) -> Iterator[Panel]:
    """Every panel that is no row, those of collapsed rows included."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield from panel.get("panels", [])
        else:
            yield panel


def variables(dashboard: Dashboard) -> dict[str, list[str]]:
    """Every variable with the values that a check should try."""
    values = {}
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "custom":
            values[variable["name"]] = [part.split(" : ")[-1].strip() for part in variable["query"].split(",")]
        else:
            values[variable["name"]] = [".*" if variable.get("includeAll") else "gpt-13b-base"]
    return values


def fillings(dashboard: Dashboard) -> list[dict[str, str]]:
    """The variables' values: all at their first, then each value of a custom variable in turn."""
    known = variables(dashboard)
    first = {name: values[0] for name, values in known.items()}
    return [first, *({**first, name: value} for name, values in known.items() for value in values[1:])]


def expressions(dashboard: Dashboard) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(where, expression, target) of every panel and annotation, variables not yet filled in."""
    for panel in panels(dashboard):
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"], target
    for annotation in dashboard["annotations"].get("list", []):
        yield f"annotation {annotation['name']}", annotation["target"]["expr"], annotation["target"]


def selector_of(query: str) -> str | None:
    """The selector within `label_values(selector, label)`."""
    match = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
    return match[1] if match else None


def template_datasource(dashboard: Dashboard) -> Iterator[str]:
    """The data source is a variable."""
    if not any(v["name"] == "datasource" and v["type"] == "datasource" for v in dashboard["templating"]["list"]):
        yield "no variable chooses the data source"


def template_queries(dashboard: Dashboard) -> Iterator[str]:
    """Variables ask for a label that exists, and again when the time changes."""
    for variable in dashboard["templating"]["list"]:
        if variable["type"] != "query":
            continue
        if variable["refresh"] != 2:
            yield f"${variable['name']} is not read again when the time changes"
        if selector_of(variable["query"]["query"]) is None:
            yield f"${variable['name']} is no label_values(selector, label)"


def variables_are_used(dashboard: Dashboard) -> Iterator[str]:
    """Every variable stands in some expression or title, or chains another."""
    text = repr(
        [dashboard["panels"], dashboard["annotations"], [v.get("query") for v in dashboard["templating"]["list"]]]
    )
    for name in variables(dashboard):
        if not re.search(rf"\$\{{?{name}\b", text):
            yield f"${name} is never used"


def panel_datasource(dashboard: Dashboard) -> Iterator[str]:
    """Every panel and query uses the variable."""
    for panel in panels(dashboard):
        if panel.get("datasource") != DATASOURCE or any(t.get("datasource") != DATASOURCE for t in panel["targets"]):
            yield f"{panel['title']} does not use the data source variable"


def panel_words(dashboard: Dashboard) -> Iterator[str]:
    """A title, a description in sentences, and a word why a panel may be empty."""
    for panel in panels(dashboard):
        description = panel.get("description", "")
        if not panel.get("title"):
            yield f"panel {panel['id']} has no title"
        if len(description) < 60 or not description.endswith("."):
            yield f"{panel['title']}: the description is too short"
        if not panel["fieldConfig"]["defaults"].get("noValue"):
            yield f"{panel['title']}: no word for the case that there is nothing"


def panel_units(dashboard: Dashboard) -> Iterator[str]:
    """A unit that Grafana knows; ratios go from 0 to 1."""
    for panel in panels(dashboard):
        defaults = panel["fieldConfig"]["defaults"]
        if defaults.get("unit") not in UNITS:
            yield f"{panel['title']}: unit {defaults.get('unit')}"
        if defaults.get("unit") == "percentunit" and (defaults.get("min") != 0 or "max" not in defaults):
            yield f"{panel['title']}: a share without 0 and 1"


def target_rate_interval(dashboard: Dashboard) -> Iterator[str]:
    """`rate` follows the scrape interval; a fixed window would be empty or coarse somewhere."""
    for where, expression, _ in expressions(dashboard):
        if re.search(r"\brate\([^\[]*\[(?!\$__rate_interval\])", expression):
            yield f"{where}: rate without $__rate_interval"


def shared_settings(dashboard: Dashboard) -> Iterator[str]:
    """What all dashboards have in common."""
    for key, value in (("editable", True), ("graphTooltip", 1), ("refresh", "30s"), ("timezone", "browser")):
        if dashboard.get(key) != value:
            yield f"{key} is {dashboard.get(key)!r}, not {value!r}"
    if dashboard["tags"] != ["megatron"] or dashboard["time"] != {"from": "now-6h", "to": "now"}:
        yield "tags or time are not the house's"
    if dashboard["uid"] not in UIDS or dashboard["schemaVersion"] > 42:
        yield f"uid {dashboard['uid']}, schema {dashboard['schemaVersion']}"


def explicit_looks(dashboard: Dashboard) -> Iterator[str]:
    """Charts set legend and tooltip; thresholds are no default of Grafana's (80 is red)."""
    for panel in panels(dashboard):
        options = panel.get("options", {})
        if panel["type"] in ("timeseries", "state-timeline") and not ("legend" in options and "tooltip" in options):
            yield f"{panel['title']}: legend or tooltip is left to chance"
        steps = panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps")
        if panel["type"] != "heatmap" and not steps:
            yield f"{panel['title']}: thresholds are left to Grafana's default"
        elif steps and any(step["value"] == 80 for step in steps):
            yield f"{panel['title']}: the default threshold of 80"


def links_resolve(dashboard: Dashboard) -> Iterator[str]:
    """Every link leads to a dashboard that ships, with a variable that it has."""
    for uid, variable in re.findall(r"/d/([\w-]+)(?:\?var-(\w+)=)?", repr(dashboard)):
        if uid not in UIDS:
            yield f"a link leads to {uid}"
        if variable and variable != "run":
            yield f"a link sets {variable}"
    for link in dashboard["links"]:
        if not link["keepTime"] or "${datasource:queryparam}" not in link["url"]:
            yield f"the link {link['title']} forgets time or data source"
        if link["includeVars"]:
            yield f"the link {link['title']} passes on a choice that means something else there"


def unique_and_in_place(dashboard: Dashboard) -> Iterator[str]:
    """Ids and titles unique, nothing overlaps, each line fills the grid, the first row is low."""
    every = list(panels(dashboard))
    ids = [panel["id"] for panel in [*every, *(p for p in dashboard["panels"] if p["type"] == "row")]]
    titles = [panel["title"] for panel in every]
    yield from (f"id {i} twice" for i in set(ids) if ids.count(i) > 1)
    yield from (f"title {t} twice" for t in set(titles) if titles.count(t) > 1)
    places = [panel["gridPos"] for panel in every]
    cells = Counter(
        (x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    )
    yield from (f"two panels at {cell}" for cell, count in cells.items() if count > 1)
    yield from (f"line {y} does not fill the grid" for y, count in Counter(y for _, y in cells).items() if count != 24)
    yield from (f"the panel at {at} is beyond the edge" for at in places if at["x"] + at["w"] > 24)
    if every[0]["gridPos"]["h"] > 6:
        yield "the first row is taller than 6"


def few_queries(dashboard: Dashboard) -> Iterator[str]:
    """What loads before a row is opened."""
    count = sum(len(panel["targets"]) for panel in dashboard["panels"] if panel["type"] != "row")
    if count > MOST_QUERIES:
        yield f"{count} queries before a row is opened"


RULES: tuple[Callable[[Dashboard], Iterator[str]], ...] = (
    template_datasource, template_queries, variables_are_used, panel_datasource, panel_words, panel_units,
    target_rate_interval, shared_settings, explicit_looks, links_resolve, unique_and_in_place, few_queries,
)  # fmt: skip


def findings(dashboard: Dashboard) -> list[str]:
    """Everything that is wrong, each with its rule."""
    return sorted({f"{rule.__name__}: {problem}" for rule in RULES for problem in rule(dashboard)})
