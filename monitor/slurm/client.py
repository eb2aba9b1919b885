"""Questions in, answers out: the clients of Slurm, run one after the other on one thread.

`ask` never blocks and `answers` never waits, so a controller that hangs delays nothing but its own answers. What may be
asked, and how often, is the caller's business (monitor/core/jobs.py); here each call ends within its timeout.
"""

from __future__ import annotations

import logging
import queue
import shutil
import threading
from typing import Final

from monitor.clock import Clock
from monitor.slurm.messages import JobAnswered, JobQuestion
from monitor.slurm.process import run
from monitor.slurm.replies import SACCT_FIELDS, ReplyError, read_account, read_show
from monitor.slurm.settings import SlurmSettings

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


class SlurmClient:
    """Started at once; `stop` leaves a call that hangs behind."""

    def __init__(self, settings: SlurmSettings, clock: Clock) -> None:
        """Without `scontrol` nothing is ever asked: see `available`."""
        self._settings = settings
        self._clock = clock
        self._questions: queue.Queue[JobQuestion | None] = queue.Queue(_WAITING)
        self._answers: queue.SimpleQueue[JobAnswered] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.available = settings.enabled and program(settings, "scontrol") is not None
        """Whether there is anybody to ask."""

    def start(self) -> None:
        """Begin to answer."""
        if self.available:
            self._thread = threading.Thread(target=self._run, name="slurm", daemon=True)
            self._thread.start()

    def ask(self, question: JobQuestion) -> None:
        """To be asked when its turn comes."""
        try:
            self._questions.put_nowait(question)
        except queue.Full:
            self._answers.put(JobAnswered(question, problem="too many questions wait for Slurm"))

    def answers(self) -> list[JobAnswered]:
        """Those since the last call."""
        taken: list[JobAnswered] = []
        while not self._answers.empty():
            taken.append(self._answers.get_nowait())
        return taken

    def stop(self) -> None:
        """End the thread after the call that it is in; nobody waits for that."""
        while not self._questions.empty():
            self._questions.get_nowait()
        if self._thread is not None:
            self._questions.put_nowait(None)

    def _run(self) -> None:
        while (question := self._questions.get()) is not None:
            try:
                answer = look_up(self._settings, self._clock, question)
            except Exception as error:  # noqa: BLE001 - a bug here must neither end the thread nor leave a run waiting
                _log.exception("slurm job=%s", question.job)
                answer = JobAnswered(question, problem=f"{type(error).__name__} in the client")
            self._answers.put(answer)
