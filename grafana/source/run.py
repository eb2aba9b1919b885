"""*run*: one training. The first screen answers whether it goes well and, if not, since when and why."""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.builders import dashboard as build

from grafana.source import breakdown
from grafana.source import queries as q
from grafana.source.layout import Line, Section, annotation, cluster, new, place, variable
from grafana.source.panels import (
    EFFECTIVE_STEPS,
    MFU_STEPS,
    RISK_STEPS,
    SLOW_STEPS,
    Query,
    bars,
    buckets,
    chart,
    coloured,
    number,
    severity_mapping,
    state_colours,
    state_mapping,
    timeline,
)
from grafana.source.run_details import details
from grafana.source.tables import SEVERITY, Column, rows

RUN = q.ONE
NO_RUN = "Choose a run above"


def of(metric: str, *labels: str) -> str:
    """The metric of the chosen run."""
    return q.value(metric, RUN, *labels)


def _figure(title: str, text: str, unit: str, expression: str, **options: Any) -> Any:
    return number(title, text, unit, Query(expression, instant=True), **options)


def _headline() -> list[Line]:
    progress = of("megatron_last_progress_timestamp_seconds")
    deadline = of("megatron_hang_deadline_timestamp_seconds")
    return [
        Line(4, [
            (3, _figure("State", "What the run does now. Orange (hung), red (crashed) and yellow (lost) are bad: see "
                        "the incidents below, then the run's own log.", "none", q.state_code(RUN),
                        mappings=state_mapping(), background=True, empty="no run")),
            (3, _figure("Silence / limit", "Time since the last progress over the budget of silence that "
                        "the run's phase has. 50 % is late, 100 % is a hang: dump stacks, look for the rank that "
                        "waits. Empty for runs that have ended.", "percentunit",
                        f"(time() - {progress}) / ({deadline} - {progress})",
                        steps=((None, "green"), (0.5, "dark-yellow"), (1.0, "orange")), decimals=0,
                        empty="ended")),
            (3, _figure("Done", "Last iteration over the planned ones. It should only grow; after a restart it steps "
                        "back to the checkpoint.", "percentunit",
                        f"{of('megatron_iteration')} / {of('megatron_train_iterations')}", decimals=1,
                        empty="no plan")),
            (3, _figure("Time left", "Expected time to the end at the run's real efficiency, restarts counted. If it "
                        "grows, the run loses more than it gains. Empty once ended.", "s",
                        f"{of('megatron_eta_timestamp_seconds')} - time()", decimals=1, empty="unknown")),
            (3, _figure("Loss now", "Training loss of the last iteration. Absent when the log leaves it out, as it does "
                        "for NaN: then see Skipped, NaN, overflow.", "none", of("megatron_lm_loss"), decimals=3)),
            (3, _figure("Over normal", "Time of the last iteration over the learned normal. 1 is normal; above "
                        "1.02 a node, a link or the file system got slower.", "none",
                        of("megatron_slowdown_ratio"), steps=SLOW_STEPS, decimals=3)),
            (3, _figure("MFU", "Model FLOPs utilisation. Below 35 % look at the parallel layout and at the micro batch "
                        "size; below 20 % something is configured wrong. Unknown where the log names no GPU: set gpu_peak_tflops.", "percentunit", of("megatron_mfu_ratio"),
                        steps=MFU_STEPS, decimals=1, empty="unknown")),
            (3, _figure("At risk", "Training time that a crash now would lose: iterations since the last whole "
                        "checkpoint. Over an hour is much, over three is bad: save more often, or saving fails.",
                        "s", of("megatron_at_risk_seconds"), steps=RISK_STEPS, decimals=1)),
        ]),
        Line(7, [(14, _timeline()), (10, _incidents())]),
    ]  # fmt: skip


def _timeline() -> Any:
    return timeline(
        "State and incidents",
        "What the run did, and below it each incident while it fired. Orange and red are bad; the phase left of an "
        "orange band is where it hung.",
        Query(q.state_code(RUN), "state"),
        Query(f"max by (incident) ({q.open_incidents(RUN, 'incident')}) + 100", "{{incident}}"),
        mappings=[
            *state_mapping(),
            *severity_mapping(above=100),  # beyond the states' numbers: one timeline holds both
        ],
        empty="Nothing reported",
    )


def _incidents() -> Any:
    firing = (
        f"max by (cluster, run, incident) (count_over_time((megatron_incident{{{RUN}}} == 1)[12h:2m])) * 120 "
        f"and on (cluster, run, incident) ({q.open_incidents(RUN, 'incident')})"
    )
    return rows(
        "Incidents that fire now",
        "What the monitor judges to be wrong now, the worst first. Empty is good. The runbook of the alert rules lists "
        "what to do for each kind.",
        [
            Query(q.incidents_with_phase(RUN)),
            Query(firing),
            Query(of("megatron_incident_info", "incident", "rank", "node", "advice")),
        ],
        [
            Column("A", "Severity", width=105, look=SEVERITY),
            Column("incident", "Incident"),
            Column("state", "Last phase", width=110),
            Column("B", "Firing for (of 12 h)", "s", 150),
        ],
        hidden=("run", "cluster", "Value #C"),
        empty="No incident fires",
        sort="Severity",
    )  # fmt: skip


def _learning() -> list[Line]:
    trouble = [("skipped", "megatron_skipped_iterations_total"), ("NaN", "megatron_nan_iterations_total"),
               ("overflow", "megatron_overflows_total")]  # fmt: skip
    return [
        Line(9, [
            (12, chart("Loss", "Training loss and validation losses. It should fall and flatten; a rise that lasts is "
                       "a divergence: go back to a checkpoint before it, with a lower learning rate or without the "
                       "bad data.", "none",
                       Query(of("megatron_lm_loss"), "training"),
                       Query(of("megatron_recent_lm_loss", "bound"), "{{bound}}"),
                       Query(of("megatron_validation_loss", "dataset"), "{{dataset}}"),
                       values=("lastNotNull", "min"), decimals=3)),
            (12, chart("Gradient norm", "Norm of the gradient, logarithmic. Spikes come before loss spikes; a level "
                       "that rises for long is a divergence in the making.", "none",
                       Query(of("megatron_grad_norm"), "gradient norm"),
                       Query(of("megatron_recent_grad_norm", "bound"), "{{bound}}"), colour="orange", log=True,
                       values=("lastNotNull", "max"))),
        ]),
        Line(7, [
            (8, chart("Learning rate", "As the schedule sets it. A step that you did not plan is a resume with other "
                      "arguments.", "sci", Query(of("megatron_learning_rate"), "learning rate"), colour="blue",
                      legend="hidden", minimum=0)),
            (8, chart("Loss scale", "Loss scale of fp16, logarithmic. It halves at an overflow; a fall without "
                      "recovery is a collapse: the gradients are broken. bf16 runs have none.", "none",
                      Query(of("megatron_loss_scale"), "loss scale"), colour="purple", log=True, steps_line=True,
                      legend="hidden", empty="No loss scale: bf16 or fp32")),
            (8, coloured(chart("Skipped, NaN, overflow", "Iterations that taught nothing, each interval. A few skipped "
                      "ones are how fp16 finds its scale; NaN, or many in a row, are bad: stop and go back.", "none",
                      Query(" or ".join(f'label_replace(sum(increase({metric}{{{RUN}}}[$__rate_interval])) > 0, "kind", "{name}", "", "")'
                                        for name, metric in trouble), "{{kind}}"),
                      bars=True, minimum=0, decimals=0, empty="None in this range"),
                      skipped="dark-yellow", NaN="red", overflow="orange")),
        ]),
    ]  # fmt: skip


def _speed() -> list[Line]:
    now, normal = of("megatron_iteration_seconds"), of("megatron_baseline_iteration_seconds")
    return [
        Line(8, [
            (12, coloured(chart("Time per iteration", "Last iteration and the learned normal, evaluation and saving "
                       "taken out. A level above the normal is a slow node, link or file system; a saw is the data "
                       "loader.", "s", Query(now, "last iteration"), Query(normal, "normal"),
                       Query(of("megatron_recent_iteration_seconds", "bound"), "{{bound}}"), decimals=2),
                       **{"last iteration": "blue", "normal": "#8e8e8e"})),
            (12, buckets("Time per iteration, distribution", "How many iterations took how long; darker is more. A "
                         "second band above the first is a periodic disturbance; all in one band is good.", "s",
                         Query(f"sum by (le) (increase(megatron_iteration_duration_seconds_bucket{{{RUN}}}"
                               "[$__rate_interval]))", "{{le}}", format="heatmap"), interval="5m",
                         empty="No iteration in this range")),
        ]),
        Line(7, [
            (8, chart("Tokens per second", "Over all GPUs, while the run is alive. It should be flat; steps are batch "
                      "size or sequence length.", "short",
                      Query(q.while_alive(of("megatron_tokens_per_second"), RUN), "tokens/s"), colour="blue",
                      minimum=0, legend="hidden")),
            (8, coloured(chart("TFLOP/s per GPU", "As the log prints it, and by the same formula from the topology. Two "
                      "lines apart mean that the program counts differently from its formula.", "none",
                      Query(q.while_alive(of("megatron_tflops_per_gpu", "source"), RUN), "{{source}}"),
                      minimum=0, decimals=1), log="blue", computed="#8e8e8e")),
            (8, coloured(chart("MFU and HFU", "Model (no recomputation) and hardware FLOPs utilisation. The gap is "
                      "what recomputing activations costs; below 35 % MFU the layout deserves a look.", "percentunit",
                      Query(of("megatron_mfu_ratio"), "MFU"), Query(of("megatron_hfu_ratio"), "HFU"), percent=True,
                      empty="The GPU's peak is unknown: set gpu_peak_tflops"), MFU="blue", HFU="#8e8e8e")),
        ]),
    ]  # fmt: skip


def _time() -> list[Line]:
    share = f"avg_over_time(megatron_run_state{{{RUN}}}[$__interval])"
    return [
        Line(8, [
            (12, state_colours(chart("Where the time goes", "Share of each interval that the run spent in each state. "
                       "Green should fill it; much purple is evaluation too often, much blue is slow saving, orange "
                       "and red are lost.", "percentunit",
                       Query(f"max by (state) ({share})", "{{state}}"), stacked=True, percent=True,
                       steps_line=True, interval="5m", empty=NO_RUN))),
            (6, _figure_bars()),
            (6, bars("Lost to restarts, by cause", "Training time that had to be computed again in the shown range. "
                     "Shorten it by saving more often; remove the longest cause.", "s",
                     Query(f"{q.grown('megatron_lost_seconds_total', RUN, 'cause')} > 0", "{{cause}}", instant=True),
                     steps=((None, "orange"),), empty="Nothing was lost in this range")),
        ]),
    ]  # fmt: skip


def _figure_bars() -> Any:
    panel = bars(
        "Time in each state",
        "Share of the shown range spent in each state. Training should have nearly all of it.",
        "percentunit",
        Query(f"max by (state) (avg_over_time(megatron_run_state{{{RUN}}}[$__range])) > 0", "{{state}}", instant=True),
        maximum=1.0,
        empty=NO_RUN,
        decimals=1,
    )
    return state_colours(panel)


def _reliability() -> list[Line]:
    return [
        Line(4, [
            (4, _figure("Effective training time", "Productive time over wall time since the run's first line. Below "
                        "95 % restarts, hangs, evaluation and saving eat the budget: see Where the time goes.",
                        "percentunit", of("megatron_effective_training_time_ratio"), steps=EFFECTIVE_STEPS, decimals=1)),
            (4, _figure("Restarts", "Launches after the first, since the run began. Watch it together with the failures "
                        "beside it.", "none", of("megatron_restarts_total"), decimals=0)),
            (4, _figure("Iterations lost", "Iterations lost to restarts since the run began. Many with few "
                        "restarts: save more often.", "none", of("megatron_lost_iterations_total"), decimals=0)),
            (4, _figure("Last checkpoint", "Iteration of the last checkpoint saved whole: where a restart would begin. "
                        "It should follow the iteration closely.", "locale", of("megatron_last_checkpoint_iteration"),
                        decimals=0, empty="none seen")),
            (4, _figure("Last save took", "Seconds of the last save. Twice the usual is a file system in trouble.", "s",
                        of("megatron_checkpoint_save_seconds"), decimals=1, empty="none seen")),
            (4, _figure("Incidents in this range", "Incidents that began in the shown range, warnings included. A "
                        "healthy run has none.", "none",
                        f"sum({q.grown('megatron_incidents_total', RUN, 'incident')})",
                        steps=((None, "green"), (1.0, "dark-yellow")), decimals=0, empty="none")),
        ]),
        Line(7, [
            (8, chart("Iteration and last checkpoint", "The iteration climbs, the checkpoint follows in steps; the gap "
                      "is at risk. A fall is a restart from the checkpoint.", "locale",
                      Query(of("megatron_iteration"), "iteration"),
                      Query(of("megatron_last_checkpoint_iteration"), "checkpoint"))),
            (8, chart("Training time at risk", "Seconds that a crash would lose at each moment: a saw whose teeth are "
                      "the save interval. Teeth that grow are saves that fail.", "s",
                      Query(of("megatron_at_risk_seconds"), "at risk"), colour="orange", fill=20, minimum=0,
                      legend="hidden")),
            (8, bars("Failures, by cause", "Attempts that ended in a failure since the run began. Hardware causes that "
                     "repeat call for another node.", "none",
                     Query(of("megatron_failures_total", "failure"), "{{failure}}", instant=True),
                     steps=((None, "red"),), empty="No attempt failed", decimals=0)),
        ]),
    ]  # fmt: skip


def run() -> build.Dashboard:
    """One training."""
    dashboard = (
        new("megatron-run", "One training run: state, learning, speed, where its time goes, reliability, memory.")
        .with_variable(cluster())
        .with_variable(variable("run", "Run", 'label_values(megatron_run_state{cluster=~"$cluster"}, run)', several=False))
        .annotation(annotation("Restarts", "blue",
                               f"max by (run) (increase(megatron_restarts_total{{{RUN}}}[$__rate_interval])) > 0",
                               "restart", "the run was launched again"))
        .annotation(annotation("Checkpoints", "#7d9bb5",
                               f"max by (run) (changes(megatron_last_checkpoint_iteration{{{RUN}}}[$__rate_interval])) > 0",
                               "checkpoint", "a checkpoint was saved whole", enabled=False))
        .annotation(annotation("Incidents", "red",
                               f"max by (incident, severity) (megatron_incident{{{RUN}}}) == 1",
                               "{{incident}}", "{{severity}}"))
        .annotation(annotation("Alerts", "orange",
                               f'max by (alertname) (ALERTS{{{RUN}, alertname=~"Megatron.*", alertstate="firing"}})',
                               "{{alertname}}", "alert fires", enabled=False))
    )  # fmt: skip
    return place(dashboard, [
        Section("Headline", _headline()),
        Section("Learning", _learning()),
        Section("Speed", _speed()),
        Section("Where the time goes", _time(), collapsed=True),
        Section("Inside an iteration", breakdown.of_run(RUN), collapsed=True),
        Section("Reliability", _reliability(), collapsed=True),
        *details(),
    ])  # fmt: skip
