"""The remediator's record: what was planned and done, written before and after each action, read by the observer.

One JSON file. Only the remediator writes it; the observer reads it for the page, the metrics and the messages.
A step that is `begun` in the file may have been done: after a crash it becomes `unknown` and is not done again.
"""

import os
import shlex
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct, field

from megatron_monitor.detectors.base import Severity

Status = Literal["waiting", "begun", "done", "failed", "unknown", "skipped", "dry_run"]
ENDING: Final = frozenset({"cancel", "requeue", "resubmit"})
"""Actions that end a job, or begin one."""
NOT_DONE: Final = "not done: "
"""How an outcome begins where nothing was touched."""
_MOST: Final = 16 << 20  # bytes of the file: 500 executions of 20 KiB are 10 MiB


class Step(Struct):
    """One action. `commands` are argument lists, run in order until one fails."""

    action: str
    commands: list[list[str]] = field(default_factory=list)
    status: Status = "waiting"
    outcome: str = ""


class Execution(Struct):
    """One remediation applied to one incident of one job. Times are Unix seconds."""

    number: int
    run: str
    remediation: str
    incident: str
    incident_id: str
    severity: Severity
    planned_at: float
    dry_run: bool
    steps: list[Step]
    job: str = ""
    """`8_3` for an array task."""
    job_id: str = ""
    """Slurm's number of it."""
    job_uid: int | None = None
    job_started_at: float | None = None
    job_restarts: int = 0
    over: bool = False
    """The job had ended when this was planned."""
    proof: list[str] = field(default_factory=list)
    """Files that prove that the run is this job."""
    attempt: int = 0
    checkpoint: int | None = None
    """The last one when this was planned."""
    gave_up: bool = False
    """It restarts no more: `attempts` were made without a new checkpoint."""
    new_job: str = ""
    """The job that is expected to begin."""
    stuck: str = ""
    """Why that job cannot begin."""
    begun: bool = False
    """That job has begun."""
    ended_at: float | None = None
    """When its last step ended; None while it is open."""

    @property
    def id(self) -> str:
        """Its own, also after the record was lost and begun again."""
        return f"{self.planned_at} {self.number}"

    @property
    def open(self) -> bool:
        """Is a step still to be done?"""
        return any(step.status in ("waiting", "begun") for step in self.steps)

    @property
    def restarts(self) -> bool:
        """Did it start the job again, or try to? A dry run would have."""
        tried = ("begun", "done", "failed", "unknown", "dry_run")
        return any(step.action in ("requeue", "resubmit") and step.status in tried for step in self.steps)

    @property
    def acts(self) -> bool:
        """Does it end the job, or begin one? One that was refused did not."""
        return any(step.action in ENDING and step.status != "skipped" for step in self.steps)

    @property
    def ended_job(self) -> bool:
        """Has it ended the job?"""
        return any(step.action in ("cancel", "requeue") and step.status == "done" for step in self.steps)

    @property
    def trouble(self) -> str:
        """Why the attempt that it should bring does not begin; empty where it may."""
        ending = [step for step in self.steps if step.action in ENDING and step.commands]
        if self.dry_run or self.open or self.begun or all(step.status == "skipped" for step in ending):
            return ""
        if wrong := [step for step in ending if step.status != "done"]:
            return f"{wrong[-1].action} {wrong[-1].status} ({wrong[-1].outcome})"
        if self.gave_up:
            return "the job was ended, and is not started again: no new checkpoint came of the last attempts"
        return self.stuck


class Record(Struct):
    """Everything since `began_at`."""

    began_at: float
    executions: list[Execution] = field(default_factory=list)
    last: int = 0
    """The number of the newest execution."""
    plans: dict[str, list[str]] = field(default_factory=dict)
    """Run -> a line for each remediation that is for it: what it will do, or why it does nothing."""
    counts: dict[str, int] = field(default_factory=dict)
    """`REMEDIATION ACTION OUTCOME` -> steps."""


def file_in(state_directory: Path) -> Path:
    """The record's path, by the observer's state directory: both programs derive it from `state_dir`."""
    return state_directory.with_name(f"{state_directory.name}-remediator") / "record.json"


def read(path: Path) -> Record | None:
    """What the file says; None where there is none. Raises OSError and msgspec.MsgspecError."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            return msgspec.json.decode(stream.read(_MOST), type=Record)
    except FileNotFoundError:
        return None


def typed(step: Step) -> str:
    """The exact commands, as a person would type them."""
    return " && ".join(shlex.join(command) for command in step.commands)


def commands(execution: Execution) -> list[str]:
    """A line for each step: its commands and what became of them."""
    return [f"{step.action}: {typed(step)}: {step.outcome or step.status}" for step in execution.steps]


def summary(execution: Execution) -> str:
    """What an execution did, in a line."""
    dry_run = " (dry run)" if execution.dry_run else ""
    begin = f"remediation {execution.remediation}{dry_run}, {execution.incident}, job {execution.job or '-'}"
    stop = "; restarts no more: no new checkpoint came of the last ones" if execution.gave_up else ""
    parts = []
    for step in execution.steps:
        if step.status == "dry_run":
            parts.append(f"would run {typed(step)}")
        elif step.status in ("waiting", "begun"):
            parts.append(f"{step.action} {'waits' if step.status == 'waiting' else 'is under way'}: {typed(step)}")
        else:
            parts.append(f"{step.action} {step.status}" + (f" ({step.outcome})" if step.outcome else ""))
    return f"{begin}: {'; '.join(parts)}{stop}"
