"""A run that is a Slurm job: its core, and what `scontrol show job -o` prints of it (22.05, times in Unix seconds)."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from megatron_monitor.incidents import Transition
from megatron_monitor.run.records import SlurmJob
from megatron_monitor.slurm import JobAnswered, JobQuestion
from megatron_monitor.slurm.replies import ReplyError, jobs_accounted, jobs_shown
from tests.lines import line
from tests.monitor.core.following import Following
from tests.monitor.extended import slurm

NOW = 1_700_000_000


def shown(job: int = 1234, state: str = "RUNNING", **fields: object) -> str:
    """A line for a job that began an hour ago on two nodes."""
    values: dict[str, object] = {
        "JobId": job, "JobName": "tr11", "UserId": "ada(1000)", "GroupId": "ada(1000)", "Priority": 4294901757,
        "Account": "(null)", "QOS": "(null)", "JobState": state, "Reason": "None", "Dependency": "(null)", "Requeue": 1,
        "Restarts": 0, "BatchFlag": 1, "ExitCode": "0:0", "RunTime": "01:00:00", "TimeLimit": "1-00:00:00",
        "SubmitTime": NOW - 3700, "StartTime": NOW - 3600, "EndTime": NOW + 82800, "SuspendTime": "None",
        "Partition": "main", "ReqNodeList": "(null)", "ExcNodeList": "(null)", "NodeList": "n-[01-02]", "NumNodes": 2,
        "ReqB:S:C:T": "0:0:*:*", "CPUs/Task": 1, "Command": "/home/ada/train.sbatch --size 7b", "WorkDir": "/home/ada",
        "StdErr": "/l/slurm-1234.out", "StdIn": "/dev/null", "StdOut": "/l/slurm-1234.out",
    }  # fmt: skip
    ids = {name: fields.pop(name) for name in ("ArrayJobId", "ArrayTaskId", "HetJobId") if name in fields}
    reported = {"JobId": job} | ids | values | fields
    return " ".join(f"{name}={value}" for name, value in reported.items()) + " Power= \n"


def read_show(text: str, asked: str) -> SlurmJob:
    """The job of `scontrol show job`. Raises ReplyError."""
    return _one(jobs_shown(text).get(asked))


def read_account(text: str, asked: str) -> SlurmJob:
    """The job of `sacct`. Raises ReplyError."""
    return _one(jobs_accounted(text, "|").get(asked))


def _one(reported: SlurmJob | ReplyError | None) -> SlurmJob:
    if not isinstance(reported, SlurmJob):
        raise reported or ReplyError("it shows no such job")
    return reported


PATH = "/l/slurm-1234.out"


class Site(Following):
    """A core that follows one job's log, and its Slurm."""

    def __init__(self, path: str = PATH, owner: int | None = 1000, lines: int = 5, *settings: str) -> None:
        super().__init__("runs=[{name: r, paths: [/l/*]}]", *settings, owner=owner)
        self.path = path
        self.open(path)
        for number in range(1, lines + 1):
            self.say(line(number, seconds=10.0))
            self.wait(10)

    def say(self, text: str) -> None:
        """The job's log grows."""
        self.write(self.path, text)

    def ask(self) -> JobQuestion:
        """The only question that is due."""
        (question,) = slurm(self.core).questions(self.now)
        return question

    def answer(self, text: str) -> None:
        """What scontrol prints when it is asked."""
        question = self.ask()
        slurm(self.core).answered(JobAnswered(question, read_show(text, question.job)), self.now)

    def fail(self, problem: str, *, gone: bool = False) -> None:
        """Slurm has no answer."""
        slurm(self.core).answered(JobAnswered(self.ask(), problem=problem, gone=gone), self.now)

    @property
    def page(self) -> dict[str, Any]:
        """As HTTP shows the run."""
        (run,) = self.core.snapshot(self.now).runs
        return run.page

    def fired(self, kind: str) -> list[Transition]:
        """Incidents of a kind that a person was told of."""
        return [
            one for one in self.reported if one.incident == kind and one.status == "firing" and not one.display_only
        ]


def script(directory: Path, name: str, text: str) -> None:
    """A client that is this shell script."""
    path = directory / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def clients_in(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's clients are looked for there alone."""
    monkeypatch.setattr(shutil, "which", partial(shutil.which, path=str(directory)))
