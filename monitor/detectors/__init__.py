"""All rules: one file per rule, pure, with its thresholds. To add a rule, copy a file and add its class below."""

from typing import TYPE_CHECKING, Literal

from megatron_monitor.detectors.base import Rule
from megatron_monitor.detectors.checkpoint_failed import CheckpointFailed
from megatron_monitor.detectors.checkpoint_overdue import CheckpointOverdue
from megatron_monitor.detectors.configuration import Configuration
from megatron_monitor.detectors.crash import Crash
from megatron_monitor.detectors.crash_loop import CrashLoop
from megatron_monitor.detectors.crash_without_exit import CrashWithoutExit
from megatron_monitor.detectors.divergence import Divergence
from megatron_monitor.detectors.hang import Hang
from megatron_monitor.detectors.launch_blocking import LaunchBlocking
from megatron_monitor.detectors.loss_spike import LossSpike
from megatron_monitor.detectors.memory_pressure import MemoryPressure
from megatron_monitor.detectors.mixed_log import MixedLog
from megatron_monitor.detectors.nan_loss import NanLoss
from megatron_monitor.detectors.overflow_storm import OverflowStorm
from megatron_monitor.detectors.restart_failed import RestartFailed
from megatron_monitor.detectors.resume_discontinuity import ResumeDiscontinuity
from megatron_monitor.detectors.slowdown import Slowdown
from megatron_monitor.detectors.source_lost import SourceLost
from megatron_monitor.detectors.straggler import Straggler

RULES: dict[str, type[Rule]] = {
    rule.name: rule
    for rule in (
        Hang, Slowdown, LaunchBlocking, Crash, CrashWithoutExit, CrashLoop, RestartFailed, LossSpike, Divergence,
        NanLoss, OverflowStorm, SourceLost, MixedLog, Configuration, ResumeDiscontinuity, CheckpointFailed,
        CheckpointOverdue, MemoryPressure, Straggler,
    )
}  # fmt: skip
"""Name -> rule, in the order in which they receive a step. The names are the kinds of incidents."""

if TYPE_CHECKING:
    IncidentKind = str
else:
    IncidentKind = Literal[tuple(RULES)]  # the configuration is checked against it
