"""A run that is a Slurm job, the observer's core, and a remediator that asks it as over HTTP; Slurm is played."""

import atexit
import json
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import cached_property
from pathlib import Path
from typing import Any

from megatron_monitor.advice.record import ENDING, Execution, Record, Step, file_in, read
from megatron_monitor.config import load
from megatron_monitor.incidents import Transition
from megatron_monitor.remediator.commands import LaterError
from megatron_monitor.remediator.remediator import Remediator
from megatron_monitor.run.records import SlurmJob
from megatron_monitor.serve.exchange import Reply, Request
from megatron_monitor.serve.views import asked_by, view_of
from megatron_monitor.slurm import JobAnswered, JobQuestion
from megatron_monitor.slurm.replies import ReplyError
from tests.monitor.extended import advisor, slurm
from tests.monitor.slurm.site import NOW as BEGAN
from tests.monitor.slurm.site import PATH, Site, read_show, shown

REQUEUE = "{name: p, incidents: [hang, crash], for: 30s, dry_run: false, actions: [{type: requeue}]}"
RESUBMIT = (
    "{name: p, incidents: [hang, crash], for: 30s, dry_run: false, actions: [{type: dump_stacks, command: "
    "[/opt/d]}, {type: cancel}, {type: resubmit, command: [train.sbatch, --size=7b]}]}"
)
Outcome = tuple[bool, str]
DIRECTORY = tempfile.mkdtemp()
atexit.register(shutil.rmtree, DIRECTORY, ignore_errors=True)


class KilledError(Exception):
    """The remediator ends at once."""


class AtOnce(Executor):
    """Calls in the caller's thread."""

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **names: Any) -> Future[Any]:  # type: ignore[override]
        """The outcome, at once."""
        future: Future[Any] = Future()
        try:
            future.set_result(call(*arguments, **names))
        except LaterError as error:
            future.set_exception(error)
        return future


class Remediated(Site):
    """Slurm answers as `job` says; each second the observer's loop and the remediator turn."""

    def __init__(self, policy: str = REQUEUE, *settings: str, **job: object) -> None:
        self.job_fields: dict[str, object] | None = job
        self.commands: list[list[list[str]]] = []
        """Of each step that was done."""
        self.checked, self.refuses, self.later, self.follower = list[Execution](), "", "", ""
        """What was checked before; why Slurm refuses it, has no answer, or which job follows by itself."""
        self.outcomes: dict[str, Outcome | str] = {}
        """Action -> what comes of it; a text: why it cannot be done yet."""
        self.stuck, self.begun, self.looked = "", False, list[str]()
        self.other: dict[str, object] = {}
        self.account: SlurmJob | None = None
        self.asked_accounts = 0
        self.said: list[Transition] = []
        """What the observer sends about remediations."""
        self.away = False
        self.full = False
        self.kill_at = self.instants = 0
        directory = tempfile.mkdtemp(dir=DIRECTORY)
        state = f"state_dir={directory}/monitor"
        self.path_of_record = file_in(Path(directory) / "monitor")
        self.path_of_record.parent.mkdir()
        super().__init__(PATH, 1000, 5, f"remediations=[{policy}]", "slurm.interval=20s", state, *settings)

    @cached_property
    def remediator(self) -> Remediator:
        """The process; `restart` begins another one."""
        record = read(self.path_of_record)
        made = Remediator(load("", list(self.settings)), record, self.write_record, self, self.ask_observer, self)  # type: ignore[arg-type]
        made.own_job, made._threads = "", AtOnce()
        return made

    def restart(self) -> None:
        """The remediator is killed by -9 and started again."""
        del self.remediator

    def write_record(self, encoded: bytes) -> None:
        """Unless the disk is full; it may be the last that the process does."""
        if self.full:
            raise OSError("No space left on device")
        new = self.path_of_record.with_suffix(".new")
        new.write_bytes(encoded)
        new.replace(self.path_of_record)
        self.instant()

    # --- the observer's API and the clock -----------------------------------------------------------------------------

    def ask_observer(self, path: str) -> dict[str, Any]:
        """The answer over HTTP."""
        if self.away:
            raise OSError("connection refused")
        request = Request(path=path.partition("?")[0], query=path.partition("?")[2])
        reply = view_of(request, self.core.snapshot(self.now, asked_by(request)), self.wall())
        assert isinstance(reply, Reply)
        return dict(json.loads(reply.body))

    def monotonic(self) -> float:
        """Seconds."""
        return self.now

    def wall(self) -> float:
        """As the observer's, which may be set (`core.wall_offset`)."""
        return self.now + self.core.wall_offset

    def sleep(self, seconds: float) -> None:
        """Nobody waits."""

    # --- Slurm --------------------------------------------------------------------------------------------------------

    def job(self, number: str) -> SlurmJob:
        """As scontrol shows it."""
        if self.later or self.job_fields is None:
            raise LaterError(self.later or "no answer")
        fields = {"StartTime": BEGAN - 3600, **self.job_fields}
        days, seconds = divmod(max(0, int(self.now) - int(fields["StartTime"])), 86400)  # type: ignore[call-overload]
        ran = f"{days}-{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        return read_show(shown(**fields, RunTime=ran), number)  # type: ignore[arg-type]

    def check(self, execution: Execution, record: Record) -> None:
        """What would refuse it."""
        self.checked.append(execution)
        for step in execution.steps:
            if self.refuses and step.action in ENDING:
                step.status, step.outcome = "skipped", self.refuses
            elif self.follower and step.action == "resubmit":
                step.status, step.outcome = "done", f"not submitted: job {self.follower} follows by itself"
                execution.new_job = self.follower

    def carry_out(self, execution: Execution, step: Step) -> Outcome:
        """Done, unless it is killed before or behind it."""
        self.instant()
        found = self.outcomes.get(step.action, (True, "done"))
        if isinstance(found, str):
            raise LaterError(found)
        self.commands.append(step.commands)
        if step.action == "cancel" and found[0]:
            self.job_fields = {"state": "CANCELLED", "EndTime": int(self.now)}
        if step.action == "resubmit" and found[0]:
            execution.new_job, found = "1240", (True, "submitted job 1240")
        self.instant()
        return found

    def look(self, execution: Execution) -> None:
        """Whether the new job begins."""
        self.looked.append(execution.new_job)
        execution.begun, execution.stuck = self.begun, self.stuck

    def instant(self) -> None:
        """Killed here?"""
        self.instants += 1
        if self.instants == self.kill_at:
            raise KilledError

    # --- time ---------------------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Time passes, and both turn."""
        for _ in range(int(seconds)):
            advisor(self.core).look(self.now + 1)
            super().wait(1)
            self.answer_questions()
            self.said += advisor(self.core).act(self.now)
            if int(self.now) % 3 == 0:
                self.turn()

    def turn(self) -> None:
        """The remediator does what is to be done now."""
        try:
            while self.remediator.turn():
                pass
        except KilledError:
            self.restart()

    def answer_questions(self) -> None:
        """Those of the observer."""
        for question in slurm(self.core).questions(self.now):
            if question.account and self.account is not None:
                self.asked_accounts += 1
                slurm(self.core).answered(JobAnswered(question, self.account), self.now)
            elif question.second_job:
                slurm(self.core).answered(JobAnswered(question, read_show(shown(**self.other), question.job)), self.now)  # type: ignore[arg-type]
            elif self.job_fields is not None:
                self.reply(question.job)

    def reply(self, number: str) -> None:
        """Slurm's answer to the observer."""
        question = JobQuestion("r", number)
        try:
            answer = JobAnswered(question, read_show(shown(**self.job_fields), number))  # type: ignore[arg-type]
        except ReplyError as error:
            answer = JobAnswered(question, problem=str(error))
        slurm(self.core).answered(answer, self.now)

    @property
    def done(self) -> list[str]:
        """The commands that were run."""
        return [" ".join(command) for commands in self.commands for command in commands]

    @property
    def executions(self) -> list[Execution]:
        """The record."""
        return self.remediator.record.executions

    @property
    def actions(self) -> str:
        """The lines of the page."""
        return " ".join(self.core.runs["r"].actions)

    def statuses(self) -> list[str]:
        """Of the steps of the only execution."""
        (one,) = self.executions
        return [step.status for step in one.steps]

    def blame(self, *nodes: str) -> None:
        """The log says which node it was: a rank failed there."""
        for node in nodes:
            self.say(f"srun: error: {node}: task 1: Segmentation fault\n")
