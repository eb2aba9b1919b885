"""Rows of panels on Grafana's grid of 24 columns, with stable ids; what all four dashboards have in common."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders import prometheus
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as model

from deploy.source.settings import Settings

RUNBOOK = "runbook"
"""The variable that holds the runbook's address."""
DATASOURCE = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
TAG = "megatron"
TITLES = {
    "megatron-fleet": "Megatron / fleet",
    "megatron-run": "Megatron / run",
    "megatron-compare": "Megatron / compare",
    "megatron-monitor": "Megatron / monitor",
}


@dataclass
class Line:
    """Panels side by side: height in grid units, then (width, panel) from left to right, 24 columns in all."""

    height: int
    panels: list[tuple[int, Any]]


@dataclass
class Section:
    """A row with a title. A collapsed one costs no query until it is opened."""

    title: str
    lines: list[Line]
    collapsed: bool = False


def place(dashboard: build.Dashboard, sections: list[Section]) -> build.Dashboard:
    """Put the sections below one another."""
    ids, y = count(1), 0
    for section in sections:
        row = build.Row(section.title).id(next(ids)).collapsed(section.collapsed)
        dashboard.with_row(row.grid_pos(model.GridPos(h=1, w=24, x=0, y=y)))
        y += 1
        holder = row if section.collapsed else dashboard
        for line in section.lines:
            x = 0
            for width, panel in line.panels:
                holder.with_panel(panel.id(next(ids)).grid_pos(model.GridPos(h=line.height, w=width, x=x, y=y)))
                x += width
            y += line.height
    return dashboard


def new(uid: str, description: str) -> build.Dashboard:
    """A dashboard with what all four share: data source, shared crosshair, links to the others, 30 s refresh."""
    dashboard = (
        build.Dashboard(TITLES[uid])
        .uid(uid)
        .description(description)
        .tags([TAG])
        .editable()
        .timezone("browser")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .time("now-6h", "now")
        .refresh("30s")
        .with_variable(build.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for other, title in TITLES.items():
        if other != uid:
            dashboard.link(
                build.DashboardLink(title.removeprefix("Megatron / "))
                .type(model.DashboardLinkType.LINK)
                .url(f"/d/{other}?{_passed(uid, other)}")
                .icon("dashboard")
                .include_vars(False)
                .keep_time(True)
            )
    return dashboard


def _passed(here: str, there: str) -> str:
    """The variables that a link takes along: one run is no selection of a fleet, and All is no run."""
    names = ["datasource"]
    if "megatron-monitor" not in (here, there):
        names.append("cluster")
    if (here, there) in (("megatron-run", "megatron-compare"), ("megatron-fleet", "megatron-compare")):
        names.append("run")
    return "&".join(f"${{{name}:queryparam}}" for name in names)


def variable(
    name: str, label: str, query: str, *, several: bool = True, foreign: bool = True, description: str = ""
) -> build.QueryVariable:
    """A variable that is read again when the time changes. With `several` it has All, which also matches a label
    that the site does not set; without `foreign` only what the query found.
    """
    made = (
        build.QueryVariable(name)
        .label(label)
        .description(description)
        .datasource(DATASOURCE)
        .query({"query": query, "refId": f"variable-{name}", "qryType": 1})
        .definition(query)
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.NATURAL_ASC)
        .multi(several)
        .include_all(several)
    )
    if several:
        made.current(model.VariableOption(selected=True, text="All", value="$__all"))
        if foreign:
            made.all_value(".*")
    return made


def runbook() -> build.CustomVariable:
    """Where the runbook lies: one address for all links, set as the rules' are."""
    address = Settings().runbook
    made = build.CustomVariable(RUNBOOK).values(address).multi(False).include_all(False)
    made.current(model.VariableOption(selected=True, text=address, value=address))
    return made.hide(model.VariableHide.HIDE_VARIABLE)


def cluster() -> build.QueryVariable:
    """`cluster` is a label that a site may add while scraping; without it there is nothing to choose."""
    return variable(
        "cluster",
        "Cluster",
        "label_values(megatron_run_state, cluster)",
        description="A label that your scrape configuration may add; leave it at All where there is none",
    )


def annotation(
    name: str, colour: str, expression: str, title: str, text: str, enabled: bool = True, switch: bool = True
) -> Any:
    """Vertical lines (or regions, while the expression lasts) on every chart of the dashboard; `switch`: a person may turn
    them off and on.
    """
    return (
        build.AnnotationQuery()
        .name(name)
        .datasource(DATASOURCE)
        .enable(enabled)
        .hide(not switch)
        .icon_color(colour)
        .target(prometheus.Dataquery().expr(expression).ref_id("Anno").range())
        .expr(expression)
        .step("60s")
        .title_format(title)
        .text_format(text)
    )
