"""Every detector: one file each, pure, its settings beside it. To add one: copy a file, add its name below."""

from importlib import import_module
from typing import TYPE_CHECKING, Literal

from megatron_monitor.detectors.base import Detector

# launch_blocking compares the launches that slowdown has measured
_NAMES = (
    "hang", "slowdown", "launch_blocking", "crash", "crash_without_exit", "crash_loop", "restart_failed", "loss_spike",
    "divergence", "nan_loss", "loss_scale_collapse", "overflow_storm", "source_lost", "mixed_log",
    "configuration", "resume_discontinuity", "checkpoint_failed", "checkpoint_overdue", "memory_pressure", "straggler",
)  # fmt: skip
DETECTORS: dict[str, Detector] = {name: import_module(f"megatron_monitor.detectors.{name}").DETECTOR for name in _NAMES}
"""Name -> detector, in the order in which they see a step. The names are the closed set of incident kinds."""

if TYPE_CHECKING:
    IncidentKind = str
else:
    IncidentKind = Literal[_NAMES]  # the configuration is checked against it
