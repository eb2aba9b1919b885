"""What was planned and done: plain values, part of the state file.

A course is one policy acting on one incident: its steps with their exact commands, in order. A step is `begun` in the
state file before it is handed to the executor. One that a crash left so is `unknown`: it is not done again. To the
executor and back cross frozen values: an order, and what became of it.
"""

import shlex
from dataclasses import dataclass, field
from typing import Literal

from monitor.detectors.base import Severity

Status = Literal["waiting", "begun", "done", "failed", "unknown", "skipped", "dry_run"]


@dataclass(slots=True)
class Step:
    """One action. `commands` are argument lists, run in order until one fails."""

    action: str
    commands: list[list[str]] = field(default_factory=list)
    status: Status = "waiting"
    outcome: str = ""
    began_at: float | None = None
    ended_at: float | None = None
    to: list[str] = field(default_factory=list)
    """Of `notify`: the notifiers."""
    timeout: float | None = None
    directory: str | None = None
    """Of `dump_stacks`: where the output goes; None: below the state directory."""
    stamp: int = 0
    """The number of the state in which it was begun."""


@dataclass(slots=True)
class Course:
    """One policy on one incident. Instants."""

    number: int
    run: str
    policy: str
    incident: str
    severity: Severity
    opened_at: float
    planned_at: float
    dry_run: bool
    steps: list[Step]
    job: str = ""
    job_started_at: float | None = None
    job_restarts: int = 0
    over: bool = False
    """The job had ended when this was planned."""
    checkpoint: int | None = None
    """The last one when this was planned."""
    gave_up: bool = False
    """It restarts no more: `attempts` were made without a new checkpoint."""
    reported: bool = False
    """Its outcome was said."""

    @property
    def open(self) -> bool:
        """Is something still to be done?"""
        return any(step.status in ("waiting", "begun") for step in self.steps)

    @property
    def restarts(self) -> bool:
        """Did it start the job anew, or try to?"""
        tried = ("begun", "done", "failed", "unknown")
        return any(step.action in ("requeue", "resubmit") and step.status in tried for step in self.steps)

    @property
    def ends(self) -> bool:
        """Does it end the job?"""
        return any(step.action in ("cancel", "requeue") for step in self.steps)


@dataclass(slots=True)
class Record:
    """Everything since `began_at`; None: nothing was kept yet."""

    courses: list[Course] = field(default_factory=list)
    began_at: float | None = None
    last: int = 0
    """The number of the newest course."""


@dataclass(frozen=True, slots=True)
class Order:
    """One step to be done now. The job must still be in the launch that the course was planned for."""

    course: int
    step: int
    run: str
    action: str
    commands: tuple[tuple[str, ...], ...]
    timeout: float | None
    directory: str | None
    job: str
    job_started_at: float | None
    job_restarts: int
    over: bool
    """The job had ended when this was planned."""
    check: bool
    """Slurm is asked first; not after a step of the same course that has ended the job."""


@dataclass(frozen=True, slots=True)
class StepDone:
    """What became of an order."""

    course: int
    step: int
    ok: bool
    outcome: str


def shown(step: Step) -> str:
    """The exact commands, as a person would type them."""
    if step.action == "notify":
        return f"notify {', '.join(step.to)}"
    return " && ".join(shlex.join(command) for command in step.commands)
