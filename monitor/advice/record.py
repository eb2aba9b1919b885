"""The remediator's record of executions: one JSON file, written before and after each action.

Only the remediator writes the file; the observer reads it for the page, the metrics and the messages. A step that is
`begun` in the file may have been done: after a crash it becomes `unknown` and is not repeated.
"""

import shlex
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct, field

from megatron_monitor.detectors.base import Severity
from megatron_monitor.run.job import OVER
from megatron_monitor.run.records import SlurmJob
from megatron_monitor.store import read_foreign

# The observer keeps what it reads of another program in its own state, whose numbers have 64 bits.
_Number: TypeAlias = Annotated[int, Meta(ge=-(2**53), le=2**53)]
_Instant: TypeAlias = Annotated[float, Meta(ge=-1e11, le=1e11)]
_Counter: TypeAlias = Annotated[str, Meta(pattern="^[^ ]+ [^ ]+ [^ ]+$")]
Status = Literal["waiting", "begun", "done", "failed", "unknown", "skipped", "dry_run"]
ENDING: Final = frozenset({"cancel", "requeue", "resubmit"})
"""Actions that end or begin a job."""
NOT_DONE: Final = "not done: "
"""Prefix of an outcome if nothing was changed."""
_MAX_FILE: Final = 16 << 20  # bytes: 500 executions of 20 KiB are 10 MiB


class Step(Struct):
    """One action. `commands` are argument lists, run in order until one fails."""

    action: str
    commands: list[list[str]] = field(default_factory=list)
    status: Status = "waiting"
    outcome: str = ""


class Execution(Struct):
    """One remediation applied to one incident of one job. Times are instants of the record."""

    number: _Number
    run: str
    remediation: str
    incident: str
    incident_id: str
    severity: Severity
    planned_at: _Instant
    dry_run: bool
    steps: list[Step]
    was: SlurmJob
    """The job when the execution was planned."""
    proof: list[str] = field(default_factory=list)
    """Files that prove that the run belongs to this job."""
    attempt: _Number = 0
    checkpoint: _Number | None = None
    """Iteration of the last checkpoint when the execution was planned."""
    gave_up: bool = False
    """True: no restart, because `attempts` restarts brought no new checkpoint."""
    new_job: str = ""
    """Id of the job that should begin."""
    stuck: str = ""
    """Why the new job cannot begin."""
    begun: bool = False
    """True: the new job has begun."""
    ended_at: _Instant | None = None
    """When its last step ended; None while it is open."""

    @property
    def id(self) -> str:
        """An id that stays unique if the record is lost and begun again."""
        return f"{self.planned_at} {self.number}"

    @property
    def job(self) -> str:
        """Number of the job."""
        return self.was.number

    @property
    def over(self) -> bool:
        """True if the job had ended when the execution was planned."""
        return self.was.state in OVER

    @property
    def open(self) -> bool:
        """True if a step is still to be done."""
        return any(step.status in ("waiting", "begun") for step in self.steps)

    @property
    def restarts(self) -> bool:
        """True if it restarted the job, tried to, or would have in a dry run."""
        tried = ("begun", "done", "failed", "unknown", "dry_run")
        return any(step.action in ("requeue", "resubmit") and step.status in tried for step in self.steps)

    @property
    def acts(self) -> bool:
        """True if it ends or begins a job, unless that was refused."""
        return any(step.action in ENDING and step.status != "skipped" for step in self.steps)

    @property
    def ended_job(self) -> bool:
        """True if it has ended the job."""
        return any(step.action in ("cancel", "requeue") and step.status == "done" for step in self.steps)

    @property
    def trouble(self) -> str:
        """Why the expected attempt does not begin; empty if it still may."""
        ending = [step for step in self.steps if step.action in ENDING and step.commands]
        if self.dry_run or self.open or self.begun or all(step.status == "skipped" for step in ending):
            return ""
        if wrong := [step for step in ending if step.status != "done"]:
            return f"{wrong[-1].action} {wrong[-1].status} ({wrong[-1].outcome})"
        if self.gave_up:
            return "the job was ended and not restarted: the last attempts saved no new checkpoint"
        return self.stuck


class Record(Struct):
    """Everything since `began_at`. Instants are seconds of a steady clock, which continues over restarts."""

    began_at: _Instant
    executions: list[Execution] = field(default_factory=list)
    last: _Number = 0
    """Number of the newest execution."""
    plans: dict[str, list[str]] = field(default_factory=dict)
    """Run -> one line per matching remediation: what it will do, or why it does nothing."""
    counts: dict[_Counter, _Number] = field(default_factory=dict)
    """`REMEDIATION ACTION OUTCOME` -> steps."""
    wall_offset: _Instant = 0.0
    """Seconds to add to an instant to get Unix time."""
    origin: tuple[str, float] = ("", 0.0)
    """Of the SteadyClock."""


def file_in(state_directory: Path) -> Path:
    """Return the record's path next to the observer's state directory: both processes derive it from `state_dir`."""
    return state_directory.with_name(f"{state_directory.name}-remediator") / "record.json"


def read(path: Path) -> Record | None:
    """Return the record in a file; None without a file. Raises OSError and msgspec.MsgspecError."""
    try:
        return msgspec.json.decode(read_foreign(path, _MAX_FILE), type=Record)
    except FileNotFoundError:
        return None


def typed(step: Step) -> str:
    """Return the exact commands in shell syntax."""
    return " && ".join(shlex.join(command) for command in step.commands)


def commands(execution: Execution) -> list[str]:
    """Return one line per step: its commands and their outcome."""
    return [f"{step.action}: {typed(step)}: {step.outcome or step.status}" for step in execution.steps]


def summary(execution: Execution) -> str:
    """Return what an execution did, as one line."""
    dry_run = " (dry run)" if execution.dry_run else ""
    begin = f"remediation {execution.remediation}{dry_run}, {execution.incident}, job {execution.job or '-'}"
    stop = "; no further restart: the last attempts saved no new checkpoint" if execution.gave_up else ""
    parts = []
    for step in execution.steps:
        if step.status == "dry_run":
            parts.append(f"would run {typed(step)}")
        elif step.status in ("waiting", "begun"):
            parts.append(f"{step.action} {'waits' if step.status == 'waiting' else 'is running'}: {typed(step)}")
        else:
            parts.append(f"{step.action} {step.status}" + (f" ({step.outcome})" if step.outcome else ""))
    return f"{begin}: {'; '.join(parts)}{stop}"
