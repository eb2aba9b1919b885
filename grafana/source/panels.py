"""A panel from what its YAML says: Grafana's words for its kind (kinds.yaml), changed by each key that it has."""

from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any

from deploy.source.shapes import filled
from grafana.source.queries import Queries
from grafana.source.schema import BoardError, Column, Mapping, Panel, Steps, Table, kinds, shared

GREY = "#8e8e8e"
_SOME = 1e-9


def panel(spec: Panel, queries: Queries) -> dict[str, Any]:
    """Grafana's JSON of it, without id and place."""
    common, kind = kinds(), kinds()["kinds"][type(spec).__name__.lower()]
    made = _made(joined(deepcopy(common["panel"]), kind["panel"]), (*kind["keys"], *common["keys"]), spec)
    at_end, form = "at_end" in kind or getattr(spec, "points", False), kind.get("form", "time_series")
    made["targets"] = [
        {
            **common["target"], "expr": queries.filled(query), "format": form, "instant": at_end, "range": not at_end,
            "legendFormat": legend or "__auto", "refId": chr(ord("A") + place),
        }
        for place, (legend, query) in enumerate(spec.pairs())
    ]  # fmt: skip
    return made


def _made(made: dict[str, Any], keys: Iterable[dict[str, Any]], spec: Any) -> dict[str, Any]:
    """`made`, changed by each key that a panel or a column has."""
    for setting in keys:
        value = getattr(spec, setting["key"], None)
        if value == setting["is"] if "is" in setting else value or (value == 0 and value is not False):
            value = _MADE_BY[setting["by"]](spec) if "by" in setting else value
            joined(made, filled(setting["makes"], value=value))
    return made


def joined(into: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """`into`, changed by `more` (the law stands in kinds.yaml)."""
    for key, value in more.items():
        known = into.get(key)
        if isinstance(known, dict) and isinstance(value, dict):
            joined(known, value)
        else:
            into[key] = [*(known or ()), *value] if key in ("overrides", "mappings") else deepcopy(value)
    return into


def named(known: dict[str, Any], value: Any, what: str) -> Any:
    """What shared.yaml has under a name; what is spelt out as it is."""
    if isinstance(value, str) and value not in known:
        raise BoardError(f"no {what} is called {value!r}: {', '.join(known)}")
    return known[value] if isinstance(value, str) else value


def _limits(steps: str | Steps) -> dict[str, Any]:
    """Absolute thresholds; the first one begins at the least."""
    pairs = [{None: step} if isinstance(step, str) else step for step in named(shared().steps, steps, "steps")]
    found = [{"value": at, "color": colour} for pair in pairs for at, colour in pair.items()]
    return {"mode": "absolute", "steps": found}


def _bar_limits(steps: str | Steps) -> dict[str, Any]:
    """Where there is nothing, or 0, a bar still draws its end: it must not have the colour of trouble."""
    least, *others = named(shared().steps, steps, "steps")
    return _limits(("transparent", {_SOME: least}, *others))


def _numbers(mapping: str | Mapping | list[str | Mapping]) -> list[dict[str, Any]]:
    """Number -> (text, colour), of a table or several."""
    tables = [named(shared().mappings, one, "mapping") for one in (mapping if isinstance(mapping, list) else [mapping])]
    results = (
        {
            f"{number:g}": {"text": text, "color": colour, "index": place}
            for place, (number, (text, colour)) in enumerate(table.items())
        }
        for table in tables
    )
    return [{"type": "value", "options": options} for options in results if options]


def _nothing(text: str) -> list[dict[str, Any]]:
    """What stands where there is no value, in grey."""
    return [{"type": "special", "options": {"match": "null+nan", "result": {"text": text, "color": GREY}}}]


def _overrides(looks: Iterable[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Properties of the series or columns of a name, or of a `/regular expression/`."""
    return [
        {
            "matcher": {"id": "byRegexp" if matcher.startswith("/") else "byName", "options": matcher},
            "properties": [{"id": name, "value": value} for name, value in look.items()],
        }
        for matcher, look in looks
    ]


def _colours(colours: str | dict[str, str]) -> list[dict[str, Any]]:
    pairs = named(shared().colours, colours, "colours").items()
    return _overrides((series, {"color": {"mode": "fixed", "fixedColor": colour}}) for series, colour in pairs)


def _run_link(field: str, cluster: str) -> dict[str, str]:
    """A link to the run's dashboard; the fields hold the run's name and cluster."""
    chosen = f"var-run=${{{field}:percentencode}}&var-cluster=${{{cluster}:percentencode}}"
    url = f"/d/megatron-run?{chosen}&${{datasource:queryparam}}&${{__url_time_range}}"
    return {"title": "Open the run", "url": url}


def _columns(spec: Table) -> dict[str, Any]:
    """Several queries merged into one row a set of labels, with the columns named, ordered and made readable."""
    several = len(spec.queries) > 1
    looks = {
        source: Column(title=column) if isinstance(column, str) else column for source, column in spec.columns.items()
    }
    # what Grafana calls it: the value of one query among several by the query's letter
    value = "Value #{}" if several else "Value"
    names = {value.format(source) if len(source) == 1 else source: look.title for source, look in looks.items()}
    shown = {
        "excludeByName": dict.fromkeys(("Time", *spec.hidden), True),
        "indexByName": {name: place for place, name in enumerate(names)},
        "renameByName": names,
    }
    usual: list[dict[str, dict[str, Any]]] = [{"merge": {}}] if several else []
    properties = [(look.title, _made({}, kinds()["column"], look)) for look in looks.values()]
    steps = spec.transformations or [*usual, {"organize": shown}]
    return {
        "transformations": [{"id": name, "options": options} for step in steps for name, options in step.items()],
        "fieldConfig": {"overrides": _overrides(properties)},
    }


def _order(spec: Table) -> list[dict[str, Any]]:
    order = [(spec.sort, not spec.ascending), *([(spec.then, True)] if spec.then else [])]
    return [{"displayName": name, "desc": down} for name, down in order]


def _cell(column: Column) -> list[dict[str, Any]]:
    """The text of a cell. A table's no-value text stands in every empty one, so only the whole table may explain it."""
    if column.shown_as:
        result = {"text": column.shown_as, "index": 0}
        return [{"type": "regex", "options": {"pattern": ".+", "result": result}}]
    return _numbers(column.mapping) or _nothing("–")


def _cell_link(column: Column) -> dict[str, Any]:
    if isinstance(column.link, str):
        return _run_link("__value.text", "__data.fields.Cluster")
    return {"title": column.link.title, "url": column.link.url, "targetBlank": True}


_MADE_BY: dict[str, Callable[[Any], Any]] = {
    "limits": lambda spec: _limits(spec.steps),
    "bar_limits": lambda spec: _bar_limits(spec.steps),
    "numbers": lambda spec: _numbers(spec.mapping),
    "nothing": lambda spec: _nothing(spec.empty),
    "colours": lambda spec: _colours(spec.colours),
    "overrides": lambda spec: _overrides(spec.overrides.items()),
    "links": lambda _spec: [kinds()["link"] | _run_link("__field.labels.run", "__field.labels.cluster")],
    "columns": _columns,
    "order": _order,
    "cell": _cell,
    "cell_link": _cell_link,
}
"""What kinds.yaml calls by a name: the spec of a panel or a column -> a part of its JSON."""
