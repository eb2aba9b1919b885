"""Axes that a person chooses: what x is, how much is smoothed, logarithmic or not, loss or perplexity."""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders import trend
from grafana_foundation_sdk.models import common as shape
from grafana_foundation_sdk.models import dashboard as model

from grafana.source import queries as q
from grafana.source.layout import DATASOURCE
from grafana.source.panels import Query, override, palette, plain, target, transformed

X_AXES = ("iteration", "samples", "tokens", "GPU-hours")
"""What the variable offers; its value is the place."""
LINEAR, LOG = "·", "(log)"
ENDS = (LINEAR, LOG)
"""Behind the names of series while the axis is to be logarithmic: a panel's overrides see names, not variables."""


def _choice(name: str, label: str, values: dict[str, str], description: str) -> build.CustomVariable:
    first = next(iter(values))
    return (
        build.CustomVariable(name)
        .label(label)
        .description(description)
        .values(", ".join(f"{text} : {value}" for text, value in values.items()))
        .current(model.VariableOption(selected=True, text=first, value=values[first]))
        .multi(False)
        .include_all(False)
    )


def x_axis() -> build.CustomVariable:
    """`$x`."""
    return _choice("x", "X axis", {name: str(place) for place, name in enumerate(X_AXES)},
                   "Of the charts that are not over time: two runs lie on one another where they did the same work")  # fmt: skip


def smoothing() -> build.CustomVariable:
    """`$smoothing`, a range."""
    return _choice("smoothing", "Smoothing", {"none": "1s", "2 min": "2m", "10 min": "10m", "1 h": "1h"},
                   "Mean of so much time before each point, of loss and gradient norm")  # fmt: skip


def scale() -> build.CustomVariable:
    """`$scale`, the end of the legends of `by_scale`."""
    return _choice("scale", "Scale", {"linear": LINEAR, "log": LOG}, "Of loss and of time per iteration")


def loss_as() -> build.CustomVariable:
    """`$loss`, what stands before the loss in an expression."""
    return _choice("loss", "Loss as", {"loss": "1 *", "perplexity": "exp"}, "Perplexity is e to the loss of a token")


def by_scale(panel: Any) -> Any:
    """A chart whose legends end in `$scale` obeys the variable."""
    return panel.override_by_regexp(
        f"/{LOG.replace('(', '[(]').replace(')', '[)]')}$/",
        override(custom__scaleDistribution={"type": "log", "log": 10}),
    )


def smoothed(metric: str, select: str, *labels: str) -> str:
    """The metric of each run, its mean over `$smoothing`; where the run has ended there is none."""
    series = f"{metric}{{{select}}}"
    return f"{q.by(*labels)} (avg_over_time({series}[$smoothing]) and {series} or {series})"


def work(select: str) -> str:
    """What each run has done, as the variable `$x` counts it."""
    tokens = (
        f"{q.value('megatron_consumed_tokens', select)} or {q.value('megatron_consumed_samples', select)} * "
        f"{q.value('megatron_tokens_per_second', select)} / {q.value('megatron_samples_per_second', select)}"
    )
    hours = f"{q.value('megatron_gpu_seconds_total', select)} / 3600"
    ways = [q.value("megatron_iteration", select), q.value("megatron_consumed_samples", select), tokens, hours]
    few = [q.largest(f"({way})", "megatron_iteration", select) for way in ways]
    return " or ".join(f"({way} and on () (vector($x) == {place}))" for place, way in enumerate(few))


def by_x(values: str, x: str) -> Query:
    """Rows with run, x and value: count_values turns the x value into a label, so that a row holds both."""
    pairs = f'({values}) * on (cluster, run) group_right () count_values by (cluster, run) ("x", {x})'
    return Query(pairs, format="table")


def plot(title: str, text: str, query: Query, empty: str, *, x: str, y: str, lines: bool) -> Any:
    """Runs over something that is not time: the rows of `by_x`, parted by run and joined by x, one column a run."""
    panel = trend.Panel().title(title).description(text).datasource(DATASOURCE).no_value(empty).unit("short")
    panel.with_target(target(query, 0))
    chain: list[tuple[str, dict[str, Any]]] = [
        ("convertFieldType", {"conversions": [{"targetField": "x", "destinationType": "number"}], "fields": {}}),
        ("sortBy", {"fields": {}, "sort": [{"field": "run"}]}),  # so that a run has the colour of the chart beside it
        ("organize", {"excludeByName": {"Time": True, "cluster": True},
                      "indexByName": {"x": 0, "Value": 1, "run": 2},
                      "renameByName": {"Value": y}}),
        ("partitionByValues", {"fields": ["run"], "keepFields": False, "naming": {"asLabels": True}}),
        ("joinByField", {"byField": "x", "mode": "outer"}),
    ]  # fmt: skip
    transformed(plain(panel), *chain).color_scheme(palette()).axis_label(y)
    panel.draw_style(shape.GraphDrawStyle.LINE if lines else shape.GraphDrawStyle.POINTS).line_width(2)
    panel.show_points(shape.VisibilityMode.NEVER if lines else shape.VisibilityMode.ALWAYS).point_size(10)
    panel.span_nulls(lines).display_name("${__field.labels.run}")
    return panel.override_by_name("x", override(custom__axisLabel=x, displayName=x))


def learning_by_x(title: str, text: str, metric: str, select: str, *, y: str, before: str = "") -> Any:
    """A figure of learning over the work that was done, of the 12 longest runs."""
    few = q.largest(f"{before} ({smoothed(metric, select)})", "megatron_iteration", select)
    empty = "No run has this x axis: choose another"
    return plot(title, text, by_x(few, work(select)), empty, x="${x:text}", y=y, lines=True).max_data_points(250)
