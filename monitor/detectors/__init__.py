"""Every detector: one file each, pure, its settings beside it. To add one: a file here, a row below, two scenarios."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from monitor.detectors import crash, crash_loop, crash_without_exit, hang, launch_blocking, slowdown, source_lost
from monitor.detectors.verdict import Verdict
from monitor.run.state import RunState
from parsers.events import Event


@dataclass(frozen=True, slots=True)
class Detector:
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
    "slowdown": Detector(slowdown.check, slowdown.SlowdownSettings, on_step=slowdown.on_step),
    "launch_blocking": Detector(
        launch_blocking.check, launch_blocking.LaunchBlockingSettings, on_step=launch_blocking.on_step
    ),
    "crash": Detector(crash.check, crash.CrashSettings, deadline=crash.next_change),
    "crash_without_exit": Detector(
        crash_without_exit.check, crash_without_exit.CrashWithoutExitSettings, deadline=crash_without_exit.next_change
    ),
    "crash_loop": Detector(crash_loop.check, crash_loop.CrashLoopSettings),
    "source_lost": Detector(source_lost.check, source_lost.SourceLostSettings),
}
DETECTOR_SETTINGS: dict[str, type] = {name: detector.settings for name, detector in DETECTORS.items()}
