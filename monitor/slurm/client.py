"""Runs scontrol and sacct on one thread, for many jobs in one call.

`ask` and `answers` never block, so a controller that hangs delays only its own answers. Each call ends within its
timeout. extension.py decides what is asked and how often.
"""

import logging
import pwd
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from secrets import token_hex
from typing import Final

from megatron_monitor.run.records import SlurmJob
from megatron_monitor.slurm import JobAnswered, JobQuestion
from megatron_monitor.slurm.replies import SACCT_FIELDS, ReplyError, jobs_accounted, jobs_shown
from megatron_monitor.system.asking import Asking
from megatron_monitor.system.clock import Clock
from megatron_monitor.system.process import Finished, run

_MAX_REPLY: Final = 8 << 20  # bytes: a job on ten thousand nodes takes some 20 KiB, and one call asks about many
TIMEOUT: Final = 20.0
"""Seconds of one call: a controller that restarts answers within its own 10 s, or not at all."""
_MAX_WAITING: Final = 64  # calls: a minute with one call per second
_BATCH: Final = 250  # jobs per call: half a second of a responsive controller
_PROMPTS: Final = re.compile("^(?:scontrol: )+", re.MULTILINE)
_INVALID_JOB: Final = b"Invalid job id"
VARIABLES: Final = {"TZ": "UTC", "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
"""Environment of clients whose output is parsed: times in Unix seconds, messages in English."""

_log = logging.getLogger(__name__)


def look_up(clock: Clock, question: JobQuestion) -> JobAnswered:
    """Ask about one job and return the answer within TIMEOUT."""
    return look_up_all(clock, [question])[0]


def look_up_all(clock: Clock, questions: Sequence[JobQuestion]) -> list[JobAnswered]:
    """Ask about many jobs: one call of each client per _BATCH jobs, each within TIMEOUT."""
    answers: list[JobAnswered] = []
    for account in (False, True):
        of_kind = [one for one in questions if one.account is account]
        for begin in range(0, len(of_kind), _BATCH):
            answers += _ask(clock, of_kind[begin : begin + _BATCH], account=account)
    return answers


def _ask(clock: Clock, questions: Sequence[JobQuestion], *, account: bool) -> list[JobAnswered]:
    name = "sacct" if account else "scontrol"
    path, jobs = shutil.which(name), list(dict.fromkeys(one.job for one in questions))
    if path is None:
        return [JobAnswered(one, problem=f"there is no {name} here") for one in questions]
    given, delimiter = "", token_hex(8)  # a job's name may hold any known text, and line ends
    if account:
        command = [path, "-D", "-X", "-n", "-P", f"--delimiter={delimiter}", "-o", SACCT_FIELDS, "-j", ",".join(jobs)]
    elif len(jobs) == 1:
        command = [path, "show", "job", "-o", jobs[0]]
    else:  # scontrol accepts one id as argument, and any number of commands on standard input
        command, given = [path, "-o"], "".join(f"show job {job}\n" for job in jobs)
    finished = run(command, clock, TIMEOUT, _MAX_REPLY, VARIABLES, given=given.encode())
    text = _PROMPTS.sub("", finished.output.decode("utf-8", "replace"))
    reply = jobs_accounted(text, delimiter) if account else jobs_shown(text)
    if len(jobs) == 1:
        return [_answer(one, finished, reply.get(one.job), single=True) for one in questions]
    # A name of another job may hold a line like that of this one, which then is shown twice: it is asked about alone.
    return [
        _ask(clock, [one], account=account)[0]
        if isinstance(known := reply.get(one.job), ReplyError)
        else _answer(one, finished, known, single=False)
        for one in questions
    ]


def _answer(
    question: JobQuestion, finished: Finished, reply: SlurmJob | ReplyError | None, *, single: bool
) -> JobAnswered:
    """Return the part of a reply about this job. scontrol fails if it does not know one of many jobs."""
    if reply is None and (_INVALID_JOB in finished.errors or _INVALID_JOB in finished.output):
        return JobAnswered(question, problem=f"Slurm knows no job {question.job}", gone=True)
    if finished.message and (single or finished.code is None or reply is None):
        return JobAnswered(question, problem=finished.message)
    if not isinstance(reply, SlurmJob):
        what = reply or f"Slurm shows no job {question.job}: {finished.output[:80]!r}"
        return JobAnswered(question, problem=str(what))
    by = reply.cancelled_by.removeprefix("uid ")
    with suppress(KeyError, ValueError):
        reply.cancelled_by = f"{pwd.getpwuid(int(by)).pw_name} ({reply.cancelled_by})"
    return JobAnswered(question, reply)


def client(clock: Clock) -> Asking[list[JobQuestion], list[JobAnswered]]:
    """Return a thread that asks in batches."""
    return Asking("slurm", partial(look_up_all, clock), _unanswered, _MAX_WAITING)


def _unanswered(questions: list[JobQuestion], error: Exception | None) -> list[JobAnswered]:
    why = "too many questions wait for Slurm" if error is None else f"{type(error).__name__} in the client"
    return [JobAnswered(question, problem=why) for question in questions]
