"""Orders in, outcomes out: the commands of a step, one after the other, on a thread of its own.

Law: no shell, argument lists only; each command is bounded in time. Before the first one Slurm is asked once more: a
job that has ended, was requeued or runs again since the plan was made is left alone.
Risk left: what happens to the job in the moment between that answer and the command.
"""

import logging
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final

from monitor.hands.record import Order, StepDone
from monitor.run.job import OVER
from monitor.run.records import Job
from monitor.slurm.client import look_up, program
from monitor.slurm.messages import JobQuestion
from monitor.slurm.process import Finished, run
from monitor.slurm.settings import SlurmSettings
from monitor.system.asking import Asking
from monitor.system.clock import Clock

_MOST: Final = 16 << 20  # bytes that are kept of a dump: 1,000 processes with 16 KiB of stacks each
_CLIENTS: Final = frozenset({"scontrol", "scancel", "sbatch", "srun", "squeue"})
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_SUBMITTED: Final = re.compile(rb"(\d{1,12})(?:;[\w.-]{1,64})?\s*")

_log = logging.getLogger(__name__)


class Executor(Asking[Order, StepDone]):
    """`stop` leaves a command that runs to end by itself: its step is unknown to the next daemon."""

    def __init__(self, settings: SlurmSettings, clock: Clock, wake: Callable[[], None]) -> None:
        """`wake` makes the loop turn."""
        super().__init__(
            "hands",
            lambda order: _outcome(order, *self.carry_out(order)),
            lambda order, error: _outcome(order, False, f"{type(error).__name__} in the executor"),
            0,
            wake,
        )
        self.settings = settings
        """May be replaced while it works."""
        self.directory = Path("stacks")
        """For dumps that name no other."""
        self._clock = clock

    def carry_out(self, order: Order) -> tuple[bool, str]:
        """Do it now; whether that went well, and what came of it."""
        objection = self._objection(order) if order.check or order.action == "resubmit" else ""
        if objection:
            return False, f"not done: {objection}"
        if order.action == "dump_stacks":
            return self._dump(order)
        for place, command in enumerate(order.commands):
            finished = self._call(command, order.timeout)
            if finished.message:
                # Held for a change that was refused, or perhaps held by a call that did not end in time: never left so.
                if place < len(order.commands) - 1 and (place > 0 or finished.code is None):
                    self._call(order.commands[-1], order.timeout)
                return False, f"{command[0]} {command[1]}: {finished.message}"
        submitted = _SUBMITTED.fullmatch(finished.output) if order.action == "resubmit" else None
        return True, f"submitted job {submitted[1].decode()}" if submitted else "done"

    def _objection(self, order: Order) -> str:
        """Why the job is not what it was when the plan was made."""
        answer = look_up(self.settings, self._clock, JobQuestion(order.run, order.job))
        job = answer.job
        if job is None:
            return answer.problem
        if order.action == "resubmit" and (other := self._next_in_queue(job)):
            return other
        if not order.check:
            return ""
        if job.restarts != order.job_restarts or job.started_at != order.job_started_at:
            return f"job {order.job} was started anew since"
        if order.over != (job.state in OVER) or (not order.over and job.state != "RUNNING"):
            return f"job {order.job} is {job.state} now"
        return ""

    def _next_in_queue(self, job: Job) -> str:
        """Why no other job may be submitted: a chain of jobs, or a person, has one already. Two at one checkpoint
        destroy it.
        """
        if not job.name:
            return f"Slurm does not tell job {job.id}'s name, by which another would be found in the queue"
        found = self._call(("squeue", "-h", "-u", str(job.uid), "-o", "%A|%j"), None)
        if found.message:
            return f"squeue: {found.message}"
        for line in found.output.decode("utf-8", "replace").splitlines():
            number, _, name = line.strip().partition("|")
            if name.strip() == job.name and number != job.id:
                return f"job {number} of the same name is in the queue"
        return ""

    def _call(self, command: Sequence[str], timeout: float | None, copy: IO[bytes] | None = None) -> Finished:
        path = program(self.settings, command[0]) if command[0] in _CLIENTS else None
        if path is None:
            return Finished(None, problem=f"there is no {command[0]} here")
        return run([path, *command[1:]], self._clock, timeout or self.settings.timeout, _MOST, copy=copy)

    def _dump(self, order: Order) -> tuple[bool, str]:
        directory = Path(order.directory) if order.directory else self.directory
        at = datetime.fromtimestamp(self._clock.wall(), UTC).strftime("%Y%m%dT%H%M%SZ")
        path = directory / f"{_UNSAFE.sub('_', order.run)[:100]}-{order.job}-{at}.txt"
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            with path.open("xb") as stream:
                finished = self._call(order.commands[0], order.timeout, stream)
        except OSError as error:
            return False, f"{path}: {error.strerror or error}"
        size = path.stat().st_size
        if finished.message:
            return False, f"{finished.message}; {size} bytes in {path}"
        return size > 0, f"{size} bytes in {path}"


def _outcome(order: Order, ok: bool, outcome: str) -> StepDone:
    """Said, and reported to the loop."""
    level = logging.WARNING if ok else logging.ERROR
    _log.log(level, "run=%s job=%s action=%s ok=%s %s", order.run, order.job, order.action, ok, outcome)
    return StepDone(order.course, order.step, ok, outcome)
