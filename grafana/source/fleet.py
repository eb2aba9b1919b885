"""*fleet*: every run at a glance, what needs a person first, and one row a run that links down."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as build

from grafana.source import queries as q
from grafana.source import troubles
from grafana.source.layout import Line, Section, annotation, cluster, new, place, runbook, variable
from grafana.source.panels import (
    EFFECTIVE_STEPS,
    MFU_STEPS,
    RISK_STEPS,
    SLOW_STEPS,
    Query,
    bars,
    chart,
    figure,
    run_link,
    state_colours,
    state_mapping,
    timeline,
)
from grafana.source.tables import LINK, STATE, Column, limit_look, rows

RUN = q.MANY
MOST_OVER = 1.5
"""Of the axis of times over normal: first iterations take twice the normal, and would flatten all others."""
CALM = ((None, "green"), (1.0, "red"))


def _count(states: str) -> str:
    return f"count({q.in_state(RUN, states)}) or vector(0)"


def _now() -> list[Line]:
    ratio, gpus = q.value("megatron_effective_training_time_ratio", RUN), q.value("megatron_world_size", RUN)
    return [
        Line(3, [
            (6, figure("Running", "Runs that start, train, evaluate or save. Fewer than you launched is bad: see the "
                       "table below for the others.", "none", _count(q.ALIVE), steps=((None, "green"),))),
            (6, figure("Hung", "Runs without progress for longer than their own budget of silence. Any is bad: GPUs are "
                       "paid for and idle. Open the run, read its last lines, dump stacks, then restart it.", "none",
                       _count("hung"), steps=((None, "green"), (1.0, "orange")), background=True)),
            (6, figure("Crashed", "Runs whose last attempt ended in a failure and that no launch has followed. Any is "
                       "bad: see its cause in the tables, fix it, launch again.", "none", _count("crashed"), steps=CALM,
                       background=True)),
            (6, figure("Not seen", "Runs whose log no daemon can read or that were silent when first seen (lost), and runs "
                       "that no daemon shows any more (unwatched). Above 0 you are blind there: open the "
                       "dashboard monitor.", "none",
                       f"({_count('lost')}) + (count({q.unwatched(RUN)}) or vector(0))",
                       steps=((None, "green"), (1.0, "dark-yellow")), background=True)),
        ]),
        Line(3, [
            (6, figure("Critical", "Incidents of severity critical that fire now. Above 0 somebody should be "
                       "working on it: the table below shows what, where and what to do.", "none",
                       f'count(max by (cluster, run, incident) (megatron_incident{{{RUN}, severity="critical"}}) == 1) or vector(0)',
                       steps=CALM, background=True)),
            (6, figure("Idle GPUs", "GPUs of runs that are hung, crashed or lost now, from the world size in their "
                       "logs. They cost and do nothing: start with the largest.", "none",
                       f"sum({gpus} and on (cluster, run) {q.in_state(RUN, 'hung|crashed|lost')}) or vector(0)", steps=CALM)),
            (6, figure("Tokens/s", "Tokens per second of all runs that are alive. A step down is a run that "
                       "stopped or slowed: see Throughput below.", "short",
                       f"sum({q.while_alive(q.value('megatron_tokens_per_second', RUN), RUN)})").decimals(1)),
            (6, figure("Effective time", "Productive time over wall time since each run's first line, weighted "
                       "by GPUs where logs print them. Below 95 % restarts, hangs and evaluation take too much time: see "
                       "Lost time.", "percentunit",
                       f"sum({ratio} * on (cluster, run) {gpus}) / sum({gpus} and on (cluster, run) {ratio})",
                       steps=EFFECTIVE_STEPS).decimals(1)),
        ]),
        Line(9, [(24, troubles.what(RUN, several=True))]),
        Line(9, [(24, troubles.advised(RUN, several=True))]),
    ]  # fmt: skip


def _runs() -> list[Line]:
    code = q.state_or_unwatched(RUN)
    bad = f'max by (cluster, run) (megatron_run_state{{{RUN}, state=~"hung|crashed|lost"}} @ end()) == 1'
    worst = f"({bad} or {q.unwatched(RUN, ' @ end()')})"
    states = timeline(
        "State of each run",
        "What each run did over the shown range, one band a run, those that are bad now first. Orange (hung), red (crashed), "
        "yellow (lost) and pink (no daemon shows it) are bad. Click a band for the run.",
        Query(f"{code} and on (cluster, run) {worst}", "{{run}}"),
        Query(f"{code} unless on (cluster, run) {worst}", "{{run}}"),
        mappings=state_mapping(unwatched=True),
        empty="Nothing reported",
    ).data_links(_links())
    return [Line(9, [(24, states)]), Line(11, [(24, _table())])]


def _links() -> list[build.DashboardLink]:
    link = run_link("__field.labels.run", "__field.labels.cluster")[0]
    return [build.DashboardLink(link["title"]).url(link["url"])]


def _table() -> object:
    def of(metric: str) -> Query:
        return Query(q.value(metric, RUN))

    return rows(
        "Runs",
        "One row a run. Bad: a state in orange, red or yellow; a time over normal above 1.02; little effective time; "
        "hours at risk (no checkpoint). An empty cell is a value that this run's log does not print. Click the run.",
        [
            Query(q.state_or_unwatched(RUN)),
            of("megatron_world_size"),
            Query(q.while_alive(f"({q.value('megatron_eta_timestamp_seconds', RUN)} - time()) > 0", RUN)),
            of("megatron_lm_loss"),
            of("megatron_iteration_seconds"),
            of("megatron_slowdown_ratio"),
            of("megatron_mfu_ratio"),
            of("megatron_effective_training_time_ratio"),
            of("megatron_at_risk_seconds"),
            of("megatron_iteration"),
        ],
        [
            Column("A", "State", width=95, look=STATE | {"noValue": "gone"}),
            Column("run", "Run", look=LINK, width=170),
            Column("cluster", "Cluster"),
            Column("B", "GPUs"),
            Column("J", "Iteration", "locale"),
            Column("C", "Left", "s", look={"decimals": 1}),
            Column("D", "Loss", "none", look={"decimals": 3}),
            Column("E", "Time", "s", look={"decimals": 2}),
            Column("F", "× normal", "none", look=limit_look(SLOW_STEPS) | {"decimals": 3}),
            Column("G", "MFU", "percentunit", look=limit_look(MFU_STEPS) | {"decimals": 1}),
            Column("H", "Effective", "percentunit", look=limit_look(EFFECTIVE_STEPS) | {"decimals": 1}),
            Column("I", "At risk", "s", width=90, look=limit_look(RISK_STEPS) | {"decimals": 1}),
        ],
        empty="No run is monitored: start megatron-monitor on a log, and let Prometheus scrape it",
        sort="State",
    )


def _throughput() -> list[Line]:
    tokens = q.while_alive(q.value("megatron_tokens_per_second", RUN), RUN)
    over = f"max by (cluster, run) (quantile_over_time(0.5, megatron_slowdown_ratio{{{RUN}}}[$__rate_interval]))"
    slow = q.while_alive(f"clamp_max({over}, {MOST_OVER})", RUN)
    return [
        Line(8, [
            (12, chart("Tokens per second, the 12 largest runs", "Stacked tokens per second of runs that are alive. A "
                       "layer that ends is a run that stopped; a sagging one is slow.", "short",
                       Query(q.largest(tokens, "megatron_tokens_per_second", RUN), "{{run}}"), stacked=True,
                       empty="No run has tokens per second").min(0).data_links(_links())),
            (12, chart("Time per iteration over normal, the 12 worst runs", "Time per iteration over what the run "
                       "learned as normal, over that of before a slowdown while one stands; the median of each interval, at most 1.5. 1 is normal; above the dashed lines (2 %, 10 %) a node, a link or the "
                       "file system got slower: open the run, look at Speed.", "none",
                       Query(q.largest(slow, "megatron_slowdown_ratio", RUN), "{{run}}"), steps=SLOW_STEPS,
                       empty="No run has learned its normal yet (three iterations)")
             .axis_soft_min(0.97).axis_soft_max(1.12).decimals(2).data_links(_links())),
        ]),
    ]  # fmt: skip


def _lost() -> list[Line]:
    return [
        Line(8, [
            (8, bars("GPU-hours lost, by cause", "Training time that had to be computed again in the shown "
                     "range, times the run's GPUs. The longest bar is the cause to remove first.", "none",
                     Query(f"sort_desc(sum by (cause) ({q.grown('megatron_lost_seconds_total', RUN, 'cause')} * on (cluster, run) "
                           f"group_left () {q.value('megatron_world_size', RUN)}) / 3600 > 0)", "{{cause}}"),
                     steps=((None, "orange"),), empty="Nothing was lost to restarts in this range")),
            (8, bars("Failures, by cause", "Attempts that ended in a failure in the shown range. Hardware causes (ecc, "
                     "nccl, node_failure) that repeat on a run call for another node.", "none",
                     Query(f"sort_desc(sum by (failure) ({q.grown('megatron_failures_total', RUN, 'failure')}) > 0)",
                           "{{failure}}"),
                     steps=((None, "red"),), empty="No attempt failed in this range").decimals(0)),
            (8, bars("Restarts, the 12 worst runs", "Launches after the first in the shown range. Many in a row are a "
                     "crash loop: stop it and read the cause.", "none",
                     Query(f"sort_desc(topk(12, {q.increase('megatron_restarts_total', RUN)} > 0))", "{{run}}"),
                     steps=((None, "dark-yellow"), (3.0, "orange")), empty="No run was restarted in this range").decimals(0)),
        ]),
        Line(7, [
            (12, state_colours(chart("Runs by state", "How many runs are in which state. Watch for orange, red and yellow layers that "
                       "stay.", "none",
                       Query(f"sum by (state) ({q.value('megatron_run_state', RUN, 'state')}) > 0", "{{state}}"),
                       steps_line=True,
                       stacked=True, empty="No run is monitored").min(0).decimals(0))),
            (12, bars("Incidents, by kind", "Incidents that have fired in the shown range, over all runs. A kind that "
                      "leads here is the fleet's habit: treat the cause once.", "none",
                      Query(f"sort_desc(sum by (incident) ({q.grown('megatron_incidents_total', RUN, 'incident')}) > 0)",
                            "{{incident}}"),
                      steps=((None, "dark-yellow"),), empty="No incident has fired in this range").decimals(0)),
        ]),
    ]  # fmt: skip


def fleet() -> build.Dashboard:
    """All runs."""
    dashboard = (
        new("megatron-fleet", "All training runs: which are broken, what each does, what was lost. Start here.")
        .with_variable(cluster())
        .with_variable(runbook())
        .with_variable(variable("run", "Run", 'label_values(megatron_run_state{cluster=~"$cluster"}, run)'))
        .annotation(annotation("Critical incidents", "red",
                               f'max by (run, incident) (megatron_incident{{{RUN}, severity="critical"}}) == 1',
                               "{{incident}}", "{{run}}", enabled=False))
        .annotation(annotation("Restarts", "blue",
                               f"max by (run) (increase(megatron_restarts_total{{{RUN}}}[$__rate_interval])) > 0",
                               "restart", "{{run}}", enabled=False))
    )  # fmt: skip
    return place(dashboard, [
        Section("Now", _now()),
        Section("Runs", _runs()),
        Section("Throughput", _throughput()),
        Section("Lost time, failures, incidents", _lost(), collapsed=True),
    ])  # fmt: skip
