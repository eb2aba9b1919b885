"""*compare*: runs and topologies side by side, medians over the shown range; loss by iteration, samples or tokens."""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.builders import dashboard as build

from grafana.source import axes, breakdown
from grafana.source import queries as q
from grafana.source.layout import Line, Section, cluster, new, place, variable
from grafana.source.panels import (
    EFFECTIVE_STEPS,
    MFU_STEPS,
    SLOW_STEPS,
    Query,
    bars,
    chart,
    override,
    transformed,
)
from grafana.source.tables import LINK, TOPOLOGY, Column, limit_look, rows

RUN = q.MANY
BASE = 'cluster=~"$cluster", run="$baseline"'
NO_RUN = "Choose runs above"
EFFICIENCY_STEPS = ((None, "orange"), (0.8, "dark-yellow"), (0.95, "green"))
MODEL = "layers, hidden, heads, seq_len"
"""What two runs have in common whose TFLOP/s are a matter of scale alone."""


def over(metric: str, select: str = RUN, quantile: float = 0.5) -> str:
    """The median (or another quantile) of a run's gauge over the shown range."""
    return f"max by (cluster, run) (quantile_over_time({quantile}, {metric}{{{select}}}[$__range]))"


def last(metric: str) -> str:
    """The last value in the shown range: a run that has ended, or is reported no more, can be compared too."""
    return f"max by (cluster, run) (last_over_time({metric}{{{RUN}}}[$__range]))"


def _table() -> Any:
    return rows(
        "Runs",
        "One row a run, medians over the shown range. Read it by columns: what differs between the fast and the slow "
        "one? P95 far above the median is jitter. Click a run for its dashboard.",
        [
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
            Column("run", "Run", look=LINK, width=170),
            Column("cluster", "Cluster"),
            Column("A", "GPUs"),
            Column("B", "Batch"),
            Column("C", "s/iter", "none", look={"decimals": 2}),
            Column("D", "P95", "none", look={"decimals": 2}),
            Column("E", "TFLOP/s", "none", look={"decimals": 1}),
            Column("F", "Tok/s", "none", look={"decimals": 0}),
            Column("G", "MFU", "percentunit", look=limit_look(MFU_STEPS) | {"decimals": 1}),
            Column("H", "Effective", "percentunit", look=limit_look(EFFECTIVE_STEPS) | {"decimals": 1}),
            Column("I", "Loss", "none", look={"decimals": 3}),
            Column("J", "Val. loss", "none", look={"decimals": 3}),
        ],
        empty=NO_RUN,
        sort="Run",
        descending=False,
    )


def _topologies() -> Any:
    labels = {label: title for label, title in TOPOLOGY.items() if label != "world_size"}
    info = Query(f"max by (cluster, run, {', '.join(labels)}) (last_over_time(megatron_run_info{{{RUN}}}[$__range]))")
    short = {"mbs": "MBS", "seq_len": "Seq.", "dialect": "Program"}
    return rows(
        "Topologies and models",
        "One row a run and layout, from the arguments that its log prints; empty cells were not printed. Two rows of a run: "
        "it was restarted with other arguments. What differs between runs stands above.",
        [info],
        [
            Column("run", "Run", look=LINK, width=170),
            Column("cluster", "Cluster"),
            *(Column(label, short.get(label, title)) for label, title in labels.items()),
        ],
        hidden=("Value",),
        empty=NO_RUN,
        sort="Run",
        descending=False,
    )


def _alike(expression: str) -> str:
    """The expression for runs of the baseline's model."""
    info = f"max by (cluster, run, {MODEL}) (last_over_time(megatron_run_info{{{RUN}}}[$__range]))"
    base = f"max by ({MODEL}) (last_over_time(megatron_run_info{{{BASE}}}[$__range]))"
    return f"({expression} and on (cluster, run) ({info} and on ({MODEL}) {base}))"


def _differences() -> Any:
    """One row a setting that is not the same for all chosen runs, one column a run."""
    terms = []
    for label, title in TOPOLOGY.items():
        values = f'max by (cluster, run, {label}) (last_over_time(megatron_run_info{{{RUN}, {label}!=""}}[$__range]))'
        several = f"count(count by ({label}) ({values})) > 1"
        named = (
            f'label_replace(label_replace({values}, "value", "$1", "{label}", "(.+)"), "setting", "{title}", "", "")'
        )
        terms.append(f"max by (run, setting, value) ({named}) and on () ({several})")
    panel = rows(
        "What differs between them",
        "The settings that are not the same in all chosen runs, from the arguments that their logs print; `compare` of the "
        "command line also compares all arguments, the environment and the software. Empty: choose two runs or more.",
        [Query(" or ".join(terms))],
        [Column("setting", "Setting", width=110)],
        empty="One run, or nothing differs",
        pages=False,
    )
    panel.override_by_regexp("/.+/", override(noValue="–", custom__wrapHeaderText=True))
    return transformed(
        panel.transformations([]),
        ("organize", {"excludeByName": {"Time": True, "Value": True}, "indexByName": {}, "renameByName": {}}),
        (
            "groupingToMatrix",
            {"columnField": "run", "rowField": "setting", "valueField": "value", "emptyValue": "null"},
        ),
        ("organize", {"excludeByName": {}, "indexByName": {}, "renameByName": {"setting\\run": "Setting"}}),
    )


def _lines() -> list[Line]:
    tflops = over("megatron_tflops_per_gpu")
    return [
        Line(10, [
            (14, axes.learning_by_x("Loss by $x", "Training loss over the x axis chosen above, not over time: runs that "
                                    "started at different times lie on one another. The lower curve learns faster for the "
                                    "same work. The 12 longest runs; few points: show a longer range.",
                                    "megatron_lm_loss", RUN, y="loss", before="$loss")),
            (10, axes.by_scale(chart("Loss over time", "Training loss of each chosen run (the 12 longest). For runs that "
                       "began together; otherwise use the chart on the left.", "none",
                       Query(q.largest(f"$loss ({axes.smoothed('megatron_lm_loss', RUN)})", "megatron_iteration", RUN),
                             "{{run}} $scale"), empty=NO_RUN).decimals(2))),
        ]),
        Line(6, [
            (8, bars("Seconds per iteration, median", "Lower is faster, for the same model and batch size only. At "
                     "most 20 runs.", "s", Query(f"sort(topk(20, {over('megatron_iteration_seconds')}))", "{{run}}")).decimals(2)),
            (8, bars("TFLOP/s per GPU, median", "Higher is better, also between models: the share of the GPU that is "
                     "used. At most 20 runs.", "none",
                     Query(f"sort_desc(topk(20, {tflops}))", "{{run}}")).decimals(0)),
            (8, bars("Scaling efficiency", "TFLOP/s per GPU over the baseline run's, of runs of the same "
                     "model and sequence length alone. 100 % is perfect scaling; below 80 % the added GPUs wait for one "
                     "another: less pipeline, more data parallel, a larger batch.", "percentunit",
                     Query(f"sort_desc(topk(20, {_alike(tflops)} / on () group_left () max({over('megatron_tflops_per_gpu', BASE)})))",
                           "{{run}}"), steps=EFFICIENCY_STEPS,
                     empty="Choose a baseline whose TFLOP/s are known").decimals(1).max(1.2)),
        ]),
        Line(9, [
            (8, axes.plot("Scaling: TFLOP/s per GPU by GPUs", "One point a run of the baseline's model. A line that falls to the right is the price "
                      "of scale; a point below its neighbours is a layout to improve.",
                      axes.by_x(_alike(tflops), last("megatron_world_size"))._replace(instant=True),
                      "No run has GPUs and TFLOP/s", x="GPUs", y="TFLOP/s", lines=False)),
            (8, chart("Tokens per second and GPU", "While the runs are alive. Compare levels between runs of one model; a step down is a slowdown or another batch size.", "short",
                      Query(q.while_alive(q.largest(
                          f"{q.value('megatron_tokens_per_second', RUN)} / {q.value('megatron_world_size', RUN)}",
                          "megatron_tokens_per_second", RUN), RUN), "{{run}}")).min(0)),
            (8, chart("Time over normal", "Each run against its own learned normal, medians, at most 1.5. One run above the dashed lines is "
                      "its own trouble; all of them at once is the network or the file system.", "none",
                      Query(q.while_alive(q.largest(f"clamp_max(max by (cluster, run) (quantile_over_time(0.5, megatron_slowdown_ratio{{{RUN}}}[$__rate_interval])), 1.5)",
                                                    "megatron_slowdown_ratio", RUN), RUN), "{{run}}"),
                      steps=SLOW_STEPS).decimals(2).axis_soft_min(0.97).axis_soft_max(1.12)),
        ]),
    ]  # fmt: skip


def compare() -> build.Dashboard:
    """Runs side by side."""
    names = 'label_values(megatron_run_state{cluster=~"$cluster"}, run)'
    dashboard = (
        new("megatron-compare", "Runs and topologies side by side: layout, speed, scaling, loss for the same work.")
        .with_variable(cluster())
        .with_variable(variable("run", "Runs", names))
        .with_variable(variable("baseline", "Baseline", names, several=False,
                                description="The run that scaling efficiency is measured against"))
        .with_variable(axes.x_axis())
        .with_variable(axes.smoothing())
        .with_variable(axes.scale())
        .with_variable(axes.loss_as())
    )  # fmt: skip
    loss, speed, scaling = _lines()
    return place(dashboard, [
        Section("Fast and slow", [speed, Line(10, [(24, _table())]), Line(8, [(24, _differences())])]),
        Section("Loss", [loss]),
        Section("Scaling and speed over time", [scaling]),
        Section("Inside an iteration", [breakdown.of_runs(RUN)], collapsed=True),
        Section("Topologies and models", [Line(10, [(24, _topologies())])], collapsed=True),
    ])  # fmt: skip
