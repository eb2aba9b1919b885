"""Questions in, answers out: the clients of Slurm, run one after the other on one thread.

`ask` never blocks and `answers` never waits, so a controller that hangs delays nothing but its own answers. What may be
asked, and how often, is the caller's business (monitor/core/jobs.py); here each call ends within its timeout.
"""

import logging
import shutil
from typing import Final

from monitor.slurm.messages import JobAnswered, JobQuestion
from monitor.slurm.process import run
from monitor.slurm.replies import SACCT_FIELDS, ReplyError, read_account, read_show
from monitor.slurm.settings import SlurmSettings
from monitor.system.asking import Asking
from monitor.system.clock import Clock

_MOST: Final = 1 << 20  # bytes of a reply: a job on ten thousand nodes takes some 20 KiB
_WAITING: Final = 4096  # questions: more than runs that a monitor may have
_GONE: Final = b"Invalid job id"
VARIABLES: Final = {"TZ": "UTC", "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
"""For the clients that are read: times in Unix seconds, messages in English."""

_log = logging.getLogger(__name__)


def program(settings: SlurmSettings, name: str) -> str | None:
    """The path of one of Slurm's clients; None where there is none."""
    return shutil.which(name, path=settings.directory)


def look_up(settings: SlurmSettings, clock: Clock, question: JobQuestion) -> JobAnswered:
    """Ask now, within the timeout."""
    name = "sacct" if question.account else "scontrol"
    path = program(settings, name)
    if path is None:
        return JobAnswered(question, problem=f"there is no {name} here")
    show = (path, "show", "job", "-o", question.job)
    account = (path, "-X", "-n", "-P", "-o", SACCT_FIELDS, "-j", question.job)
    finished = run(account if question.account else show, clock, settings.timeout, _MOST, VARIABLES)
    if _GONE in finished.errors or _GONE in finished.output:
        return JobAnswered(question, problem=f"Slurm knows no job {question.job}", gone=True)
    if finished.message:
        return JobAnswered(question, problem=finished.message)
    read = read_account if question.account else read_show
    try:
        return JobAnswered(question, read(finished.output.decode("utf-8", "replace"), question.job))
    except ReplyError as error:
        return JobAnswered(question, problem=str(error))


class SlurmClient(Asking[JobQuestion, JobAnswered]):
    """Without `scontrol` nothing is ever asked: see `available`."""

    def __init__(self, settings: SlurmSettings, clock: Clock) -> None:
        super().__init__("slurm", lambda question: look_up(settings, clock, question), _unanswered, _WAITING)
        self.available = settings.enabled and program(settings, "scontrol") is not None
        """Whether there is anybody to ask."""


def _unanswered(question: JobQuestion, error: Exception | None) -> JobAnswered:
    why = "too many questions wait for Slurm" if error is None else f"{type(error).__name__} in the client"
    return JobAnswered(question, problem=why)
