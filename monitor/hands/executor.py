"""Orders in, outcomes out: the commands of a step, one after the other, on a thread of its own.

Law: no shell, argument lists only; each command is bounded in time. Before each one Slurm is asked once more: a job
that has ended, was requeued or runs again since the plan was made is left alone; a new job is submitted only behind one
that Slurm calls CANCELLED, or that was over before.
Risk left: what happens to the job in the moment between that answer and the command.
"""

import logging
import os
import re
import shutil
import stat
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import dropwhile
from pathlib import Path
from typing import IO, Final

from megatron_monitor.hands.record import ASK, LOOK, NOT_DONE, Order, StepDone
from megatron_monitor.hands.successors import QUEUE_FORMAT, Successor, lost_option, successors
from megatron_monitor.run.job import OVER, WAITING
from megatron_monitor.run.records import Job
from megatron_monitor.slurm import JobQuestion
from megatron_monitor.slurm.client import TIMEOUT, VARIABLES, look_up
from megatron_monitor.system.asking import Asking
from megatron_monitor.system.clock import Clock
from megatron_monitor.system.process import Finished, run

_MOST: Final = 16 << 20  # bytes that are kept of a dump: 1,000 processes with 16 KiB of stacks each
_DUMP_TIMEOUT: Final = 120.0  # seconds, for all nodes: py-spy takes one a process, srun some on a thousand nodes
_CLIENTS: Final = frozenset({"scontrol", "scancel", "sbatch", "sacct", "srun", "squeue"})
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_SUBMITTED: Final = re.compile(rb"(\d{1,12})(?:;[\w.-]{1,64})?\s*")
_NEVER: Final = (
    "BadConstraints", "DependencyNeverSatisfied", "ReqNodeNotAvail", "JobHeld", "InvalidAccount", "InvalidQOS",
    "PartitionDown", "PartitionInactive", "PartitionNodeLimit", "PartitionTimeLimit", "JobLaunchFailure",
)  # fmt: skip
"""Reasons for which a job waits until a person does something."""

_log = logging.getLogger(__name__)


class LaterError(Exception):
    """It cannot be done yet, and nothing was: why."""


class RefusedError(Exception):
    """It must not be done, and nothing was: why."""


class Executor(Asking[Order, StepDone]):
    """`stop` leaves a command that runs to end by itself: its step is unknown to the next daemon."""

    def __init__(self, clock: Clock, wake: Callable[[], None]) -> None:
        """`wake` makes the loop turn."""
        super().__init__(
            "hands",
            self._answer,
            lambda order, error: _outcome(order, False, f"{type(error).__name__} in the executor"),
            0,
            wake,
        )
        self.uid = os.geteuid()
        """As whom sbatch submits."""
        self.directory = Path("stacks")
        """For dumps: a file each."""
        self._clock = clock

    def _answer(self, order: Order) -> StepDone:
        try:
            if order.step == LOOK:
                return self._look(order)
            return self._ask(order) if order.step == ASK else _outcome(order, *self.carry_out(order))
        except LaterError as why:
            return StepDone(order.course, order.step, False, str(why), again=True)

    def carry_out(self, order: Order) -> tuple[bool, str]:
        """Do it now; whether that went well, and what came of it. Raises LaterError."""
        try:
            if order.action == "resubmit":
                return self._resubmit(order)
            if order.check:
                self._unchanged(order)
        except (RefusedError, LaterError) as why:
            if order.action == "resubmit" and isinstance(why, LaterError):
                raise
            return False, f"{NOT_DONE}{why}"
        if order.action == "dump_stacks":
            return self._dump(order)
        for place, command in enumerate(order.commands):
            finished = self._call(command)
            if finished.message:
                # Held for a change that was refused, or perhaps held by a call that did not end in time: never left so.
                if place < len(order.commands) - 1 and (place > 0 or finished.code is None):
                    self._call(order.commands[-1])
                return False, f"{command[0]} {command[1]}: {finished.message}"
        return True, "done"

    # --- before and afterwards --------------------------------------------------------------------------------------

    def _ask(self, order: Order) -> StepDone:
        """All that could refuse the steps to come. Nothing is changed by it."""
        follows = ""
        try:
            job = self._unchanged(order)
            # Behind its end has begun whatever waited for it; one that runs and is requeued stays where it is.
            if order.action == "resubmit" or order.over:
                follows = self._follower(order, job)
            if order.action == "resubmit" and not follows and (lost := self._lost(order, job)):
                raise RefusedError(
                    f"job {order.job} was submitted with {lost}, which a new one would not have: requeue it"
                )
            for test in order.commands if not follows else ():
                if message := self._call(test).message:
                    raise RefusedError(f"{' '.join(test[:2])}: {message}")
        except RefusedError as why:
            return StepDone(order.course, ASK, False, f"{NOT_DONE}{why}")
        return StepDone(order.course, ASK, True, "", job=follows)

    def _lost(self, order: Order, job: Job) -> str:
        """An option of the job that a new one of its own script would not have, where the accounting tells of one."""
        words = {word for command in order.commands for word in command}
        if job.command.split(" ")[0] not in words:
            return ""  # a script of the site's own is a submission of its own
        found = self._call(("sacct", "-X", "-n", "-P", "-o", "SubmitLine", "-j", order.job))
        return lost_option(found.output.decode("utf-8", "replace").partition("\n")[0], words) if found.code == 0 else ""

    def _follower(self, order: Order, job: Job) -> str:
        """The job that begins by itself when this one is cancelled. Raises RefusedError where another goes on."""
        others = self._others(order, job)
        if others and (order.over or not all(one.follows for one in others)):
            raise RefusedError(f"job {others[0].number} {others[0].why}")
        return others[0].number if others else ""

    def _look(self, order: Order) -> StepDone:
        """Does the job begin that was to? `ok`: it has; the outcome: why it never will."""
        answer = look_up(self._clock, JobQuestion(order.run, order.job))
        job, stuck = answer.job, f"job {order.job} is gone from Slurm" if answer.gone else ""
        begun = False
        if job is not None:
            begun = job.state not in WAITING and job.started_at != order.job_started_at
            never = job.reason.startswith(_NEVER) and job.state in WAITING
            stuck = f"job {order.job} is {job.state} for {job.reason}" if never else ""
        return StepDone(order.course, LOOK, begun, stuck, again=not (begun or answer.job or answer.gone))

    def _job(self, order: Order) -> Job:
        answer = look_up(self._clock, JobQuestion(order.run, order.job))
        if answer.job is None:
            raise LaterError(answer.problem)
        return answer.job

    def _unchanged(self, order: Order) -> Job:
        """The job, if it is what it was when the plan was made."""
        job = self._job(order)
        if job.uid != order.job_uid:
            raise RefusedError(f"job {order.job} is another user's now: {job.user}'s")
        doubts = [_doubt(path, job) for path in order.proof]
        if all(doubts):
            raise RefusedError(f"job {order.job} is not proven: {doubts[0] if doubts else 'no file says so'}")
        if job.restarts != order.job_restarts or job.started_at != order.job_started_at:
            raise RefusedError(f"job {order.job} was started anew since")
        if order.over != (job.state in OVER) or (not order.over and job.state != "RUNNING"):
            raise RefusedError(f"job {order.job} is {job.state} now")
        return job

    # --- a new job --------------------------------------------------------------------------------------------------

    def _resubmit(self, order: Order) -> tuple[bool, str]:
        """A new job, held until it is known that nobody else has submitted one: of two monitors that did, the one whose
        job has the lower number goes on. A submission whose answer is lost stays held, and never runs.
        """
        job = self._unchanged(order) if order.check else self._job(order)
        if job.state not in OVER:
            raise LaterError(f"job {order.job} is {job.state} still")
        if not order.check and job.state == "COMPLETED":
            return True, f"not submitted: job {order.job} has completed by itself"
        if not order.check and job.state != "CANCELLED":
            raise RefusedError(f"job {order.job} is {job.state}, and was to be CANCELLED")
        if others := self._others(order, job):
            raise RefusedError(f"job {others[0].number} {others[0].why}")
        command = order.commands[0]
        finished = self._call((command[0], "--hold", *command[1:]))
        submitted = _SUBMITTED.fullmatch(finished.output)
        if b"ontact slurm controller" in finished.errors:
            raise LaterError(f"sbatch: {finished.message}")
        if finished.message or submitted is None:
            held = "" if finished.code else "; a held job may be in the queue"
            return False, f"sbatch: {finished.message or 'no job number was printed'}{held}"
        return self._released(order, job, submitted[1].decode())

    def _released(self, order: Order, job: Job, number: str) -> tuple[bool, str]:
        """The new job may begin, or is withdrawn."""
        try:
            others = self._others(order, job, number)
        except LaterError as why:
            return False, f"submitted job {number}, which is held: {why}"
        first = [one.number for one in others if not one.held or int(one.number) < int(number)]
        command = ("scancel", number) if first else ("scontrol", "release", number)
        if message := self._call(command).message:
            return False, f"submitted job {number}, which is held: {' '.join(command)}: {message}"
        return True, f"job {first[0]} came first" if first else f"submitted job {number}"

    def _others(self, order: Order, job: Job, but: str = "") -> list[Successor]:
        """Jobs that go on where this one ends. Raises LaterError."""
        if order.action == "resubmit" and job.uid != self.uid:
            raise RefusedError(f"sbatch would submit as uid {self.uid}, and job {order.job} is {job.user}'s")
        if not (job.command and job.directory):
            raise RefusedError(f"Slurm does not tell the command and directory of job {order.job}, to find another by")
        found = self._call(("squeue", "-h", "-u", str(job.uid), "-o", QUEUE_FORMAT))
        if found.message:
            raise LaterError(f"squeue: {found.message}")
        own = {" ".join(dropwhile(lambda word: word.startswith("-"), command[1:])) for command in order.commands} - {""}
        # Behind a cancellation begins in the same directory whatever waited for its nodes.
        ended = job.ended_at if order.step == ASK and order.over else None
        return successors(found.output.decode("utf-8", "replace"), job, own | {job.command}, but, ended)

    def _call(self, command: Sequence[str], copy: IO[bytes] | None = None) -> Finished:
        path = shutil.which(command[0]) if command[0] in _CLIENTS else None
        if path is None:
            return Finished(None, problem=f"there is no {command[0]} here")
        # What is read is asked for in a form that can be; what begins a job hands its environment on.
        variables = VARIABLES if command[0] == "squeue" else None
        return run(
            [path, *command[1:]], self._clock, TIMEOUT if copy is None else _DUMP_TIMEOUT, _MOST, variables, copy
        )

    def _dump(self, order: Order) -> tuple[bool, str]:
        at = datetime.fromtimestamp(self._clock.wall(), UTC).strftime("%Y%m%dT%H%M%SZ")
        path = self.directory / f"{_UNSAFE.sub('_', order.run)[:100]}-{order.job}-{at}.txt"
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            with path.open("xb") as stream:
                finished = self._call(order.commands[0], stream)
        except OSError as error:
            return False, f"{path}: {error.strerror or error}"
        size = path.stat().st_size
        if finished.message:
            return False, f"{finished.message}; {size} bytes in {path}"
        return size > 0, f"{size} bytes in {path}"


def _doubt(path: str, job: Job) -> str:
    """Why the file does not say which job it is of; empty: it does. Whoever may choose what stands at a path, by a
    link or as the owner of its directory, could else have another's job ended.
    """
    try:
        file, folder = os.lstat(path), os.stat(os.path.dirname(path))
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    guarded = folder.st_uid == 0 and (not folder.st_mode & 0o022 or folder.st_mode & stat.S_ISVTX)
    doubts = (
        (not stat.S_ISREG(file.st_mode), "is a link"),
        (path not in (job.output, job.errors) and os.path.realpath(path) != path, "goes over a link"),
        (file.st_nlink != 1, "has several names"),
        (file.st_uid != job.uid, "is not the file of the job's user"),
        (folder.st_uid != job.uid and not guarded, "lies in a directory of somebody else"),
    )
    return next((f"{path} {why}" for wrong, why in doubts if wrong), "")


def _outcome(order: Order, ok: bool, outcome: str) -> StepDone:
    """Said, and reported to the loop."""
    level = logging.WARNING if ok else logging.ERROR
    _log.log(level, "run=%s job=%s action=%s ok=%s %s", order.run, order.job, order.action, ok, outcome)
    return StepDone(order.course, order.step, ok, outcome)
