"""Runs Slurm's clients: checks what could refuse the steps, executes each step, and looks whether the new job begins.

Rule: argument lists without a shell, and a time limit for each command. Before each command Slurm is asked once more:
a job that has ended, was requeued or restarted since the plan was made is left alone. A new job is submitted only if
Slurm reports the old one as CANCELLED, or if it had ended before.
Remaining risk: a change of the job between that answer and the command.
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

from megatron_monitor.advice.record import ENDING, NOT_DONE, Execution, Record, Step
from megatron_monitor.remediator.plan import RefusedError, drained, too_many_drained, trials_of
from megatron_monitor.remediator.successors import QUEUE_FORMAT, Successor, lost_option, successors
from megatron_monitor.run.job import OVER, WAITING
from megatron_monitor.run.records import SlurmJob
from megatron_monitor.slurm import JobQuestion
from megatron_monitor.slurm.client import TIMEOUT, VARIABLES, look_up
from megatron_monitor.system.clock import Clock
from megatron_monitor.system.process import Finished, run

_MAX_OUTPUT: Final = 16 << 20  # bytes kept of a dump: 1,000 processes with 16 KiB of stacks each
_DUMP_TIMEOUT: Final = 120.0  # seconds for all nodes: py-spy takes a second per process, srun a few on 1,000 nodes
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
"""Reasons that keep a job waiting until a person acts."""

_log = logging.getLogger(__name__)


class LaterError(Exception):
    """The step cannot be done yet, and nothing was done. The message says why."""


class Slurm:
    """Slurm's clients. A call returns when its commands have ended. Dumps of stacks are called in other threads."""

    def __init__(self, clock: Clock, directory: Path) -> None:
        """Stack dumps become files in `directory`."""
        self.directory = directory
        self.uid = os.geteuid()
        """The user id with which sbatch submits."""
        self._clock = clock

    def job(self, number: str) -> SlurmJob:
        """Return the job as Slurm shows it now. Raises LaterError."""
        answer = look_up(self._clock, JobQuestion("", number))
        if answer.job is None:
            raise LaterError(answer.problem)
        return answer.job

    # --- before -----------------------------------------------------------------------------------------------------

    def check(self, execution: Execution, record: Record) -> None:
        """Check everything that could refuse the steps, without a change in Slurm. Raises LaterError.

        A refused step becomes `skipped`; a resubmission that is not needed becomes `done`.
        """
        for step in execution.steps:
            if step.action == "drain" and step.commands and (why := self._undrainable(execution, step, record)):
                step.status, step.outcome = "skipped", f"{NOT_DONE}{why}"
        ending = [step for step in execution.steps if step.action in ENDING]
        try:
            if ending:
                self._check_restart(execution, ending[-1].action)
        except RefusedError as why:
            for step in ending:
                step.status, step.outcome = "skipped", f"{NOT_DONE}{why}"

    def _check_restart(self, execution: Execution, action: str) -> None:
        self._unchanged(execution, execution.was)
        others = list[Successor]()
        # A job that waited for the end may have begun after it; a running job that is requeued keeps its place.
        if action == "resubmit" or execution.over:
            others = self._others(execution, action, ended=execution.was.ended_at if execution.over else None)
            if others and (execution.over or not all(one.follows for one in others)):
                raise RefusedError(f"job {others[0].number} {others[0].why}")
        if others:
            for step in execution.steps:
                if step.action == "resubmit":
                    step.status, step.outcome = "done", f"not submitted: job {others[0].number} follows by itself"
                    execution.new_job = others[0].number
            return
        tests = trials_of(execution)
        if action == "resubmit" and (lost := self._lost(execution, tests)):
            raise RefusedError(
                f"job {execution.job} was submitted with {lost}, which a new one would not have: requeue it"
            )
        for test in tests:
            if message := self._call(test).message:
                raise RefusedError(f"{' '.join(test[:2])}: {message}")

    def _lost(self, execution: Execution, tests: Sequence[Sequence[str]]) -> str:
        """Return an option of the job that a new job of the same script would lack, by the accounting; empty: none."""
        options = {word for test in tests for word in test}
        if execution.was.command.split(" ")[0] not in options:
            return ""  # the site's own script decides about its options
        found = self._call(("sacct", "-X", "-n", "-P", "-o", "SubmitLine", "-j", execution.job))
        return (
            lost_option(found.output.decode("utf-8", "replace").partition("\n")[0], options) if found.code == 0 else ""
        )

    def _undrainable(self, execution: Execution, step: Step, record: Record) -> str:
        """Return why the nodes are not drained; empty: they may be. Slurm must report them as unhealthy, too."""
        found = self._call(("scontrol", "show", "node", "-o"))
        if found.message:
            raise LaterError(f"scontrol show node: {found.message}")
        lines = found.output.decode("utf-8", "replace").split("\n")
        states = {match[1]: match[2] for line in lines if (match := _NODE.match(line))}
        for name in drained(step):
            if execution.was.state != "NODE_FAIL" and not any(word in states.get(name, "") for word in _SICK):
                return f"only the log names {name}: Slurm reports it as {states.get(name, 'unknown')}"
        ours = sum("DRAIN" in line and bool(_OURS.search(line)) for line in lines)
        return too_many_drained(execution, record, ours, len(states))

    # --- doing ------------------------------------------------------------------------------------------------------

    def carry_out(self, execution: Execution, step: Step) -> tuple[bool, str]:
        """Execute a step; return (success, outcome). Raises LaterError if nothing could be done yet."""
        try:
            if step.action == "resubmit":
                ok, outcome = self._resubmit(execution, step)
            else:
                if not execution.ended_job:
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
                # Release a job that was held for a refused change, or perhaps held by a call that timed out.
                if place < len(step.commands) - 1 and (place > 0 or finished.code is None):
                    self._call(step.commands[-1])
                return False, f"{command[0]} {command[1]}: {finished.message}"
        return True, "done"

    def _unchanged(self, execution: Execution, job: SlurmJob) -> None:
        """Raise RefusedError unless the job is unchanged since the plan was made."""
        number, was = execution.job, execution.was
        if (job.id, job.number) != (was.id, number):
            raise RefusedError(f"Slurm shows job {job.number} in place of {number}")
        if job.uid != was.uid:
            raise RefusedError(f"job {number} now belongs to another user: {job.user}")
        doubts = [_doubt(path, job) for path in execution.proof]
        if all(doubts):
            raise RefusedError(f"job {number} is not proven: {doubts[0] if doubts else 'no file says so'}")
        if job.restarts != was.restarts or job.started_at != was.started_at:
            raise RefusedError(f"job {number} was started again since")
        if execution.over != (job.state in OVER) or (not execution.over and job.state != "RUNNING"):
            raise RefusedError(f"job {number} is {job.state} now")

    def _resubmit(self, execution: Execution, step: Step) -> tuple[bool, str]:
        """Submit a new job, held until the queue shows that no other job continues the training.

        If two remediators submit, the job with the lower number continues. A job whose submission has no answer stays
        held and never runs.
        """
        job = self.job(execution.job)
        if not execution.ended_job:
            self._unchanged(execution, job)
        if job.state not in OVER:
            raise LaterError(f"job {execution.job} is still {job.state}")
        if execution.ended_job and job.state == "COMPLETED":
            return True, f"not submitted: job {execution.job} has completed by itself"
        if execution.ended_job and job.state != "CANCELLED":
            raise RefusedError(f"job {execution.job} is {job.state} instead of CANCELLED")
        if others := self._others(execution, "resubmit"):
            raise RefusedError(f"job {others[0].number} {others[0].why}")
        command = step.commands[0]
        finished = self._call((command[0], "--hold", *command[1:]))
        submitted = _SUBMITTED.fullmatch(finished.output)
        if b"ontact slurm controller" in finished.errors:
            raise LaterError(f"sbatch: {finished.message}")
        if finished.message or submitted is None:
            held = "" if finished.code else "; a held job may be in the queue"
            return False, f"sbatch: {finished.message or 'no job number was printed'}{held}"
        return self._release(execution, submitted[1].decode())

    def _release(self, execution: Execution, number: str) -> tuple[bool, str]:
        """Release the new job, or cancel it if another job continues the training."""
        try:
            others = self._others(execution, "resubmit", number)
        except LaterError as why:
            return False, f"submitted job {number}, which is held: {why}"
        first = [one.number for one in others if not one.held or int(one.number) < int(number)]
        command = ("scancel", number) if first else ("scontrol", "release", number)
        if message := self._call(command).message:
            return False, f"submitted job {number}, which is held: {' '.join(command)}: {message}"
        execution.new_job = first[0] if first else number
        return True, f"job {first[0]} came first" if first else f"submitted job {number}"

    def _others(self, execution: Execution, action: str, but: str = "", ended: float | None = None) -> list[Successor]:
        """Return jobs other than `but` that continue the training. `ended`: when the job ended by itself.

        Raises LaterError and RefusedError.
        """
        job = execution.was
        if action == "resubmit" and job.uid != self.uid:
            raise RefusedError(f"sbatch would submit as uid {self.uid}, and job {execution.job} is {job.user}'s")
        if not (job.command and job.directory):
            raise RefusedError(
                f"Slurm does not show the command and directory of job {execution.job}: a successor cannot be found"
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
        # Variables that make output readable are for clients whose output is read: sbatch passes its environment on.
        variables = VARIABLES if command[0] == "squeue" else None
        return run(
            [path, *command[1:]], self._clock, TIMEOUT if copy is None else _DUMP_TIMEOUT, _MAX_OUTPUT, variables, copy
        )

    # --- afterwards -------------------------------------------------------------------------------------------------

    def look(self, execution: Execution) -> None:
        """Record whether the new job has begun, or why it cannot. Without an answer nothing changes."""
        answer = look_up(self._clock, JobQuestion("", execution.new_job))
        job = answer.job
        if answer.gone:
            execution.stuck = f"job {execution.new_job} is gone from Slurm"
        elif job is not None:
            execution.begun = job.state not in WAITING and job.started_at != execution.was.started_at
            never = job.state in WAITING and job.reason.startswith(_NEVER)
            execution.stuck = f"job {execution.new_job} is {job.state} for {job.reason}" if never else ""


def _doubt(path: str, job: SlurmJob) -> str:
    """Return why the file does not prove to which job it belongs; empty: the file proves it.

    A user who controls what the path leads to, by a link or as owner of the directory, could otherwise have the job of
    another user cancelled.
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
        (folder.st_uid != job.uid and not guarded, "is in a directory of another user"),
    )
    return next((f"{path} {why}" for wrong, why in doubts if wrong), "")
