"""A dashboard of its YAML: variables, annotations, rows of panels on Grafana's grid with stable ids."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from grafana_foundation_sdk.builders import bargauge, heatmap, prometheus, stat, statetimeline, table, timeseries, trend
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import prometheus as query_shape

from deploy.source.settings import Settings
from grafana.source import panels
from grafana.source.queries import Queries
from grafana.source.schema import (
    Annotation,
    Bars,
    Board,
    Chart,
    Figure,
    Heatmap,
    Panel,
    Section,
    Sections,
    Table,
    Timeline,
    Trend,
    Variable,
    read,
    shared,
    within,
)
from grafana.source.tables import rows

BOARDS = ("fleet", "run", "compare", "monitor")
"""Files of boards/."""
_KINDS: dict[type, tuple[Callable[[], Any], Callable[[Any, Any], None], str, str]] = {
    Figure: (stat.Panel, panels.figure, "time_series", ""),
    Chart: (timeseries.Panel, panels.chart, "time_series", ""),
    Bars: (bargauge.Panel, panels.bars, "time_series", ""),
    Timeline: (statetimeline.Panel, panels.timeline, "time_series", "none"),
    Heatmap: (heatmap.Panel, panels.buckets, "heatmap", ""),
    Trend: (trend.Panel, panels.over_x, "table", "short"),
    Table: (table.Panel, rows, "table", "none"),
}
"""Kind -> the SDK's panel, what fills it in, the form of its answers, its unit where the YAML has none."""
_AS_IN_THE_YAML = (
    "min", "max", "decimals", "axis_soft_min", "axis_soft_max", "fill_opacity", "interval", "max_data_points",
)  # fmt: skip
"""Settings that the SDK calls the same."""


def dashboard(name: str) -> build.Dashboard:
    """The dashboard of boards/NAME.yaml. Raises BoardError with the file and the panel that is wrong."""
    board = read(f"boards/{name}.yaml", Board)
    made = _new(name, board.description)
    common = read("queries.yaml", dict[str, str])
    with within(f"boards/{name}.yaml"):
        for variable in board.variables:
            made.with_variable(_variable(variable))
        for annotation in board.annotations:
            made.annotation(_annotation(annotation, Queries(common, board.queries)))
    ids, y = count(1), 0
    for file in (name, *board.below):
        part = board if file == name else read(f"boards/{file}.yaml", Sections)
        queries = Queries(common, board.queries, part.queries)
        for section in part.sections:
            with within(f"boards/{file}.yaml: {section.title}"):
                y = _place(made, section, queries, ids, y)
    return made


def _place(made: build.Dashboard, section: Section, queries: Queries, ids: count[int], y: int) -> int:
    """Put a section below what is there; where the next one begins."""
    row = build.Row(section.title).id(next(ids)).collapsed(section.collapsed)
    made.with_row(row.grid_pos(model.GridPos(h=1, w=24, x=0, y=y)))
    holder = row if section.collapsed else made
    y += 1
    for line in section.lines:
        x = 0
        for width, spec in zip(line.widths(), line.panels, strict=True):
            place = model.GridPos(h=line.height, w=width, x=x, y=y)
            with within(spec.title):
                holder.with_panel(_panel(spec, queries).id(next(ids)).grid_pos(place))
            x += width
        y += line.height
    return y


def _panel(spec: Panel, queries: Queries) -> Any:
    kind, fill, form, unit = _KINDS[type(spec)]
    panel = kind().title(spec.title).description(spec.description).datasource(panels.DATASOURCE).no_value(spec.empty)
    panel.unit(getattr(spec, "unit", unit))
    at_end = isinstance(spec, Figure | Bars | Table) or (isinstance(spec, Trend) and spec.points)
    for place, (legend, query) in enumerate(spec.pairs()):
        target = (
            prometheus.Dataquery()
            .datasource(panels.DATASOURCE)
            .expr(queries.filled(query))
            .legend_format(legend or "__auto")
            .format(query_shape.PromQueryFormat(form))
            .ref_id(chr(ord("A") + place))
        )
        panel.with_target(target.instant() if at_end else target.range())
    fill(panel, spec)
    for setting in _AS_IN_THE_YAML:
        value = getattr(spec, setting, None)
        if value is not None:
            getattr(panel, setting)(value)
    if getattr(spec, "links_to_run", False):
        title, url = panels.run_link("__field.labels.run", "__field.labels.cluster")
        panel.data_links([build.DashboardLink(title).url(url)])
    for matcher, properties in spec.overrides.items():
        panels.override(panel, matcher, **properties)
    return panel


def _new(name: str, description: str) -> build.Dashboard:
    """A dashboard with what all have in common: data source, shared crosshair, links to the others, 30 s refresh."""
    made = (
        build.Dashboard(f"Megatron / {name}")
        .uid(f"megatron-{name}")
        .description(description)
        .tags(["megatron"])
        .editable()
        .timezone("browser")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .time("now-6h", "now")
        .refresh("30s")
        .with_variable(build.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for other in BOARDS:
        if other != name:
            made.link(
                build.DashboardLink(other)
                .type(model.DashboardLinkType.LINK)
                .url(f"/d/megatron-{other}?{_passed(name, other)}")
                .icon("dashboard")
                .include_vars(False)
                .keep_time(True)
            )
    return made


def _passed(here: str, there: str) -> str:
    """The variables that a link takes along: one run is no selection of a fleet, and All is no run."""
    names = ["datasource"]
    if "monitor" not in (here, there):
        names.append("cluster")
    if here in ("run", "fleet") and there == "compare":
        names.append("run")
    return "&".join(f"${{{name}:queryparam}}" for name in names)


def _variable(wanted: str | Variable) -> build.QueryVariable | build.CustomVariable:
    """A choice; that of a query is read again when the time changes."""
    if wanted == "runbook":
        return _runbook()
    spec: Variable = panels.named({one.name: one for one in shared().variables}, wanted, "variable")
    if spec.choices:
        first, *_ = spec.choices
        return (
            build.CustomVariable(spec.name)
            .label(spec.label)
            .description(spec.description)
            .values(", ".join(f"{text} : {value}" for text, value in spec.choices.items()))
            .current(model.VariableOption(selected=True, text=first, value=spec.choices[first]))
            .multi(False)
            .include_all(False)
        )
    made = (
        build.QueryVariable(spec.name)
        .label(spec.label)
        .description(spec.description)
        .datasource(panels.DATASOURCE)
        .query({"query": spec.query, "refId": f"variable-{spec.name}", "qryType": 1})
        .definition(spec.query)
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.NATURAL_ASC)
        .multi(spec.several)
        .include_all(spec.several)
    )
    if spec.several:
        made.current(model.VariableOption(selected=True, text="All", value="$__all"))
        if spec.foreign:
            made.all_value(".*")
    return made


def _runbook() -> build.CustomVariable:
    """Where the runbook lies: one address for all links, set as the rules' are."""
    address = Settings().runbook
    made = build.CustomVariable("runbook").values(address).multi(False).include_all(False)
    made.current(model.VariableOption(selected=True, text=address, value=address))
    return made.hide(model.VariableHide.HIDE_VARIABLE)


def _annotation(spec: Annotation, queries: Queries) -> build.AnnotationQuery:
    expression = queries.filled(spec.query)
    return (
        build.AnnotationQuery()
        .name(spec.name)
        .datasource(panels.DATASOURCE)
        .enable(spec.enabled)
        .hide(not spec.switch)
        .icon_color(spec.colour)
        .target(prometheus.Dataquery().expr(expression).ref_id("Anno").range())
        .expr(expression)
        .step("15s")
        .title_format(spec.title)
        .text_format(spec.text)
    )
