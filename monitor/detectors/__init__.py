"""Every detector: one file each, pure, its settings beside it. To add one: a file here, a row below, two scenarios."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from monitor.detectors import hang, source_lost
from monitor.detectors.verdict import Verdict
from monitor.run.state import RunState


class Detector(NamedTuple):
    """`check(state, now, settings)` and the type of its settings."""

    check: Callable[[RunState, float, Any], Verdict]
    settings: type


DETECTORS: dict[str, Detector] = {
    "hang": Detector(hang.check, hang.HangSettings),
    "source_lost": Detector(source_lost.check, source_lost.SourceLostSettings),
}
DETECTOR_SETTINGS: dict[str, type] = {name: detector.settings for name, detector in DETECTORS.items()}
