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
    memory_pressure,
    nan_loss,
    overflow_storm,
    resume_discontinuity,
    signals,
    slowdown,
    source_lost,
)
from monitor.detectors.verdict import Verdict
from monitor.run.state import RunState
from parsers.events import EngineStepLogged, Event


class Detector(Struct, frozen=True):
    """`check` judges; the rest is for detectors that must see each step or know when time alone changes their mind.

    `on_step(state, settings)` is called after each iteration that counted, whoever reported it; `on_event(state, event,
    settings)` after each event of the types in `listens`. Both write only the detector's own memory (memory.py) and
    return whether `check` may now answer differently. `deadline(state, now, settings)` is the next instant after `now`
    at which it may, without any event.
    """

    check: Callable[[RunState, float, Any], Verdict]
    settings: type
    on_step: Callable[[RunState, Any], bool] | None = None
    on_event: Callable[[RunState, Event, Any], bool] | None = None
    listens: tuple[type[Event], ...] = ()
    deadline: Callable[[RunState, float, Any], float | None] | None = None


DETECTORS: dict[str, Detector] = {
    "hang": Detector(hang.check, hang.HangSettings, deadline=hang.next_change),
    "slowdown": Detector(
        slowdown.check,
        slowdown.SlowdownSettings,
        on_step=slowdown.on_step,
        on_event=slowdown.on_event,
        listens=(EngineStepLogged,),
    ),
    "launch_blocking": Detector(
        launch_blocking.check,
        launch_blocking.LaunchBlockingSettings,
        on_step=launch_blocking.on_step,
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
    ),
    "divergence": Detector(
        divergence.check,
        divergence.DivergenceSettings,
        on_step=divergence.on_step,
        on_event=divergence.on_event,
        listens=signals.LISTENS,
    ),
    "nan_loss": Detector(
        nan_loss.check,
        nan_loss.NanLossSettings,
        on_event=nan_loss.on_event,
        listens=nan_loss.LISTENS,
    ),
    "loss_scale_collapse": Detector(
        loss_scale_collapse.check,
        loss_scale_collapse.LossScaleCollapseSettings,
        on_step=loss_scale_collapse.on_step,
        on_event=loss_scale_collapse.on_event,
        listens=loss_scale_collapse.LISTENS,
    ),
    "overflow_storm": Detector(
        overflow_storm.check,
        overflow_storm.OverflowStormSettings,
        on_step=overflow_storm.on_step,
        on_event=overflow_storm.on_event,
        listens=overflow_storm.LISTENS,
    ),
    "source_lost": Detector(source_lost.check, source_lost.SourceLostSettings),
    "configuration": Detector(
        configuration.check,
        configuration.ConfigurationSettings,
        on_step=configuration.on_step,
        on_event=configuration.on_event,
        listens=configuration.LISTENS,
    ),
    "resume_discontinuity": Detector(
        resume_discontinuity.check,
        resume_discontinuity.ResumeSettings,
        on_step=resume_discontinuity.on_step,
        on_event=resume_discontinuity.on_event,
        listens=resume_discontinuity.LISTENS,
    ),
    "checkpoint_failed": Detector(
        checkpoint_failed.check,
        checkpoint_failed.CheckpointFailedSettings,
        on_step=checkpoint_failed.on_step,
        on_event=checkpoint_failed.on_event,
        listens=checkpoint_failed.LISTENS,
    ),
    "checkpoint_overdue": Detector(
        checkpoint_overdue.check,
        checkpoint_overdue.CheckpointOverdueSettings,
        on_step=checkpoint_overdue.on_step,
        on_event=checkpoint_overdue.on_event,
        listens=checkpoint_overdue.LISTENS,
    ),
    "memory_pressure": Detector(
        memory_pressure.check,
        memory_pressure.MemoryPressureSettings,
        on_step=memory_pressure.on_step,
        on_event=memory_pressure.on_event,
        listens=memory_pressure.LISTENS,
    ),
}
DETECTOR_SETTINGS: dict[str, type] = {name: detector.settings for name, detector in DETECTORS.items()}
