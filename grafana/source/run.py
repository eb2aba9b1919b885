"""*run*: one training. The first screen answers whether it goes well and, if not, since when and why."""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.builders import dashboard as build

from grafana.source import axes, breakdown, hardware, troubles
from grafana.source import queries as q
from grafana.source.layout import Line, Section, annotation, cluster, new, place, runbook, variable
from grafana.source.panels import (
    EFFECTIVE_STEPS,
    ENDING,
    LOGARITHMIC,
    MFU_STEPS,
    RISK_STEPS,
    SLOW_STEPS,
    Query,
    banded,
    bars,
    buckets,
    chart,
    coloured,
    figure,
    severity_mapping,
    state_colours,
    state_mapping,
    timeline,
)
from grafana.source.run_details import details

RUN = q.ONE
NO_RUN = "Choose a run above"


def of(metric: str, *labels: str) -> str:
    """The metric of the chosen run."""
    return q.value(metric, RUN, *labels)


def _headline() -> list[Line]:
    progress = q.last_known("megatron_last_progress_timestamp_seconds", RUN)
    deadline = q.deadline(RUN)
    left = q.while_alive(f"({of('megatron_eta_timestamp_seconds')} - time()) > 0", RUN)
    last_state = f"(max by (cluster, run, state) (last_over_time(megatron_run_state{{{RUN}}}[1d])) == 1)"
    state = f"{q.state_or_unwatched(RUN)} or on (cluster, run) {q.code_of(last_state)}"
    return [
        Line(3, [
            (4, figure("State", "What the run does now. Orange (hung), red (crashed), yellow (lost) and pink (no daemon shows "
                       "it) are bad: see below what is wrong. Of a run that is shown no more the last one.", "none", state,
                       mappings=state_mapping(unwatched=True), background=True, empty="no run")),
            (4, figure("Progress at", "When the last line that proves progress was written. Everything since is silence; "
                       "it stands still when no daemon looks.", "dateTimeAsIsoNoDateIfToday", f"1000 * ({progress})", size=18)),
            (4, figure("Silence", "Time since the last progress over the budget of silence that the run's phase has. "
                       "50 % is late, 100 % is a hang: dump stacks, look for the rank that waits. It counts on when no "
                       "daemon looks. Empty for runs that have ended.", "percentunit",
                       f"(time() - ({progress})) / ({deadline} - ({progress}))",
                       steps=((None, "green"), (0.5, "dark-yellow"), (1.0, "orange")), empty="ended").decimals(0)),
            (4, figure("Deadline", "When silence becomes a hang, or since when it is one, as a clock. Of a run that nobody "
                       "watches the last deadline that a daemon gave.", "dateTimeAsIsoNoDateIfToday", f"1000 * {deadline}", empty="none", size=18)),
            (4, figure("Unwatched", "Since when no daemon shows this run although it was alive. All else here is what was "
                       "last known: start the monitor again.", "dateTimeAsIsoNoDateIfToday", f"1000 * {q.unwatched(RUN)}",
                       steps=((None, q.UNWATCHED.colour),), empty="no", size=18)),
            (4, figure("At risk", "Training time that a crash now would lose: iterations since the last whole "
                       "checkpoint. Over an hour is much, over three is bad: save more often, or saving fails.",
                       "s", q.last_known("megatron_at_risk_seconds", RUN), steps=RISK_STEPS).decimals(1)),
        ]),
        Line(3, [
            (4, figure("Done", "Last iteration over the planned ones. It should only grow; after a restart it steps "
                       "back to the checkpoint.", "percentunit",
                       f"({q.last_known('megatron_iteration', RUN)}) / ({q.last_known('megatron_train_iterations', RUN)})",
                       empty="no plan").decimals(1)),
            (4, figure("Time left", "Expected time to the end at the run's real efficiency, restarts counted. If it "
                       "grows, the run loses more than it gains. Empty where it stands.", "s", left).decimals(1)),
            (4, figure("Loss now", "Training loss of the last iteration. Absent when the log leaves it out, as it does "
                       "for NaN: then see Skipped, NaN, overflow.", "none", q.last_known("megatron_lm_loss", RUN)).decimals(3)),
            (4, figure("× normal", "Time of the last iteration over the learned normal, over that of before a slowdown "
                       "while one stands. 1 is normal; above 1.02 a node, a link or the file system got slower.", "none",
                       q.last_known("megatron_slowdown_ratio", RUN), steps=SLOW_STEPS).decimals(3)),
            (4, figure("MFU", "Model FLOPs utilisation. Below 35 % look at the parallel layout and at the micro batch size; below "
                       "20 % something is configured wrong. Unknown where the log names no GPU: set gpu_peak_tflops.",
                       "percentunit", of("megatron_mfu_ratio"), steps=MFU_STEPS).decimals(1)),
            (4, figure("GPUs", "World size as the log prints it. Not what you asked for? Then nodes are missing: see the "
                       "launcher.", "none", q.last_known("megatron_world_size", RUN))),
        ]),
        Line(5, [(24, troubles.what(RUN, several=False))]),
        Line(6, [(24, troubles.advised(RUN, several=False))]),
        Line(6, [(24, _timeline())]),
    ]  # fmt: skip


def _timeline() -> Any:
    incidents = f"max by (cluster, run, incident) ({q.open_incidents(RUN, 'incident')}) + 100"
    return timeline(
        "State and incidents",
        "What the run did, and below it each incident while it fired. Orange, red and pink (no daemon shows it) are bad; the "
        "phase left of an orange band is where it hung.",
        Query(
            f'label_replace({q.state_or_unwatched(RUN)}, "incident", "state", "", "") or {incidents}', "{{incident}}"
        ),
        mappings=[
            *state_mapping(unwatched=True),
            *severity_mapping(above=100),  # beyond the states' numbers: one timeline holds both
        ],
        empty="Nothing reported",
    )


def _learning() -> list[Line]:
    trouble = [("skipped", "megatron_skipped_iterations_total"), ("NaN", "megatron_nan_iterations_total"),
               ("overflow", "megatron_overflows_total")]  # fmt: skip
    loss = q.named(
        training=f"$loss ({axes.smoothed('megatron_lm_loss', RUN)})",
        lowest=f"$loss ({q.value('megatron_recent_lm_loss', RUN, bound='min')})",
        highest=f"$loss ({q.value('megatron_recent_lm_loss', RUN, bound='max')})",
    )
    validation = f"$loss ({of('megatron_validation_loss', 'dataset')})"
    norm = q.named(
        gradient_norm=axes.smoothed("megatron_grad_norm", RUN),
        lowest=q.value("megatron_recent_grad_norm", RUN, bound="min"),
        highest=q.value("megatron_recent_grad_norm", RUN, bound="max"),
    )
    return [
        Line(9, [
            (12, axes.by_scale(banded(chart("Loss", "Training loss and validation losses; shaded, all iterations of the last "
                       "minute or two, also those between two scrapes. It should fall and flatten; a rise that lasts is "
                       "a divergence: go back to a checkpoint before it, with a lower learning rate or without the "
                       "bad data. Smoothing, scale and perplexity are chosen above.", "none",
                       Query(f'{loss} or label_replace({validation}, "series", "$1", "dataset", "(.*)")', "{{series}} $scale"),
                       values=("lastNotNull", "min")).decimals(3), axes.ENDS, training="blue"))),
            (12, banded(chart("Gradient norm", "Norm of the gradient, logarithmic; shaded, all iterations of the last minute or "
                       "two. Spikes come before loss spikes; a level that rises for long is a divergence in the making.", "none",
                       Query(norm, "{{series}} $scale"), values=("lastNotNull", "max")).scale_distribution(LOGARITHMIC),
                        axes.ENDS, **{"gradient norm": "orange"})),
        ]),
        Line(7, [
            (8, chart("Learning rate", "As the schedule sets it. A step that you did not plan is a resume with other "
                      "arguments.", "sci", Query(of("megatron_learning_rate"), "learning rate"), alone="blue").min(0)),
            (8, chart("Loss scale", "Loss scale of fp16, logarithmic. It halves at an overflow; a fall without "
                      "recovery is a collapse: the gradients are broken. bf16 runs have none.", "none",
                      Query(of("megatron_loss_scale"), "loss scale"), alone="purple", steps_line=True,
                      empty="No loss scale: bf16 or fp32").scale_distribution(LOGARITHMIC)),
            (8, coloured(chart("Skipped, NaN, overflow", "Iterations that taught nothing, each interval. A few skipped "
                      "ones are how fp16 finds its scale; NaN, or many in a row, are bad: stop and go back.", "none",
                      Query(q.named(**{name: f"sum(increase({metric}{{{RUN}}}[$__rate_interval])) > 0" for name, metric in trouble}),
                            "{{series}}"), bars=True, empty="None in this range").min(0).decimals(0),
                      skipped="dark-yellow", NaN="red", overflow="orange")),
        ]),
    ]  # fmt: skip


def _speed() -> list[Line]:
    normal = of("megatron_baseline_iteration_seconds")
    most = f"3 * {normal}"
    median = f"max by (cluster, run) (quantile_over_time(0.5, megatron_iteration_seconds{{{RUN}}}[$__rate_interval]))"
    seconds = q.named(
        median=q.at_most(median, most),
        normal=normal,
        lowest=q.at_most(q.value("megatron_recent_iteration_seconds", RUN, bound="min"), most),
        highest=q.at_most(q.value("megatron_recent_iteration_seconds", RUN, bound="max"), most),
    )
    use = q.named(MFU=of("megatron_mfu_ratio"), HFU=of("megatron_hfu_ratio"))
    return [
        Line(8, [
            (12, axes.by_scale(banded(chart("Time per iteration", "Median of each interval and the learned normal, evaluation "
                       "and saving taken out; shaded, all iterations of the last minute or two. What takes over three times the "
                       "normal, as first iterations do, is drawn there. A level above the normal is a slow node, link or file "
                       "system; a saw is the data loader.", "s", Query(seconds, "{{series}} $scale")).decimals(2), axes.ENDS,
                       median="blue", normal="#8e8e8e"))),
            (12, buckets("Time over normal, distribution", "How many iterations took how much longer than was normal before them, over "
                         "the normal of before a slowdown while one stands. One band at 1 is good; a band above it is a slow node, "
                         "a second one beside it a periodic disturbance.", "none",
                         f"megatron_iteration_over_normal_ratio_bucket{{{RUN}}}", empty="No iteration in this range")),
        ]),
        Line(7, [
            (6, chart("Tokens per second", "Over all GPUs, while the run is alive. It should be flat; steps are batch "
                      "size or sequence length.", "short",
                      Query(q.while_alive(of("megatron_tokens_per_second"), RUN), "tokens/s"), alone="blue").min(0)),
            (6, chart("Global batch size", "Samples per iteration. A staircase is a ramp-up: the time per iteration "
                      "rises with it and is no slowdown.", "none",
                      Query(of("megatron_global_batch_size"), "batch size"), alone="blue", steps_line=True).min(0)),
            (6, coloured(chart("TFLOP/s per GPU", "As the log prints it, and by the same formula from the topology. Two "
                      "lines apart mean that the program counts differently from its formula.", "none",
                      Query(q.while_alive(of("megatron_tflops_per_gpu", "source"), RUN), "{{source}}")).min(0).decimals(1),
                      log="blue", computed="#8e8e8e")),
            (6, coloured(chart("MFU and HFU", "Model (no recomputation) and hardware FLOPs utilisation. The gap is "
                      "what recomputing activations costs; below 35 % MFU the layout deserves a look.", "percentunit",
                      Query(use, "{{series}}"), empty="The GPU's peak is unknown: set gpu_peak_tflops").min(0).max(1),
                      MFU="blue", HFU="#8e8e8e")),
        ]),
    ]  # fmt: skip


def _other_axis() -> list[Line]:
    words = "over the x axis chosen above, not over time: restarts that compute the same again lie on one another."
    return [
        Line(9, [
            (12, axes.learning_by_x("Loss by $x", f"Training loss {words} Few points: show a longer range.",
                                    "megatron_lm_loss", RUN, y="loss", before="$loss")),
            (12, axes.learning_by_x("Gradient norm by $x", f"Norm of the gradient {words} Compare it with the loss beside it.",
                                    "megatron_grad_norm", RUN, y="gradient norm")),
        ]),
    ]  # fmt: skip


def _time() -> list[Line]:
    share = f"avg_over_time(megatron_run_state{{{RUN}}}[$__interval])"
    return [
        Line(8, [
            (10, state_colours(chart("Where the time goes", "Share of each interval that the run spent in each state. "
                       "Green should fill it; much purple is evaluation too often, much blue is slow saving, orange "
                       "and red are lost.", "percentunit",
                       Query(f"max by (state) ({share}) > 0", "{{state}}"), stacked=True,
                       empty=NO_RUN).min(0).max(1).line_interpolation(ENDING).interval("5m"))),
            (6, _shares()),
            (8, bars("Lost to restarts", "Training time that had to be computed again in the shown range. "
                     "Shorten it by saving more often; remove the longest cause.", "s",
                     Query(f"sort_desc({q.grown('megatron_lost_seconds_total', RUN, 'cause')} > 0)", "{{cause}}"),
                     steps=((None, "orange"),), empty="Nothing was lost")),
        ]),
    ]  # fmt: skip


def _shares() -> Any:
    panel = (
        bars(
            "Time in each state",
            "Share of the shown range spent in each state. Training should have nearly all of it.",
            "percentunit",
            Query(f"max by (state) (avg_over_time(megatron_run_state{{{RUN}}}[$__range])) > 0", "{{state}}"),
            empty=NO_RUN,
        )
        .max(1.0)
        .decimals(1)
    )
    return state_colours(panel)


def _reliability() -> list[Line]:
    return [
        Line(3, [
            (8, figure("Effective training time", "Productive time over wall time since the run's first line. Below "
                       "95 % restarts, hangs, evaluation and saving eat the budget: see Where the time goes.",
                       "percentunit", of("megatron_effective_training_time_ratio"), steps=EFFECTIVE_STEPS).decimals(1)),
            (8, figure("Restarts", "Launches after the first, since the run began. Watch it together with the failures "
                       "beside it.", "none", of("megatron_restarts_total")).decimals(0)),
            (8, figure("Iterations lost", "Iterations lost to restarts since the run began. Many with few "
                       "restarts: save more often.", "none", of("megatron_lost_iterations_total")).decimals(0)),
        ]),
        Line(3, [
            (8, figure("Last checkpoint", "Iteration of the last checkpoint saved whole: where a restart would begin. "
                       "It should follow the iteration closely.", "locale", of("megatron_last_checkpoint_iteration"),
                       empty="none seen").decimals(0)),
            (8, figure("Last save took", "Seconds of the last save. Twice the usual is a file system in trouble.", "s",
                       of("megatron_checkpoint_save_seconds"), empty="none seen").decimals(1)),
            (8, figure("Incidents in this range", "Incidents that began in the shown range, warnings included. A "
                       "healthy run has none.", "none",
                       f"sum({q.grown('megatron_incidents_total', RUN, 'incident')})",
                       steps=((None, "green"), (1.0, "dark-yellow")), empty="none").decimals(0)),
        ]),
        Line(7, [
            (8, chart("Iteration and last checkpoint", "The iteration climbs, the checkpoint follows in steps; the gap "
                      "is at risk. A fall is a restart from the checkpoint.", "locale",
                      Query(of("megatron_iteration"), "iteration"),
                      Query(of("megatron_last_checkpoint_iteration"), "checkpoint"))),
            (8, chart("Training time at risk", "Seconds that a crash would lose at each moment: a saw whose teeth are "
                      "the save interval. Teeth that grow are saves that fail.", "s",
                      Query(of("megatron_at_risk_seconds"), "at risk"), alone="orange").fill_opacity(20).min(0)),
            (8, bars("Failures, by cause", "Attempts that ended in a failure since the run began. Hardware causes that "
                     "repeat call for another node.", "none",
                     Query(f"sort_desc({of('megatron_failures_total', 'failure')})", "{{failure}}"),
                     steps=((None, "red"),), empty="No attempt failed").decimals(0)),
        ]),
    ]  # fmt: skip


def _incidents(name: str, severity: str, *, enabled: bool) -> Any:
    """A warning may stand for hours: it would tint every chart."""
    return annotation(
        name,
        q.SEVERITIES[severity][1],
        f'max by (incident, severity) (megatron_incident{{{RUN}, severity="{severity}"}}) == 1',
        "{{incident}}",
        "{{severity}}",
        enabled=enabled,
        switch=not enabled,
    )


def run() -> build.Dashboard:
    """One training."""
    dashboard = (
        new("megatron-run", "One training run: state, learning, speed, where its time goes, reliability, memory.")
        .with_variable(cluster())
        .with_variable(variable("run", "Run", 'label_values(megatron_run_state{cluster=~"$cluster"}, run)', several=False))
        .with_variable(axes.smoothing())
        .with_variable(axes.scale())
        .with_variable(axes.loss_as())
        .with_variable(axes.x_axis())
        .with_variable(runbook())
        .annotation(annotation("Restarts", "blue",
                               f"max by (run) (increase(megatron_restarts_total{{{RUN}}}[$__rate_interval])) > 0",
                               "restart", "the run was launched again", switch=False))
        .annotation(annotation("Checkpoints", "#7d9bb5",
                               f"max by (run) (changes(megatron_last_checkpoint_iteration{{{RUN}}}[$__rate_interval])) > 0",
                               "checkpoint", "a checkpoint was saved whole", enabled=False))
        .annotation(_incidents("Critical incidents", "critical", enabled=True))
        .annotation(_incidents("Warnings", "warning", enabled=False))
    )  # fmt: skip
    return place(dashboard, [
        Section("Headline", _headline()),
        Section("Learning", _learning()),
        Section("Speed", _speed()),
        Section("Where the time goes", _time(), collapsed=True),
        Section("Inside an iteration", breakdown.of_run(RUN), collapsed=True),
        Section("Learning by iteration, samples, tokens or GPU-hours", _other_axis(), collapsed=True),
        Section("Reliability", _reliability(), collapsed=True),
        hardware.of_run(RUN),
        *details(),
    ])  # fmt: skip
