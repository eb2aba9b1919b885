"""Every detector: one file each, pure, its settings beside it. To add one: a file here, a row below, two scenarios."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from monitor.detectors import (
    checkpoint_failed,
    checkpoint_overdue,
    configuration,
    crash,
    crash_loop,
    crash_without_exit,
    divergence,
    hang,
    launch_blocking,
    loss_normal,
    loss_scale_collapse,
    loss_spike,
    loss_steps,
    memory_pressure,
    nan_loss,
    overflow_storm,
    resume_discontinuity,
    signals,
    slowdown,
    slowdown_ahead,
    source_lost,
)
from monitor.detectors.verdict import Verdict
from monitor.run.state import RunState
from monitor.run.steps import Foreseen, Steps
from parsers.events import EngineStepLogged, Event


class Detector(Struct, frozen=True):
    """`check` judges; the rest is for detectors that must see each step or know when time alone changes their mind.

    `on_step(state, settings)` is called after each iteration that counted, whoever reported it; `on_event(state, event,
    settings)` after each event of the types in `listens`. Both write only the detector's own memory (memory.py) and
    return whether `check` may now answer differently. `deadline(state, now, settings)` is the next instant after `now`
    at which it may, without any event. `on_steps(state, steps, settings)` foresees what `on_step` and `on_event` would
    do at calm steps (run/steps.py), asked before the first of them is folded; without it they are taken one by one.
    """

    check: Callable[[RunState, float, Any], Verdict]
    settings: type
    on_step: Callable[[RunState, Any], bool] | None = None
    on_event: Callable[[RunState, Event, Any], bool] | None = None
    listens: tuple[type[Event], ...] = ()
    deadline: Callable[[RunState, float, Any], float | None] | None = None
    on_steps: Callable[[RunState, Steps, Any], Foreseen] | None = None


DETECTORS: dict[str, Detector] = {
    "hang": Detector(hang.check, hang.HangSettings, deadline=hang.next_change),
    "slowdown": Detector(
        slowdown.check,
        slowdown.SlowdownSettings,
        on_step=slowdown.on_step,
        on_event=slowdown.on_event,
        listens=(EngineStepLogged,),
        on_steps=slowdown_ahead.on_steps,
    ),
    "launch_blocking": Detector(
        launch_blocking.check,
        launch_blocking.LaunchBlockingSettings,
        on_step=launch_blocking.on_step,
        on_steps=launch_blocking.on_steps,
    ),
    "crash": Detector(crash.check, crash.CrashSettings, deadline=crash.next_change),
    "crash_without_exit": Detector(
        crash_without_exit.check, crash_without_exit.CrashWithoutExitSettings, deadline=crash_without_exit.next_change
    ),
    "crash_loop": Detector(crash_loop.check, crash_loop.CrashLoopSettings),
    "loss_spike": Detector(
        loss_spike.check,
        loss_normal.LossSpikeSettings,
        on_step=loss_spike.on_step,
        on_event=loss_spike.on_event,
        listens=signals.LISTENS,
        on_steps=loss_steps.on_steps,
    ),
    "divergence": Detector(
        divergence.check,
        divergence.DivergenceSettings,
        on_step=divergence.on_step,
        on_event=divergence.on_event,
        listens=signals.LISTENS,
        on_steps=divergence.on_steps,
    ),
    "nan_loss": Detector(
        nan_loss.check,
        nan_loss.NanLossSettings,
        on_event=nan_loss.on_event,
        listens=nan_loss.LISTENS,
        on_steps=nan_loss.on_steps,
    ),
    "loss_scale_collapse": Detector(
        loss_scale_collapse.check,
        loss_scale_collapse.LossScaleCollapseSettings,
        on_step=loss_scale_collapse.on_step,
        on_event=loss_scale_collapse.on_event,
        listens=loss_scale_collapse.LISTENS,
        on_steps=loss_scale_collapse.on_steps,
    ),
    "overflow_storm": Detector(
        overflow_storm.check,
        overflow_storm.OverflowStormSettings,
        on_step=overflow_storm.on_step,
        on_event=overflow_storm.on_event,
        listens=overflow_storm.LISTENS,
        on_steps=overflow_storm.on_steps,
    ),
    "source_lost": Detector(source_lost.check, source_lost.SourceLostSettings),
    "configuration": Detector(
        configuration.check,
        configuration.ConfigurationSettings,
        on_step=configuration.on_step,
        on_event=configuration.on_event,
        listens=configuration.LISTENS,
        on_steps=configuration.on_steps,
    ),
    "resume_discontinuity": Detector(
        resume_discontinuity.check,
        resume_discontinuity.ResumeSettings,
        on_step=resume_discontinuity.on_step,
        on_event=resume_discontinuity.on_event,
        listens=resume_discontinuity.LISTENS,
        on_steps=resume_discontinuity.on_steps,
    ),
    "checkpoint_failed": Detector(
        checkpoint_failed.check,
        checkpoint_failed.CheckpointFailedSettings,
        on_step=checkpoint_failed.on_step,
        on_event=checkpoint_failed.on_event,
        listens=checkpoint_failed.LISTENS,
        on_steps=checkpoint_failed.on_steps,
    ),
    "checkpoint_overdue": Detector(
        checkpoint_overdue.check,
        checkpoint_overdue.CheckpointOverdueSettings,
        on_step=checkpoint_overdue.on_step,
        on_event=checkpoint_overdue.on_event,
        listens=checkpoint_overdue.LISTENS,
        on_steps=checkpoint_overdue.on_steps,
    ),
    "memory_pressure": Detector(
        memory_pressure.check,
        memory_pressure.MemoryPressureSettings,
        on_step=memory_pressure.on_step,
        on_event=memory_pressure.on_event,
        listens=memory_pressure.LISTENS,
        on_steps=memory_pressure.on_steps,
    ),
}
DETECTOR_SETTINGS: dict[str, type] = {name: detector.settings for name, detector in DETECTORS.items()}
