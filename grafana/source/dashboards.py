"""A dashboard of its YAML: variables, annotations, rows of panels on Grafana's grid with stable ids."""

from collections.abc import Iterator
from copy import deepcopy
from itertools import count
from typing import Any

from msgspec.structs import asdict

from deploy.source.selection import Settings
from deploy.source.shapes import filled
from grafana.source.panels import named, panel
from grafana.source.queries import Queries
from grafana.source.schema import Annotation, Board, Section, Sections, Variable, kinds, read, shared, within

BOARDS = ("fleet", "run", "compare", "monitor")
"""Files of boards/."""
_HIDDEN = 2


def dashboard(name: str) -> dict[str, Any]:
    """The JSON of boards/NAME.yaml, as Grafana imports it by hand and reads it from a file. Raises BoardError with the
    file and the panel that is wrong.
    """
    board = read(f"boards/{name}.yaml", Board)
    made: dict[str, Any] = deepcopy(kinds()["board"]) | {
        "title": f"Megatron / {name}", "uid": f"megatron-{name}", "description": board.description,
        "links": [_link(name, other) for other in BOARDS if other != name],
    }  # fmt: skip
    common = read("queries.yaml", dict[str, str])
    with within(f"boards/{name}.yaml"):
        made["templating"]["list"] += map(_variable, board.variables)
        annotations = [_annotation(one, Queries(common, board.queries)) for one in board.annotations]
    made["annotations"] = {"list": annotations} if annotations else {}
    ids, y = count(1), 0
    for file in (name, *board.below):
        part = board if file == name else read(f"boards/{file}.yaml", Sections)
        queries = Queries(common, board.queries, part.queries)
        for section in part.sections:
            with within(f"boards/{file}.yaml: {section.title}"):
                y = _place(made["panels"], section, queries, ids, y)
    every = [one for row in made["panels"] for one in (row, *row.get("panels", []))]
    used = sorted({one["type"] for one in every} - {"row"})
    made["__requires"] += [{"type": "panel", "id": kind, "name": kind, "version": ""} for kind in used]
    return made


def _place(panels: list[dict[str, Any]], section: Section, queries: Queries, ids: Iterator[int], y: int) -> int:
    """Put a section below what is there; where the next one begins."""
    row = {"type": "row", "title": section.title, "id": next(ids), "collapsed": section.collapsed, "panels": []}
    panels.append(row | {"gridPos": {"h": 1, "w": 24, "x": 0, "y": y}})
    holder = panels[-1]["panels"] if section.collapsed else panels
    y += 1
    for line in section.lines:
        x = 0
        for width, spec in zip(line.widths(), line.panels, strict=True):
            place = {"h": line.height, "w": width, "x": x, "y": y}
            with within(spec.title):
                holder.append(panel(spec, queries) | {"id": next(ids), "gridPos": place})
            x += width
        y += line.height
    return y


def _link(here: str, there: str) -> dict[str, Any]:
    """To another board, with the variables that it takes along: one run is no selection of a fleet, All is no run."""
    names = ["datasource"]
    if "monitor" not in (here, there):
        names.append("cluster")
    if here in ("run", "fleet") and there == "compare":
        names.append("run")
    url = f"/d/megatron-{there}?" + "&".join(f"${{{name}:queryparam}}" for name in names)
    return {**kinds()["link"], "title": there, "url": url, "icon": "dashboard", "keepTime": True}


def _variable(wanted: str | Variable) -> dict[str, Any]:
    """A choice; that of a query is read again when the time changes."""
    if wanted == "runbook":  # where the runbook lies: one address for all links, set as the rules' are
        address = Settings().runbook
        return {**_choices("runbook", {address: address}), "query": address, "hide": _HIDDEN}
    spec: Variable = named({one.name: one for one in shared().variables}, wanted, "variable")
    if spec.choices:
        return _choices(spec.name, spec.choices) | {"label": spec.label, "description": spec.description}
    made: dict[str, Any] = filled(kinds()["query"], **asdict(spec), id=f"variable-{spec.name}")
    if spec.several:
        made |= kinds()["several"] | ({"allValue": ".*"} if spec.foreign else {})
    return made


def _choices(name: str, choices: dict[str, str]) -> dict[str, Any]:
    """The first of them is chosen."""
    text, value = next(iter(choices.items()))
    told = ", ".join(f"{text} : {value}" for text, value in choices.items())
    made: dict[str, Any] = filled(kinds()["choices"], name=name, choices=told, text=text, value=value)
    return made


def _annotation(spec: Annotation, queries: Queries) -> dict[str, Any]:
    told = {"hidden": not spec.switch, "expression": queries.filled(spec.query)}
    made: dict[str, Any] = filled(kinds()["annotation"], **asdict(spec), **told)
    return made
