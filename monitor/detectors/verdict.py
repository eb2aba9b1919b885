"""What a detector answers. `check(state, now, settings) -> Verdict` is every detector's shape; it changes nothing."""

from __future__ import annotations

from typing import Any, Literal, get_args

from msgspec import Struct, field

Severity = Literal["info", "warning", "critical"]
IncidentKind = Literal[
    "hang",
    "slowdown",
    "loss_spike",
    "divergence",
    "nan_loss",
    "loss_scale_collapse",
    "overflow_storm",
    "crash",
    "crash_without_exit",
    "crash_loop",
    "memory_pressure",
    "checkpoint_failed",
    "checkpoint_overdue",
    "resume_discontinuity",
    "configuration",
    "launch_blocking",
    "source_lost",
]
"""The closed set of incident kinds."""
INCIDENTS: tuple[str, ...] = get_args(IncidentKind)


class Verdict(Struct, frozen=True):
    """`status` clear: nothing is wrong; firing: something is; unknown: it could not be observed, keep what stood."""

    incident: str
    status: Literal["clear", "firing", "unknown"] = "clear"
    severity: Severity = "warning"
    summary: str = ""
    onset_iteration: int | None = None
    since: float | None = None
    evidence: dict[str, Any] = field(default_factory=dict)
    quiet: bool = False
    """Shown on the page and in the metrics, never sent to a person."""
