"""*compare*: runs and topologies side by side, medians over the shown range; loss by iteration, samples or tokens."""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.builders import common, trend
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.models import common as shape
from grafana_foundation_sdk.models import dashboard as model

from grafana.source import breakdown
from grafana.source import queries as q
from grafana.source.layout import DATASOURCE, Line, Section, cluster, new, place, variable
from grafana.source.panels import (
    EFFECTIVE_STEPS,
    MFU_STEPS,
    QUIET,
    SLOW_STEPS,
    Query,
    bars,
    chart,
    limits,
    override,
    palette,
    target,
)
from grafana.source.tables import LINK, Column, gauge_look, limit_look, rows

RUN = q.MANY
BASE = 'cluster=~"$cluster", run="$baseline"'
NO_RUN = "Choose runs above"
X_AXES = ("iteration", "samples", "tokens")
"""What the variable offers; its value is the place."""
EFFICIENCY_STEPS = ((None, "orange"), (0.8, "dark-yellow"), (0.95, "green"))


def over(metric: str, select: str = RUN, quantile: float = 0.5) -> str:
    """The median (or another quantile) of a run's gauge over the shown range."""
    return f"max by (cluster, run) (quantile_over_time({quantile}, {metric}{{{select}}}[$__range]))"


def last(metric: str) -> str:
    """The last value in the shown range: a run that has ended, or is reported no more, can be compared too."""
    return f"max by (cluster, run) (last_over_time({metric}{{{RUN}}}[$__range]))"


def _table() -> Any:
    labels = {"tp": ("TP", 45), "pp": ("PP", 45), "dp": ("DP", 45), "mbs": ("MBS", 52), "layers": ("Layers", 62),
              "hidden": ("Hidden", 68), "seq_len": ("Sequence", 76), "dtype": ("Type", 55),
              "zero_stage": ("ZeRO", 56)}  # fmt: skip
    info = Query(f"max by (cluster, run, {', '.join(labels)}) (last_over_time(megatron_run_info{{{RUN}}}[$__range]))")
    return rows(
        "Runs and their topologies",
        "One row a run, medians over the shown range. Read it by columns: what differs between the fast and the slow "
        "one? P95 far above the median is jitter. Click a run for its dashboard.",
        [
            info,
            Query(last("megatron_world_size")),
            Query(last("megatron_global_batch_size")),
            Query(over("megatron_iteration_seconds")),
            Query(over("megatron_iteration_seconds", quantile=0.95)),
            Query(over("megatron_tflops_per_gpu")),
            Query(f"{over('megatron_tokens_per_second')} / {last('megatron_world_size')}"),
            Query(over("megatron_mfu_ratio")),
            Query(last("megatron_effective_training_time_ratio")),
            Query(last("megatron_lm_loss")),
            Query(last("megatron_validation_loss")),
        ],
        [
            Column("run", "Run", look=LINK, width=160),
            Column("cluster", "Cluster"),
            Column("B", "GPUs", width=60),
            *(Column(label, title, width=width) for label, (title, width) in labels.items()),
            Column("C", "GBS", width=55),
            Column("D", "s/iteration", "none", 85, {"decimals": 2}),
            Column("E", "P95", "none", 60, {"decimals": 2}),
            Column("F", "TFLOP/s", "none", 80, {"decimals": 1}),
            Column("G", "Tok/s/GPU", "none", 85, {"decimals": 0}),
            Column("H", "MFU", "percentunit", 95, gauge_look(MFU_STEPS)),
            Column("I", "Effective", "percentunit", 80, limit_look(EFFECTIVE_STEPS) | {"decimals": 1}),
            Column("J", "Loss", "none", 65, {"decimals": 3}),
            Column("K", "Val. loss", "none", 75, {"decimals": 3}),
        ],
        hidden=("Value #A",),
        empty=NO_RUN,
        sort="Run",
        descending=False,
    )  # fmt: skip


def by_x(values: str, x: str) -> Query:
    """Rows with run, x and value: count_values turns the x value into a label, so that a row holds both."""
    pairs = f'({values}) * on (cluster, run) group_right () count_values by (cluster, run) ("x", {x})'
    return Query(pairs, format="table")


def _plot(title: str, text: str, query: Query, empty: str, *, x: str, y: str, lines: bool) -> Any:
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
    for name, options in chain:
        panel.with_transformation(model.DataTransformerConfig(id_val=name, options=options))
    panel.thresholds(limits(((None, QUIET),))).color_scheme(palette()).axis_label(y)
    panel.draw_style(shape.GraphDrawStyle.LINE if lines else shape.GraphDrawStyle.POINTS).line_width(2)
    panel.show_points(shape.VisibilityMode.NEVER if lines else shape.VisibilityMode.ALWAYS).point_size(10)
    panel.span_nulls(lines).display_name("${__field.labels.run}")
    panel.override_by_name("x", override(custom__axisLabel=x, displayName=x))
    panel.legend(
        common.VizLegendOptions()
        .show_legend(True)
        .display_mode(shape.LegendDisplayMode.LIST)
        .placement(shape.LegendPlacement.BOTTOM)
        .calcs([])
    )
    panel.tooltip(common.VizTooltipOptions().mode(shape.TooltipDisplayMode.SINGLE).sort(shape.SortOrder.NONE))
    return panel


def _loss_by_x() -> Any:
    tokens = (
        f"{q.value('megatron_consumed_tokens', RUN)} or {q.value('megatron_consumed_samples', RUN)} * "
        f"{q.value('megatron_tokens_per_second', RUN)} / {q.value('megatron_samples_per_second', RUN)}"
    )
    ways = [q.value("megatron_iteration", RUN), q.value("megatron_consumed_samples", RUN), tokens]
    few_ways = [q.largest(f"({way})", "megatron_iteration", RUN) for way in ways]
    x = " or ".join(f"({way} and on () (vector($x) == {place_}))" for place_, way in enumerate(few_ways))
    few = q.largest(q.value("megatron_lm_loss", RUN), "megatron_iteration", RUN)
    panel = _plot(
        "Loss by $x",
        "Training loss over the x axis chosen above, not over time: runs that started at different times lie on one "
        "another. The lower curve learns faster for the same work. The 12 longest runs; few points: show a longer range.",
        by_x(few, x),
        "No run has this x axis: choose another",
        x="${x:text}",
        y="loss",
        lines=True,
    )
    return panel.max_data_points(250)


def _lines() -> list[Line]:
    tflops = over("megatron_tflops_per_gpu")
    return [
        Line(10, [
            (14, _loss_by_x()),
            (10, chart("Loss over time", "Training loss of each chosen run (the 12 longest). For runs that "
                       "began together; otherwise use the chart on the left.", "none",
                       Query(q.largest(q.value("megatron_lm_loss", RUN), "megatron_iteration", RUN),
                             "{{run}}"), decimals=2, empty=NO_RUN)),
        ]),
        Line(6, [
            (8, bars("Seconds per iteration, median", "Lower is faster, for the same model and batch size only. At "
                     "most 20 runs.", "s", Query(f"sort(topk(20, {over('megatron_iteration_seconds')}))", "{{run}}",
                                                 instant=True), decimals=2)),
            (8, bars("TFLOP/s per GPU, median", "Higher is better, also between models: the share of the GPU that is "
                     "used. At most 20 runs.", "none",
                     Query(f"sort_desc(topk(20, {tflops}))", "{{run}}", instant=True), decimals=1)),
            (8, bars("Scaling efficiency against the baseline", "TFLOP/s per GPU over the baseline run's. 100 % is "
                     "perfect scaling; below 80 % the added GPUs wait for one another: less pipeline, more data "
                     "parallel, a larger batch.", "percentunit",
                     Query(f"sort_desc(topk(20, {tflops} / on () group_left () max({over('megatron_tflops_per_gpu', BASE)})))",
                           "{{run}}", instant=True), steps=EFFICIENCY_STEPS, decimals=1, maximum=1.2,
                     empty="Choose a baseline whose TFLOP/s are known")),
        ]),
        Line(9, [
            (8, _plot("Scaling: TFLOP/s per GPU by GPUs", "One point a run. A line that falls to the right is the price "
                      "of scale; a point below its neighbours is a layout to improve.",
                      by_x(tflops, last("megatron_world_size"))._replace(instant=True),
                      "No run has GPUs and TFLOP/s", x="GPUs", y="TFLOP/s", lines=False)),
            (8, chart("Tokens per second and GPU", "While the runs are alive. Compare levels between runs of one model; a step down is a slowdown or another batch size.", "short",
                      Query(q.while_alive(q.largest(
                          f"{q.value('megatron_tokens_per_second', RUN)} / {q.value('megatron_world_size', RUN)}",
                          "megatron_tokens_per_second", RUN), RUN), "{{run}}"), minimum=0)),
            (8, chart("Time over normal", "Each run against its own learned normal. One run above the dashed lines is "
                      "its own trouble; all of them at once is the network or the file system.", "none",
                      Query(q.while_alive(q.largest(q.value("megatron_slowdown_ratio", RUN),
                                                    "megatron_slowdown_ratio", RUN), RUN), "{{run}}"),
                      steps=SLOW_STEPS, decimals=2)),
        ]),
    ]  # fmt: skip


def compare() -> build.Dashboard:
    """Runs side by side."""
    axis = (
        build.CustomVariable("x")
        .label("X axis of loss")
        .values(", ".join(f"{name} : {place_}" for place_, name in enumerate(X_AXES)))
        .current(model.VariableOption(selected=True, text="iteration", value="0"))
        .multi(False)
        .include_all(False)
    )
    names = 'label_values(megatron_run_state{cluster=~"$cluster"}, run)'
    dashboard = (
        new("megatron-compare", "Runs and topologies side by side: layout, speed, scaling, loss for the same work.")
        .with_variable(cluster())
        .with_variable(variable("run", "Runs", names))
        .with_variable(variable("baseline", "Baseline", names, several=False,
                                description="The run that scaling efficiency is measured against"))
        .with_variable(axis)
    )  # fmt: skip
    loss, speed, scaling = _lines()
    return place(dashboard, [
        Section("Fast and slow", [speed, Line(10, [(24, _table())])]),
        Section("Loss", [loss]),
        Section("Scaling and speed over time", [scaling]),
        Section("Inside an iteration", [breakdown.of_runs(RUN)], collapsed=True),
    ])  # fmt: skip
