"""Advice about a run for programs that act: a launcher that asks, and the remediator.

`extension` collects the facts and shows what was done, `choice` decides the advice, `record` is the file of the
remediator's executions. This module has the values of `/api/v1/advice`. Times are Unix seconds.
"""

from typing import Literal

from msgspec import Struct, field

from megatron_monitor.detectors.base import Severity


class OpenIncident(Struct, frozen=True):
    """One incident that is firing."""

    id: str
    """Unchanged after a restart of the observer and after a loss of its state."""
    incident: str
    severity: Severity
    since: float
    attempt: int
    """The number of the attempt in which it began."""
    failure: str = ""
    """The cause, of a crash."""
    nodes: list[str] = field(default_factory=list)
    """Nodes that the log names as the cause."""


class Stream(Struct, frozen=True):
    """One followed file or pushed stream of the run."""

    path: str
    pushed: bool
    """True: a sender chose its path and content."""
    owner: int | None = None
    """User id of the file; None if unknown, and for a pushed stream."""
    written_at: float = 0.0
    steps: bool = False
    """True: it has lines of the training loop."""


class Neighbour(Struct, frozen=True):
    """Another run with a stream of the same job."""

    run: str
    still: bool
    """True: it hangs or has ended, and all its files are readable."""
    progress_at: float | None = None


class Advice(Struct, frozen=True):
    """The advice for one run and the facts that it depends on. What is unknown is None or empty."""

    run: str
    advice: Literal["wait", "restart", "stop", "none"] = "none"
    reason: str = "no run of this name is known"
    exclude: list[str] | None = None
    """Nodes that a restart should exclude; None only if the run is unknown."""
    evidence: list[str] = field(default_factory=list)
    """Lines of the log."""
    since: float | None = None
    """When the incident began."""
    checkpoint: int | None = None
    """Iteration of the last complete checkpoint."""
    same_cause_before: int = 0
    """Earlier attempts that ended for the same cause."""
    attempt: int = 0
    incidents: list[OpenIncident] = field(default_factory=list)
    job: str = ""
    """Slurm's id of the job, `8_3` for an array task. The remediator verifies it."""
    streams: list[Stream] = field(default_factory=list)
    followed: bool = False
    """True: all its files are readable and read to their ends."""
    progress_at: float | None = None
    neighbours: list[Neighbour] = field(default_factory=list)
    undecided: bool = False
    """True: the run of some lines of the job is not known yet."""
    second_job: str = ""
    """Another running job that writes into the same run."""


class AdviceList(Struct, frozen=True):
    """The answer for all runs that have an open incident, or for one run."""

    runs: list[Advice]
    age_seconds: float
    """Age of the facts."""
    ready: bool = False
    """False while the observer reads a backlog."""
