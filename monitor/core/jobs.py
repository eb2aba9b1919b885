"""The Slurm jobs of the runs: which is asked about when, and what an answer changes. One thread, time is an argument.

An answer is believed only where it can be this run's job (run/job.py). What it proves and the log does not say - the
job was cancelled, is over its time, lost a node, waits to begin again - is folded like lines of the log, some seconds
after the end: the log's own lines come first, and say more.
"""

import dataclasses
import logging
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from monitor.core.runs import Run
from monitor.core.sources import TOGETHER, Source
from monitor.identity import candidate
from monitor.run.job import OVER, WAITING, Candidate, proofs, refusal
from monitor.run.phases import ENDED
from monitor.run.records import Job
from monitor.slurm.messages import JobAnswered, JobQuestion
from monitor.slurm.settings import SlurmSettings

_log = logging.getLogger(__name__)

_LAST_LINES = 15.0  # seconds after a job's end in which its last lines are written and read
_UNTIL_ASKED = 1.0  # seconds between two looks at which runs are due


@dataclass(slots=True)
class _Asked:
    """What a run was asked about."""

    at: float
    candidate: Candidate | None = None
    waiting: bool = False
    account: bool = False
    """The next question goes to the accounting."""
    accounted: str = ""
    """The job that the accounting was asked about, whatever it said."""
    problem: str = ""
    """What was said of it last: each thing once."""


class Jobs:
    """By run: when it was asked about, and what is still to be folded of it."""

    def __init__(self, settings: SlurmSettings) -> None:
        self._settings = settings
        self._asked: dict[str, _Asked] = {}
        self._ended: dict[str, float] = {}  # run -> when what Slurm knows of its end is folded
        self._looked_at = self._silent_until = float("-inf")
        self._silence = ""

    def questions(
        self, runs: Mapping[str, Run], sources: Mapping[str, Source], now: float, wanted: Container[str] = ()
    ) -> list[JobQuestion]:
        """Those that are due; each is asked once. `wanted`: runs of which a policy has to know, though they end."""
        if 0.0 <= now - self._looked_at < _UNTIL_ASKED or now < self._silent_until:
            return []
        self._looked_at = now
        due: list[JobQuestion] = []
        for name in [name for name in self._asked if name not in runs]:
            del self._asked[name]
        for name, run in runs.items():
            asked = self._asked.get(name)
            if asked is not None and (asked.waiting or 0.0 <= now - asked.at < self._settings.interval):
                continue
            if run.archived or not (run.state.live and run.state.proven):
                continue
            if name not in wanted and self._is_settled(run, asked):
                continue
            asked = self._asked.setdefault(name, _Asked(now))
            before, asked.at, asked.candidate = asked.candidate, now, self._candidate(run, sources)
            asked.account = asked.account and asked.candidate == before
            if asked.candidate is None:
                continue
            asked.waiting = True
            due.append(JobQuestion(name, asked.candidate.id, asked.account, run.state.launch.number))
        return due

    def take(self, run: Run, answer: JobAnswered, sources: Mapping[str, Source], now: float) -> str:
        """Take an answer into the run's state; what became of it: `answered`, `refused` or `failed`."""
        asked = self._asked.get(run.state.name)
        if asked is None or asked.candidate is None or answer.question.job != asked.candidate.id:
            return "refused"  # the run writes as another job by now
        asked.waiting = False
        if answer.question.launch not in (None, run.state.launch.number):
            return "refused"  # a launch has begun since: the answer is about the one before
        if answer.question.account:
            asked.account, asked.accounted = False, answer.question.job
        if answer.job is None:
            return self._failed(run, asked, answer, now)
        self._speaks()
        job = _merged(run.state.job, answer.job) if answer.question.account else answer.job
        why = refusal(run.state, job, asked.candidate, _owners(run, sources))
        if why is not None:
            run.state.job = None
            self._say(run, asked, f"job {asked.candidate.id} is not believed: {why}")
            return "refused"
        asked.problem, job.asked_at, run.state.job = "", now, job
        asked.account = job.state == "CANCELLED" and not job.cancelled_by and asked.accounted != job.id
        if job.state in OVER or job.state in WAITING:
            over = job.ended_at if job.state in OVER else None  # of one that waits it is a forecast
            ended = now if over is None else over - run.state.wall_offset
            self._ended[run.state.name] = max(ended, run.state.read_at) + _LAST_LINES
        else:
            self._ended.pop(run.state.name, None)
        return "answered"

    def due(self, now: float) -> list[str]:
        """Runs of which it is time to fold what Slurm knows of their end."""
        names = [name for name, at in self._ended.items() if now >= at]
        for name in names:
            del self._ended[name]
        return names

    def _candidate(self, run: Run, sources: Mapping[str, Source]) -> Candidate | None:
        """By the file that was written last of those that tell one: a requeued job may write into another one. What is
        believed goes before a number in a name, where both are written at the same time.
        """
        found: list[tuple[float, Candidate]] = []
        for source in (sources[name] for name in run.state.sources if name in sources):
            one = candidate(source.member, source.path, self._settings.job_from)
            if one is not None:
                found.append((source.mtime, one))
        newest = max((mtime for mtime, _ in found), default=0.0)
        found.sort(key=lambda one: (one[1].proven and newest - one[0] < TOGETHER, one[0]))
        return found[-1][1] if found else None

    def _is_settled(self, run: Run, asked: _Asked | None) -> bool:
        """Its launch has ended, so has its job, and whoever knows more was asked."""
        job = run.state.job
        if run.state.launch.phase not in ENDED or job is None or job.state not in OVER:
            return False
        return asked is not None and not asked.account and not proofs(run.state)

    def _failed(self, run: Run, asked: _Asked, answer: JobAnswered, now: float) -> str:
        if answer.gone:
            self._speaks()
            if run.state.job is None or run.state.job.state not in OVER:
                asked.account = asked.accounted != answer.question.job
            self._say(run, asked, f"{answer.problem}: it ended long ago, or {run.state.name!r} is none of its jobs")
        elif answer.question.account:
            self._say(run, asked, f"the accounting does not tell of job {answer.question.job}: {answer.problem}")
        else:
            self._silent_until = now + self._settings.interval
            if not self._silence:
                _log.warning("slurm does not answer: %s; judged by the logs alone", answer.problem)
            self._silence = answer.problem
        return "failed"

    def _speaks(self) -> None:
        if self._silence:
            _log.info("slurm answers again")
        self._silence = ""

    def _say(self, run: Run, asked: _Asked, problem: str) -> None:
        if problem != asked.problem:
            _log.info("run=%s slurm %s", run.state.name, problem)
        asked.problem = problem


def _merged(known: Job | None, told: Job) -> Job:
    """What the accounting adds to what the controller said of the same job."""
    if known is None or (known.id, known.uid, known.name) != (told.id, told.uid, told.name):
        return told
    return dataclasses.replace(
        known, state=told.state, exit_code=told.exit_code, signal=told.signal,
        ended_at=told.ended_at or known.ended_at, cancelled_by=told.cancelled_by,
    )  # fmt: skip


def _owners(run: Run, sources: Mapping[str, Source]) -> frozenset[int]:
    """User ids of the run's files, as far as their file systems tell."""
    known: Iterable[Source] = (sources[name] for name in run.state.sources if name in sources)
    return frozenset(source.owner for source in known if source.owner is not None)
