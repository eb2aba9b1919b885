"""What was planned and done: plain values, part of the state file.

A course is one remediation acting on one incident: its steps with their exact commands, in order. A step is `begun` in
the state file before it is handed to the executor. One that a crash left so is `unknown`: it is not done again. To the
executor and back cross frozen values: an order, and what became of it.

A restart is one transaction. `ask`: all that could refuse it is asked before the first step that ends the job; nothing
is changed by that, so a crash in it loses nothing. Then its steps. Then `look`, now and then, until a launch begins.
A restart that ended the job, or found it ended, and brought no launch is `trouble`: an incident of its own.

    ask ──► (dump) ──► cancel | requeue ──► resubmit: held, no other came first, released ──► look ──► begun
     └► refused: nothing was done          └─ failed, skipped, unknown, or cannot start ─► trouble ──────────────┘
"""

import shlex
from typing import Final, Literal

from msgspec import Struct, field

from megatron_monitor.detectors.base import Severity

Status = Literal["waiting", "begun", "done", "failed", "unknown", "skipped", "dry_run"]
ENDING: Final = frozenset({"cancel", "requeue", "resubmit"})
"""Actions that end a job, or begin one."""
ASK: Final = -1
LOOK: Final = -2
"""In place of a step's number: what a course asks before, and afterwards."""
NOT_DONE: Final = "not done: "
"""How an outcome begins where nothing was touched."""


class Step(Struct):
    """One action. `commands` are argument lists, run in order until one fails."""

    action: str
    commands: list[list[str]] = field(default_factory=list)
    status: Status = "waiting"
    outcome: str = ""
    ended_at: float | None = None
    stamp: int = 0
    """The number of the state in which it was begun."""
    tests: list[list[str]] = field(default_factory=list)
    """Commands that change nothing and fail where this would."""
    not_before: float = 0.0
    """It could not be done yet: the job is still ending, or Slurm did not answer."""

    @property
    def ahead(self) -> bool:
        """Was nothing done of it yet?"""
        return self.status in ("waiting", "dry_run") or not self.commands


class Course(Struct):
    """One remediation on one incident. Instants."""

    number: int
    run: str
    remediation: str
    incident: str
    severity: Severity
    opened_at: float
    planned_at: float
    dry_run: bool
    steps: list[Step]
    job: str = ""
    job_uid: int | None = None
    job_started_at: float | None = None
    job_restarts: int = 0
    proof: list[str] = field(default_factory=list)
    """Files that say which job the run is: its output, or named by its id."""
    over: bool = False
    """The job had ended when this was planned."""
    checkpoint: int | None = None
    """The last one when this was planned."""
    gave_up: bool = False
    """It restarts no more: `attempts` were made without a new checkpoint."""
    reported: bool = False
    """Its outcome was said."""
    launch: int = 0
    """The number of the launch that it is about."""
    asked: Literal["no", "begun", "done"] = "no"
    """What could refuse it."""
    at: float = 0.0
    """Not before then is Slurm asked again."""
    new_job: str = ""
    """The job that is to begin: the next launch is looked for."""
    stuck: str = ""
    """Why that cannot begin."""
    begun: bool = False
    """It has, or the run goes on."""

    @property
    def open(self) -> bool:
        """Is something still to be done?"""
        return self.asked == "begun" or any(step.status in ("waiting", "begun") for step in self.steps)

    @property
    def ending(self) -> list[Step]:
        """Its steps with commands that end the job, or begin one."""
        return [step for step in self.steps if step.action in ENDING and step.commands]

    @property
    def restarts(self) -> bool:
        """Did it start the job anew, or try to? A dry run would have."""
        tried = ("begun", "done", "failed", "unknown", "dry_run")
        return any(step.action in ("requeue", "resubmit") and step.status in tried for step in self.steps)

    @property
    def acts(self) -> bool:
        """Does it end the job, or begin one? One that was refused did not."""
        return any(step.action in ENDING and step.status != "skipped" for step in self.steps)

    @property
    def ended(self) -> bool:
        """Has it ended the job, as far as is known?"""
        return any(step.action in ENDING and step.status == "done" for step in self.steps)

    @property
    def trouble(self) -> str:
        """Why the launch that it was to bring does not come; empty where it may."""
        if self.dry_run or self.open or self.begun:
            return ""
        touched = [step for step in self.ending if step.status != "skipped"]
        wrong = [step for step in self.ending if step.status != "done"]
        if touched and wrong:
            return f"{wrong[-1].action} {wrong[-1].status} ({wrong[-1].outcome})"
        if touched and self.gave_up:
            return "the job was ended, and is not started again: no new checkpoint came of the last launches"
        return self.stuck


class Record(Struct):
    """Everything since `began_at`; None: nothing was kept yet."""

    courses: list[Course] = field(default_factory=list)
    began_at: float | None = None
    last: int = 0
    """The number of the newest course."""


class Order(Struct, frozen=True):
    """One step to be done now. The job must still be in the launch that the course was planned for."""

    course: int
    step: int
    run: str
    action: str
    commands: tuple[tuple[str, ...], ...]
    job: str
    job_uid: int | None
    proof: tuple[str, ...]
    job_started_at: float | None
    job_restarts: int
    over: bool
    """The job had ended when this was planned."""
    check: bool
    """Slurm is asked first whether it is still so; behind a step of the same course that has ended the job, whether it
    was that which ended it.
    """


class StepDone(Struct, frozen=True):
    """What became of an order."""

    course: int
    step: int
    ok: bool
    outcome: str
    again: bool = False
    """It could not be done yet, and nothing was."""
    job: str = ""
    """The job that is to begin by it."""


def shown(step: Step) -> str:
    """The exact commands, as a person would type them."""
    return " && ".join(shlex.join(command) for command in step.commands)


def commands(course: Course) -> list[str]:
    """A line for each step: its commands and what became of them."""
    return [f"{step.action}: {shown(step)}: {step.outcome or step.status}" for step in course.steps]


def order(course: Course, index: int) -> Order:
    """A step, or what is asked before the first of them, or about the job that is to begin."""
    action, check, job = "look", True, course.job
    commands: list[list[str]] = []
    if index == ASK:
        action, commands = course.ending[-1].action, [test for step in course.ending for test in step.tests]
    elif index == LOOK:
        job = course.new_job
    else:
        step = course.steps[index]
        action, commands = step.action, step.commands
        check = not any(one.action in ENDING and one.status == "done" for one in course.steps[:index])
    return Order(
        course.number, index, course.run, action, tuple(tuple(command) for command in commands), job, course.job_uid,
        tuple(course.proof), course.job_started_at, course.job_restarts, course.over, check,
    )  # fmt: skip


def told(course: Course) -> str:
    """What a course did, in a line."""
    dry_run = " (dry run)" if course.dry_run else ""
    begin = f"remediation {course.remediation}{dry_run}, {course.incident}, job {course.job or '-'}"
    stop = "; restarts no more: no new checkpoint came of the last ones" if course.gave_up else ""
    parts = []
    for step in course.steps:
        if step.status == "dry_run":
            parts.append(f"would run {shown(step)}")
        elif step.status in ("waiting", "begun"):
            parts.append(f"{step.action} {'waits' if step.status == 'waiting' else 'is under way'}: {shown(step)}")
        else:
            parts.append(f"{step.action} {step.status}" + (f" ({step.outcome})" if step.outcome else ""))
    return f"{begin}: {'; '.join(parts)}{stop}"
