"""Tables: several queries merged into one row a set of labels, with the columns named, ordered and made readable."""

from typing import Any

from grafana_foundation_sdk.builders import common, table
from grafana_foundation_sdk.models import common as shape

from grafana.source.panels import limits, nothing, numbers, override, run_link, transformed
from grafana.source.schema import Column, Table


def rows(panel: table.Panel, spec: Table) -> None:
    """A row a set of labels."""
    several = len(spec.queries) > 1
    columns = {
        source: Column(title=column) if isinstance(column, str) else column for source, column in spec.columns.items()
    }
    names = {_field(source, several=several): column.title for source, column in columns.items()}
    shown = {
        "excludeByName": dict.fromkeys(("Time", *spec.hidden), True),
        "indexByName": {name: place for place, name in enumerate(names)},
        "renameByName": names,
    }
    usual: list[dict[str, dict[str, Any]]] = [{"merge": {}}] if several else []
    steps = spec.transformations or [*usual, {"organize": shown}]
    transformed(panel, [pair for step in steps for pair in step.items()])
    for column in columns.values():
        override(panel, column.title, **_look(column))
    panel.show_header(True).cell_height(shape.TableCellHeight.SM).thresholds(limits(("text",)))
    panel.footer(common.TableFooterOptions().show(False).reducer([]).enable_pagination(spec.pages))
    panel.align(shape.FieldTextAlignment.AUTO).min_width(60)
    if spec.sort:
        order = [(spec.sort, not spec.ascending), *([(spec.then, True)] if spec.then else [])]
        panel.sort_by([common.TableSortByFieldState().display_name(name).desc(down) for name, down in order])


def _field(source: str, *, several: bool) -> str:
    """What Grafana calls it: the value of one query among several by the query's letter."""
    if len(source) > 1:
        return source
    return f"Value #{source}" if several else "Value"


def _look(column: Column) -> dict[str, Any]:
    """Grafana's properties of a column, those that it has by default left out."""
    look: dict[str, Any] = {
        # A table's no-value text stands in every empty cell, so only the whole table may explain why it is empty.
        "noValue": column.empty,
        "mappings": numbers(column.mapping) or nothing("–"),
    }
    if column.shown_as:
        result = {"text": column.shown_as, "index": 0}
        look["mappings"] = [{"type": "regex", "options": {"pattern": ".+", "result": result}}]
    if column.steps:
        look |= {"thresholds": limits(column.steps).build(), "color": {"mode": "thresholds"}}
        look["custom.cellOptions"] = {"type": "color-text"}
    if column.mapping:
        look["custom.cellOptions"] = {"type": "color-background", "mode": "basic"}
    if column.wrapped:
        look |= {"custom.cellOptions": {"type": "auto", "wrapText": True}, "custom.minWidth": 220}  # a phone scrolls
    if column.centred:
        look["custom.align"] = "center"
    if column.link == "run":
        title, url = run_link("__value.text", "__data.fields.Cluster")
        look["links"] = [{"title": title, "url": url}]
    elif column.link:
        look["links"] = [{"title": column.link.title, "url": column.link.url, "targetBlank": True}]
    if column.hidden:
        look["custom.hidden"] = True
    settings = {"decimals": column.decimals, "unit": column.unit or None, "custom.width": column.width or None}
    return look | {name: value for name, value in settings.items() if value is not None}
