"""Slurm's clients: what could refuse the steps, one step, and whether the new job begins.

Rule: no shell, argument lists only; each command is bounded in time. Before each one Slurm is asked once more: a job
that has ended, was requeued or was started again since the plan was made is left alone. A new job is submitted only
behind one that Slurm calls CANCELLED, or that had ended before.
Risk left: what happens to the job in the moment between that answer and the command.
"""

import logging
import os
import re
import shutil
import stat
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import dropwhile
from pathlib import Path
from typing import IO, Final

from megatron_monitor.advice.record import NOT_DONE, Execution, Record, Step
from megatron_monitor.remediator.plan import RefusedError, drained, too_many_drained, trials_of
from megatron_monitor.remediator.successors import QUEUE_FORMAT, Successor, lost_option, successors
from megatron_monitor.run.job import OVER, WAITING
from megatron_monitor.run.records import SlurmJob
from megatron_monitor.slurm import JobQuestion
from megatron_monitor.slurm.client import TIMEOUT, VARIABLES, look_up
from megatron_monitor.system.clock import Clock
from megatron_monitor.system.process import Finished, run

_MOST: Final = 16 << 20  # bytes that are kept of a dump: 1,000 processes with 16 KiB of stacks each
_DUMP_TIMEOUT: Final = 120.0  # seconds, for all nodes: py-spy takes one a process, srun some on a thousand nodes
_CLIENTS: Final = frozenset({"scontrol", "scancel", "sbatch", "sacct", "srun", "squeue"})
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_SUBMITTED: Final = re.compile(rb"(\d{1,12})(?:;[\w.-]{1,64})?\s*")
_NODE: Final = re.compile(r"NodeName=(\S+) (?:.* )?State=(\S+)")
_OURS: Final = re.compile(r" Reason=megatron-monitor: ")
_SICK: Final = ("DOWN", "FAIL", "ERROR", "NOT_RESPONDING", "*")
_NEVER: Final = (
    "BadConstraints", "DependencyNeverSatisfied", "ReqNodeNotAvail", "JobHeld", "InvalidAccount", "InvalidQOS",
    "PartitionDown", "PartitionInactive", "PartitionNodeLimit", "PartitionTimeLimit", "JobLaunchFailure",
)  # fmt: skip
"""Reasons for which a job waits until a person does something."""

_log = logging.getLogger(__name__)


class LaterError(Exception):
    """It cannot be done yet, and nothing was: why."""


class Slurm:
    """Called by one thread; a call returns when its commands have ended."""

    def __init__(self, clock: Clock, directory: Path) -> None:
        """Dumps are files in `directory`."""
        self.directory = directory
        self.uid = os.geteuid()
        """The user that sbatch submits as."""
        self._clock = clock

    def job(self, number: str) -> SlurmJob:
        """What Slurm says of the job now. Raises LaterError."""
        answer = look_up(self._clock, JobQuestion("", number))
        if answer.job is None:
            raise LaterError(answer.problem)
        return answer.job

    # --- before -----------------------------------------------------------------------------------------------------

    def check(self, execution: Execution, job: SlurmJob, record: Record) -> None:
        """Ask for all that could refuse its steps; those that are refused become `skipped`, and a resubmission that is
        not needed `done`. Nothing is changed in Slurm. Raises LaterError.
        """
        for step in execution.steps:
            if step.action == "drain" and step.commands and (why := self._undrainable(execution, step, job, record)):
                step.status, step.outcome = "skipped", f"{NOT_DONE}{why}"
        ending = [step for step in execution.steps if step.action in ("cancel", "requeue", "resubmit")]
        try:
            if ending:
                self._check_restart(execution, ending[-1].action, job)
        except RefusedError as why:
            for step in ending:
                step.status, step.outcome = "skipped", f"{NOT_DONE}{why}"

    def _check_restart(self, execution: Execution, action: str, job: SlurmJob) -> None:
        self._unchanged(execution, job)
        follower = ""
        # Behind its end has begun whatever waited for it; one that runs and is requeued stays where it is.
        if action == "resubmit" or execution.over:
            others = self._others(execution, job, action, ended=job.ended_at if execution.over else None)
            if others and (execution.over or not all(one.follows for one in others)):
                raise RefusedError(f"job {others[0].number} {others[0].why}")
            follower = others[0].number if others else ""
        if follower:
            for step in execution.steps:
                if step.action == "resubmit":
                    step.status, step.outcome = "done", f"not submitted: job {follower} follows by itself"
                    execution.new_job = follower
            return
        tests = trials_of(execution, job)
        if action == "resubmit" and (lost := self._lost(execution, job, tests)):
            raise RefusedError(
                f"job {execution.job} was submitted with {lost}, which a new one would not have: requeue it"
            )
        for test in tests:
            if message := self._call(test).message:
                raise RefusedError(f"{' '.join(test[:2])}: {message}")

    def _lost(self, execution: Execution, job: SlurmJob, tests: Sequence[Sequence[str]]) -> str:
        """An option of the job that a new one of its own script would not have, where the accounting knows of one."""
        options = {word for test in tests for word in test}
        if job.command.split(" ")[0] not in options:
            return ""  # a script of the site's own is a submission of its own
        found = self._call(("sacct", "-X", "-n", "-P", "-o", "SubmitLine", "-j", execution.job))
        return (
            lost_option(found.output.decode("utf-8", "replace").partition("\n")[0], options) if found.code == 0 else ""
        )

    def _undrainable(self, execution: Execution, step: Step, job: SlurmJob, record: Record) -> str:
        """Why the step's nodes are not drained. What a log prints is not enough: Slurm must find them ill, too."""
        found = self._call(("scontrol", "show", "node", "-o"))
        if found.message:
            raise LaterError(f"scontrol show node: {found.message}")
        lines = found.output.decode("utf-8", "replace").splitlines()
        states = {match[1]: match[2] for line in lines if (match := _NODE.match(line))}
        for name in drained(step):
            if job.state != "NODE_FAIL" and not any(word in states.get(name, "") for word in _SICK):
                return f"the log alone accuses {name}: Slurm calls it {states.get(name, 'unknown')}"
        ours = sum("DRAIN" in line and bool(_OURS.search(line)) for line in lines)
        return too_many_drained(execution, record, ours, len(states))

    # --- doing ------------------------------------------------------------------------------------------------------

    def carry_out(self, execution: Execution, index: int) -> tuple[bool, str]:
        """Do a step now; whether that went well, and what came of it. Raises LaterError where nothing was done yet."""
        step = execution.steps[index]
        behind = any(one.action in ("cancel", "requeue") and one.status == "done" for one in execution.steps[:index])
        try:
            if step.action == "resubmit":
                ok, outcome = self._resubmit(execution, step, behind=behind)
            else:
                if not behind:
                    self._unchanged(execution, self.job(execution.job))
                ok, outcome = self._dump(execution, step) if step.action == "dump_stacks" else self._run(step)
        except RefusedError as why:
            ok, outcome = False, f"{NOT_DONE}{why}"
        level = logging.WARNING if ok else logging.ERROR
        _log.log(level, "run=%s job=%s action=%s ok=%s %s", execution.run, execution.job, step.action, ok, outcome)
        return ok, outcome

    def _run(self, step: Step) -> tuple[bool, str]:
        for place, command in enumerate(step.commands):
            finished = self._call(command)
            if finished.message:
                # Held for a change that was refused, or perhaps held by a call that did not end in time: never left so.
                if place < len(step.commands) - 1 and (place > 0 or finished.code is None):
                    self._call(step.commands[-1])
                return False, f"{command[0]} {command[1]}: {finished.message}"
        return True, "done"

    def _unchanged(self, execution: Execution, job: SlurmJob) -> None:
        """Raises RefusedError unless the job is what it was when the plan was made."""
        number = execution.job
        if (job.id, job.array_id or job.id) != (execution.job_id, number):
            raise RefusedError(f"Slurm shows job {job.array_id or job.id} in place of {number}")
        if job.uid != execution.job_uid:
            raise RefusedError(f"job {number} is another user's now: {job.user}'s")
        doubts = [_doubt(path, job) for path in execution.proof]
        if all(doubts):
            raise RefusedError(f"job {number} is not proven: {doubts[0] if doubts else 'no file says so'}")
        if job.restarts != execution.job_restarts or job.started_at != execution.job_started_at:
            raise RefusedError(f"job {number} was started again since")
        if execution.over != (job.state in OVER) or (not execution.over and job.state != "RUNNING"):
            raise RefusedError(f"job {number} is {job.state} now")

    def _resubmit(self, execution: Execution, step: Step, *, behind: bool) -> tuple[bool, str]:
        """A new job, held until it is known that nobody else has submitted one: of two remediators that did, the one
        whose job has the lower number continues. A submission whose answer is lost stays held, and never runs.
        `behind`: an earlier step has cancelled the job.
        """
        job = self.job(execution.job)
        if not behind:
            self._unchanged(execution, job)
        if job.state not in OVER:
            raise LaterError(f"job {execution.job} is {job.state} still")
        if behind and job.state == "COMPLETED":
            return True, f"not submitted: job {execution.job} has completed by itself"
        if behind and job.state != "CANCELLED":
            raise RefusedError(f"job {execution.job} is {job.state}, and was to be CANCELLED")
        if others := self._others(execution, job, "resubmit"):
            raise RefusedError(f"job {others[0].number} {others[0].why}")
        command = step.commands[0]
        finished = self._call((command[0], "--hold", *command[1:]))
        submitted = _SUBMITTED.fullmatch(finished.output)
        if b"ontact slurm controller" in finished.errors:
            raise LaterError(f"sbatch: {finished.message}")
        if finished.message or submitted is None:
            held = "" if finished.code else "; a held job may be in the queue"
            return False, f"sbatch: {finished.message or 'no job number was printed'}{held}"
        return self._release(execution, job, submitted[1].decode())

    def _release(self, execution: Execution, job: SlurmJob, number: str) -> tuple[bool, str]:
        """The new job may begin, or is withdrawn."""
        try:
            others = self._others(execution, job, "resubmit", number)
        except LaterError as why:
            return False, f"submitted job {number}, which is held: {why}"
        first = [one.number for one in others if not one.held or int(one.number) < int(number)]
        command = ("scancel", number) if first else ("scontrol", "release", number)
        if message := self._call(command).message:
            return False, f"submitted job {number}, which is held: {' '.join(command)}: {message}"
        execution.new_job = first[0] if first else number
        return True, f"job {first[0]} came first" if first else f"submitted job {number}"

    def _others(
        self, execution: Execution, job: SlurmJob, action: str, but: str = "", ended: float | None = None
    ) -> list[Successor]:
        """Jobs that continue where this one ends, besides `but`; `ended`: when it ended by itself. Raises LaterError
        and RefusedError.
        """
        if action == "resubmit" and job.uid != self.uid:
            raise RefusedError(f"sbatch would submit as uid {self.uid}, and job {execution.job} is {job.user}'s")
        if not (job.command and job.directory):
            raise RefusedError(
                f"Slurm does not tell the command and directory of job {execution.job}, to find another by"
            )
        found = self._call(("squeue", "-h", "-u", str(job.uid), "-o", QUEUE_FORMAT))
        if found.message:
            raise LaterError(f"squeue: {found.message}")
        commands = (step.commands[0] for step in execution.steps if step.action == "resubmit" and step.commands)
        own = {" ".join(dropwhile(lambda word: word.startswith("-"), command[1:])) for command in commands}
        return successors(found.output.decode("utf-8", "replace"), job, own | {job.command}, but, ended)

    def _dump(self, execution: Execution, step: Step) -> tuple[bool, str]:
        at = datetime.fromtimestamp(self._clock.wall(), UTC).strftime("%Y%m%dT%H%M%SZ")
        path = self.directory / f"{_UNSAFE.sub('_', execution.run)[:100]}-{execution.job}-{at}.txt"
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            with path.open("xb") as stream:
                finished = self._call(step.commands[0], stream)
        except OSError as error:
            return False, f"{path}: {error.strerror or error}"
        size = path.stat().st_size
        if finished.message:
            return False, f"{finished.message}; {size} bytes in {path}"
        return size > 0, f"{size} bytes in {path}"

    def _call(self, command: Sequence[str], copy: IO[bytes] | None = None) -> Finished:
        path = shutil.which(command[0]) if command[0] in _CLIENTS else None
        if path is None:
            return Finished(None, problem=f"there is no {command[0]} here")
        # What is read is asked for in a form that can be; what begins a job hands its environment on.
        variables = VARIABLES if command[0] == "squeue" else None
        return run(
            [path, *command[1:]], self._clock, TIMEOUT if copy is None else _DUMP_TIMEOUT, _MOST, variables, copy
        )

    # --- afterwards -------------------------------------------------------------------------------------------------

    def look(self, execution: Execution) -> None:
        """Has the new job begun, or why can it not? A controller that does not answer changes nothing."""
        answer = look_up(self._clock, JobQuestion("", execution.new_job))
        job = answer.job
        if answer.gone:
            execution.stuck = f"job {execution.new_job} is gone from Slurm"
        elif job is not None:
            execution.begun = job.state not in WAITING and job.started_at != execution.job_started_at
            never = job.state in WAITING and job.reason.startswith(_NEVER)
            execution.stuck = f"job {execution.new_job} is {job.state} for {job.reason}" if never else ""


def _doubt(path: str, job: SlurmJob) -> str:
    """Why the file does not prove which job it is of; empty: it does. Whoever may choose what a path leads to, by a
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
