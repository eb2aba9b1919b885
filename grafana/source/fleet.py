"""*fleet*: every run at a glance, what needs a person first, and one row a run that links down."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as build

from grafana.source import queries as q
from grafana.source.layout import Line, Section, annotation, cluster, new, place, variable
from grafana.source.panels import (
    EFFECTIVE_STEPS,
    MFU_STEPS,
    RISK_STEPS,
    SLOW_STEPS,
    Query,
    bars,
    chart,
    number,
    run_link,
    state_colours,
    state_mapping,
    timeline,
)
from grafana.source.tables import LINK, SEVERITY, STATE, Column, gauge_look, limit_look, rows

RUN = q.MANY
CALM = ((None, "green"), (1.0, "red"))
GONE = (
    f'(max by (cluster, run) (last_over_time(megatron_run_state{{{RUN}, state!="finished"}}[$__range]) == 1)'
    f" unless on (cluster, run) max by (cluster, run) (megatron_run_state{{{RUN}}}))"
)
"""Runs seen in the shown range, not finished, that no daemon reports now."""


def _count(states: str) -> str:
    return f"count({q.in_state(RUN, states)}) or vector(0)"


def _now() -> list[Line]:
    return [
        Line(4, [
            (3, number("Running", "Runs that start, train, evaluate or save. Fewer than you launched is bad: see the "
                       "table below for the others.", "none", Query(_count(q.ALIVE), instant=True),
                       steps=((None, "green"),))),
            (3, number("Hung", "Runs without progress for longer than their own budget of silence. Any is bad: GPUs are "
                       "paid for and idle. Open the run, read its last lines, dump stacks, then restart it.", "none",
                       Query(_count("hung"), instant=True), steps=((None, "green"), (1.0, "orange")), background=True)),
            (3, number("Crashed", "Runs whose last attempt ended in a failure and that no launch has followed. Any is "
                       "bad: see its cause in the tables, fix it, launch again.", "none",
                       Query(_count("crashed"), instant=True), steps=CALM, background=True)),
            (3, number("Not seen", "Runs whose log no daemon can read now (lost), and runs seen in the shown range that "
                       "no daemon reports any more, the finished ones left out. Above 0 you are blind there: open the "
                       "dashboard monitor.", "none", Query(f"({_count('lost')}) + (count({GONE}) or vector(0))", instant=True),
                       steps=((None, "green"), (1.0, "dark-yellow")), background=True)),
            (3, number("Critical", "Incidents of severity critical that fire now. Above 0 somebody should be "
                       "working on it: the table on the right shows what and where.", "none",
                       Query(f"count({q.open_incidents(RUN, 'incident')} == 3) or vector(0)", instant=True),
                       steps=CALM, background=True)),
            (3, number("Idle GPUs", "GPUs of runs that are hung or crashed now, from the world size in their "
                       "logs. They cost and do nothing: start with the largest.", "none",
                       Query(f"sum({q.value('megatron_world_size', RUN)} and on (cluster, run) "
                             f"{q.in_state(RUN, 'hung|crashed')}) or vector(0)", instant=True), steps=CALM)),
            (3, number("Tokens/s", "Tokens per second of all runs that are alive. A step down is a run that "
                       "stopped or slowed: see Throughput below.", "short",
                       Query(f"sum({q.while_alive(q.value('megatron_tokens_per_second', RUN), RUN)})", instant=True),
                       decimals=1)),
            (3, number("Effective time", "Productive time over wall time since each run's first line, weighted "
                       "by GPUs where logs print them. Below 95 % restarts, hangs and evaluation take too much time: see "
                       "Lost time.", "percentunit",
                       Query(f"sum({q.value('megatron_effective_training_time_ratio', RUN)} * on (cluster, run) "
                             f"{q.value('megatron_world_size', RUN)}) / sum({q.value('megatron_world_size', RUN)} and "
                             f"on (cluster, run) {q.value('megatron_effective_training_time_ratio', RUN)})",
                             instant=True), steps=EFFECTIVE_STEPS, decimals=1)),
        ]),
        Line(8, [(24, _attention())]),
    ]  # fmt: skip


def _attention() -> object:
    on = "on (cluster, run)"
    incidents = q.open_incidents(RUN, "incident")
    unit = f"({incidents}) ^ 0"
    progress = q.value("megatron_last_progress_timestamp_seconds", RUN)
    firing = (
        f"max by (cluster, run, incident) (count_over_time((megatron_incident{{{RUN}}} == 1)[12h:2m])) * 120 "
        f"and on (cluster, run, incident) ({incidents})"
    )
    return rows(
        "What needs a person now",
        "One row an incident that fires, the worst first, and one a run that no daemon reports any more; last phase is what the run did before it stopped, failure "
        "what its last attempt died of in the last 12 hours. An empty table is good. Click the run for its dashboard.",
        [
            Query(f'{q.incidents_with_phase(RUN)} or label_replace(2 * {GONE}, "incident", "not reported", "", "")'),
            Query(f"{unit} * {on} group_left () (time() - {progress})"),
            Query(firing),
            Query(f"{unit} * {on} group_left () {q.value('megatron_slowdown_ratio', RUN)}"),
            Query(f"{unit} * {on} group_left () {q.value('megatron_world_size', RUN)}"),
            Query(q.value("megatron_failure_info", RUN, "failure", "rank", "node")),
        ],
        [
            Column("A", "Severity", width=105, look=SEVERITY),
            Column("incident", "Incident", width=170),
            Column("run", "Run", width=240, look=LINK),
            Column("cluster", "Cluster"),
            Column("state", "Last phase", width=120),
            Column("failure", "Last failure", width=140),
            Column("C", "Firing for (of 12 h)", "s", 150),
            Column("B", "Last progress ago", "s", 150),
            Column("D", "Time over normal", "none", 140, limit_look(SLOW_STEPS) | {"decimals": 3}),
            Column("E", "GPUs", "none", 80),
        ],
        hidden=("Value #F",),
        empty="No incident fires: nothing needs a person",
        sort="Severity",
        pages=False,
    )


def _runs() -> list[Line]:
    states = timeline(
        "State of each run",
        "What each run did over the shown range, one band a run. Orange (hung), red (crashed) and yellow (lost) are bad; "
        "a band that ends is a daemon that no longer reports. Click a band for the run.",
        Query(q.state_code(RUN), "{{run}}"),
        mappings=state_mapping(),
        empty="Nothing reported",
    ).data_links(_links())
    return [Line(9, [(24, states)]), Line(11, [(24, _table())])]


def _links() -> list[build.DashboardLink]:
    link = run_link("__field.labels.run")[0]
    return [build.DashboardLink(link["title"]).url(link["url"])]


def _table() -> object:
    def of(metric: str) -> Query:
        return Query(q.value(metric, RUN))

    done = f"{q.value('megatron_iteration', RUN)} / {q.value('megatron_train_iterations', RUN)}"
    return rows(
        "Runs",
        "One row a run. Bad: a state in orange, red or yellow; a time over normal above 1.02; little effective time; "
        "hours at risk (no checkpoint). An empty cell is a value that this run's log does not print. Click the run.",
        [
            Query(q.state_code(RUN)),
            of("megatron_world_size"),
            Query(done),
            Query(f"{q.value('megatron_eta_timestamp_seconds', RUN)} - time()"),
            of("megatron_lm_loss"),
            of("megatron_iteration_seconds"),
            of("megatron_slowdown_ratio"),
            Query(q.value("megatron_tflops_per_gpu", RUN)),
            of("megatron_mfu_ratio"),
            of("megatron_effective_training_time_ratio"),
            of("megatron_at_risk_seconds"),
            Query(q.increase("megatron_restarts_total", RUN, over="24h")),
            of("megatron_iteration"),
        ],
        [
            Column("run", "Run", look=LINK, width=190),
            Column("cluster", "Cluster"),
            Column("A", "State", width=90, look=STATE | {"noValue": "gone"}),
            Column("B", "GPUs", width=65),
            Column("M", "Iteration", "locale", 90),
            Column("C", "Done", "percentunit", 130, gauge_look(((None, "blue"),))),
            Column("D", "Left", "s", 90),
            Column("E", "Loss", "none", 75, {"decimals": 3}),
            Column("F", "Iteration time", "s", 105, {"decimals": 2}),
            Column("G", "Over normal", "none", 95, limit_look(SLOW_STEPS) | {"decimals": 3}),
            Column("H", "TFLOP/s/GPU", "none", 105, {"decimals": 1}),
            Column("I", "MFU", "percentunit", 120, gauge_look(MFU_STEPS)),
            Column("J", "Effective", "percentunit", 80, limit_look(EFFECTIVE_STEPS) | {"decimals": 1}),
            Column("K", "At risk", "s", 85, limit_look(RISK_STEPS)),
            Column("L", "Restarts 24 h", "none", 105, {"decimals": 0} | limit_look(((None, "text"), (1.0, "orange")))),
        ],
        empty="No run is monitored: start megatron-monitor on a log, and let Prometheus scrape it",
        sort="State",
    )


def _throughput() -> list[Line]:
    tokens = q.while_alive(q.value("megatron_tokens_per_second", RUN), RUN)
    slow = q.while_alive(q.value("megatron_slowdown_ratio", RUN), RUN)
    return [
        Line(8, [
            (12, chart("Tokens per second, the 12 largest runs", "Stacked tokens per second of runs that are alive. A "
                       "layer that ends is a run that stopped; a sagging one is slow.", "short",
                       Query(q.largest(tokens, "megatron_tokens_per_second", RUN), "{{run}}"), stacked=True,
                       minimum=0, empty="No run has tokens per second").data_links(_links())),
            (12, chart("Time per iteration over normal, the 12 worst runs", "Time of the last iteration over what the "
                       "run learned as normal. 1 is normal; above the dashed lines (2 %, 10 %) a node, a link or the "
                       "file system got slower: open the run, look at Speed.", "none",
                       Query(q.largest(slow, "megatron_slowdown_ratio", RUN), "{{run}}"), steps=SLOW_STEPS,
                       empty="No run has learned its normal yet (three iterations)",
                       decimals=2).data_links(_links())),
        ]),
    ]  # fmt: skip


def _lost() -> list[Line]:
    return [
        Line(8, [
            (8, bars("GPU-hours lost to restarts, by cause", "Training time that had to be computed again in the shown "
                     "range, times the run's GPUs. The longest bar is the cause to remove first.", "none",
                     Query(f"sum by (cause) ({q.grown('megatron_lost_seconds_total', RUN, 'cause')} * on (cluster, run) "
                           f"group_left () {q.value('megatron_world_size', RUN)}) / 3600 > 0", "{{cause}}", instant=True),
                     steps=((None, "orange"),), empty="Nothing was lost to restarts in this range")),
            (8, bars("Failures, by cause", "Attempts that ended in a failure in the shown range. Hardware causes (ecc, "
                     "nccl, node_failure) that repeat on a run call for another node.", "none",
                     Query(f"sum by (failure) ({q.grown('megatron_failures_total', RUN, 'failure')}) > 0",
                           "{{failure}}", instant=True),
                     steps=((None, "red"),), empty="No attempt failed in this range", decimals=0)),
            (8, bars("Restarts, the 12 worst runs", "Launches after the first in the shown range. Many in a row are a "
                     "crash loop: stop it and read the cause.", "none",
                     Query(f"topk(12, {q.increase('megatron_restarts_total', RUN)} > 0)", "{{run}}", instant=True),
                     steps=((None, "dark-yellow"), (3.0, "orange")), empty="No run was restarted in this range",
                     decimals=0)),
        ]),
        Line(7, [
            (12, state_colours(chart("Runs by state", "How many runs are in which state. Watch for orange, red and yellow layers that "
                       "stay.", "none",
                       Query(f"sum by (state) ({q.value('megatron_run_state', RUN, 'state')})", "{{state}}"),
                       steps_line=True,
                       stacked=True, minimum=0, empty="No run is monitored", decimals=0))),
            (12, bars("Incidents, by kind", "Incidents that have fired in the shown range, over all runs. A kind that "
                      "leads here is the fleet's habit: treat the cause once.", "none",
                      Query(f"sum by (incident) ({q.grown('megatron_incidents_total', RUN, 'incident')}) > 0",
                            "{{incident}}", instant=True),
                      steps=((None, "dark-yellow"),), empty="No incident has fired in this range", decimals=0)),
        ]),
    ]  # fmt: skip


def fleet() -> build.Dashboard:
    """All runs."""
    dashboard = (
        new("megatron-fleet", "All training runs: which are broken, what each does, what was lost. Start here.")
        .with_variable(cluster())
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
