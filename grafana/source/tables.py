"""Tables: several instant queries merged into one row a run, with the columns named, ordered and made readable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from grafana_foundation_sdk.builders import common, table
from grafana_foundation_sdk.models import common as shape
from grafana_foundation_sdk.models import dashboard as model

from grafana.source.layout import DATASOURCE
from grafana.source.panels import (
    Query,
    limits,
    nothing,
    override,
    run_link,
    severity_mapping,
    state_mapping,
    target,
    transformed,
)


@dataclass
class Column:
    """A column: the field it comes from (a label, or the letter of a query) and how it looks."""

    source: str
    title: str
    unit: str = ""
    width: int = 0
    look: dict[str, Any] = field(default_factory=dict)


def limit_look(steps: Sequence[tuple[float | None, str]]) -> dict[str, Any]:
    """Text in the colour of the threshold that is reached."""
    return {
        "thresholds": limits(steps).build(),
        "color": {"mode": "thresholds"},
        "custom__cellOptions": {"type": "color-text"},
    }


def mapped_look(mappings: list[model.ValueMapping]) -> dict[str, Any]:
    """A cell filled with its mapping's colour, the text in it."""
    return {"mappings": mappings, "custom__cellOptions": {"type": "color-background", "mode": "basic"}}


def gauge_look(steps: Sequence[tuple[float | None, str]]) -> dict[str, Any]:
    """A bar from 0 to 100 % with the figure beside it."""
    return {
        "min": 0,
        "max": 1,
        "thresholds": limits(steps).build(),
        "color": {"mode": "thresholds"},
        "custom__cellOptions": {"type": "gauge", "mode": "basic", "valueDisplayMode": "text"},
    }


TOPOLOGY = {
    "world_size": "GPUs", "tp": "TP", "pp": "PP", "dp": "DP", "mbs": "Micro batch", "layers": "Layers", "hidden": "Hidden",
    "heads": "Heads", "seq_len": "Sequence", "dtype": "Type", "zero_stage": "ZeRO", "dialect": "Program",
}  # fmt: skip
"""Labels of `megatron_run_info`, and what people call them."""

STATE = mapped_look(state_mapping(unwatched=True)) | {"custom__align": "center"}
SEVERITY = mapped_look(severity_mapping()) | {"custom__align": "center"}
LINK = {"links": run_link("__value.text", "__data.fields.Cluster")}


def _field(source: str, *, several: bool) -> str:
    """What Grafana calls it: the value of one query among several by the query's letter."""
    if len(source) > 1:
        return source
    return f"Value #{source}" if several else "Value"


def rows(
    title: str,
    description: str,
    queries: Sequence[Query],
    columns: Sequence[Column],
    *,
    empty: str,
    sort: str = "",
    descending: bool = True,
    then: str = "",
    hidden: Sequence[str] = (),
    unit: str = "none",
    pages: bool = True,
) -> Any:
    """A table; `hidden` are the fields that are not shown."""
    panel = table.Panel().title(title).description(description).unit(unit).datasource(DATASOURCE).no_value(empty)
    for place, query in enumerate(queries):
        panel.with_target(target(query._replace(instant=True, format="table"), place))
    named = {_field(column.source, several=len(queries) > 1): column for column in columns}
    if len(queries) > 1:
        transformed(panel, ("merge", {}))
    shown = {
        "excludeByName": dict.fromkeys(("Time", *hidden), True),
        "indexByName": {name: place for place, name in enumerate(named)},
        "renameByName": {name: column.title for name, column in named.items()},
    }
    transformed(panel, ("organize", shown))
    for column in columns:
        # A table's no-value text stands in every empty cell, so only the whole table may explain why it is empty.
        properties = {"noValue": "–", "mappings": nothing("–"), **column.look}
        if column.unit:
            properties["unit"] = column.unit
        if column.width:
            properties["custom__width"] = column.width
        panel.override_by_name(column.title, override(**properties))
    panel.show_header(True).cell_height(shape.TableCellHeight.SM).thresholds(limits(((None, "text"),)))
    panel.footer(common.TableFooterOptions().show(False).reducer([]).enable_pagination(pages))
    panel.align(shape.FieldTextAlignment.AUTO).min_width(60)
    if sort:
        order = [(sort, descending), *([(then, True)] if then else [])]
        panel.sort_by([common.TableSortByFieldState().display_name(name).desc(down) for name, down in order])
    return panel
