"""Every detector: one file each, pure, its settings beside it. To add one: copy a file, add its module below."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

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
    loss_scale_collapse,
    loss_spike,
    memory_pressure,
    nan_loss,
    overflow_storm,
    restart_failed,
    resume_discontinuity,
    slowdown,
    source_lost,
    straggler,
)
from monitor.detectors.base import Detector

_MODULES = (
    hang,
    slowdown,
    launch_blocking,  # compares the launches that slowdown has measured
    crash,
    crash_without_exit,
    crash_loop,
    restart_failed,
    loss_spike,
    divergence,
    nan_loss,
    loss_scale_collapse,
    overflow_storm,
    source_lost,
    configuration,
    resume_discontinuity,
    checkpoint_failed,
    checkpoint_overdue,
    memory_pressure,
    straggler,
)
DETECTORS: dict[str, Detector] = {module.DETECTOR.name: module.DETECTOR for module in _MODULES}
"""Name -> detector, in the order in which they see a step. The names are the closed set of incident kinds."""

if TYPE_CHECKING:
    IncidentKind = str
else:
    IncidentKind = Literal[tuple(DETECTORS)]  # the configuration is checked against it
