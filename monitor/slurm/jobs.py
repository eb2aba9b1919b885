"""The Slurm jobs of the runs: which is asked about when, and what an answer changes. One thread, time is an argument.

An answer is believed only where it can be this run's job (run/job.py). What it proves and the log does not say - the
job was cancelled, is over its time, lost a node, waits to begin again - is folded like lines of the log, some seconds
after the end: the log's own lines come first, and say more.
"""

import logging
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from megatron_monitor.config.inputs import SlurmSettings
from megatron_monitor.core.runs import Run
from megatron_monitor.core.sources import TOGETHER, Source
from megatron_monitor.identity import candidate, differs
from megatron_monitor.run.job import OVER, RUNNING, WAITING, Candidate, proofs, refusal
from megatron_monitor.run.phases import ENDED
from megatron_monitor.run.records import SlurmJob
from megatron_monitor.slurm import JobAnswered, JobQuestion

_log = logging.getLogger(__name__)

_LAST_LINES = 15.0  # seconds after a job's end in which its last lines are written and read
_BEHIND = 5.0  # seconds that the accounting is behind the controller: before, it may name root as the job's user
_UNTIL_ASKED = 1.0  # seconds between two looks at which runs are due


class JobQuery(Struct):
    """What Slurm was asked about a run."""

    at: float = float("-inf")
    candidate: Candidate | None = None
    other: Candidate | None = None
    """Another job that may write the run."""
    over: str = ""
    """The last one that did not."""
    waiting: bool = False
    account: bool = False
    """The next question goes to the accounting."""
    accounted: str = ""
    """The execution of the job that the accounting was asked about, whatever it said."""
    problem: str = ""
    """What was said of it last: each thing once."""
    ends_at: float = float("inf")
    """When what Slurm knows of its end is folded."""
    ends: int = 0
    """The attempt that this is the end of: a later one is not ended by it."""


def asked_of(run: Run) -> JobQuery:
    """What Slurm was asked about this run."""
    found = run.notes.get("slurm")
    if found is None:
        found = run.notes["slurm"] = JobQuery()
    assert isinstance(found, JobQuery)
    return found


class Jobs:
    """What is due, and whether Slurm speaks."""

    def __init__(self, settings: SlurmSettings) -> None:
        self._settings = settings
        self._looked_at = self._silent_until = float("-inf")
        self._silence = ""

    def questions(self, runs: Mapping[str, Run], sources: Mapping[str, Source], now: float) -> list[JobQuestion]:
        """Those that are due; each is asked once."""
        if 0.0 <= now - self._looked_at < _UNTIL_ASKED or now < self._silent_until:
            return []
        self._looked_at = now
        due: list[JobQuestion] = []
        for name, run in runs.items():
            if not self._is_due(run, now):
                continue
            asked = asked_of(run)
            before, asked.at = asked.candidate, now
            asked.candidate, asked.other = self._candidates(run, sources, asked.over)
            asked.account = asked.account and asked.candidate == before
            if asked.candidate is None:
                continue
            asked.waiting = True
            due.append(JobQuestion(name, asked.candidate.id, asked.account, attempt=run.state.attempt.number))
            if asked.other is None:
                run.state.second_job = ""
            else:
                due.append(JobQuestion(name, asked.other.id, second_job=True))
        return due

    def _is_due(self, run: Run, now: float) -> bool:
        if asked_of(run).waiting or 0.0 <= now - asked_of(run).at < self._settings.interval:
            return False
        if run.historical or not (run.state.live and run.state.proven):
            return False
        return not _is_settled(run)

    def take(self, run: Run, answer: JobAnswered, sources: Mapping[str, Source], now: float) -> str:
        """Take an answer into the run's state; what became of it: `answered`, `refused` or `failed`."""
        asked = asked_of(run)
        if answer.question.second_job:
            return _take_other(run, answer, sources)
        if asked.candidate is None or answer.question.job != asked.candidate.id:
            return "refused"  # the run writes as another job by now
        asked.waiting = False
        if answer.question.attempt not in (None, run.state.attempt.number):
            return "refused"  # an attempt has begun since: the answer is about the one before
        late, known, answered = False, run.state.job, answer.job
        if answer.question.account:
            # The accounting is behind the controller, which says that the job was cancelled.
            if known is not None and known.state == "CANCELLED" and answered is not None:
                late = not answered.cancelled_by or answered.uid != known.uid
            of = _execution(run, answer.question.job)
            asked.account = late and asked.accounted != of  # once more
            asked.accounted = of
        if late:
            return "answered"
        if answered is None:
            return self._failed(run, answer, now)
        self._speaks()
        job = _merged(known, answered) if answer.question.account else answered
        return self._take_job(run, asked.candidate, job, _owners(run, sources), now)

    def _take_job(self, run: Run, of: Candidate, job: SlurmJob, owners: frozenset[int], now: float) -> str:
        """It is believed, or why not is said."""
        asked = asked_of(run)
        why = refusal(run.state, job, of, owners)
        if why is not None:
            run.state.job = None
            _say(run, f"job {of.id} is not believed: {why}")
            return "refused"
        known = run.state.job
        if known is not None and (known.id, known.restarts) == (job.id, job.restarts) and not job.ended_as:
            job.ended_as, job.ended_on = known.ended_as, known.ended_on
        asked.problem, job.asked_at, run.state.job = "", now, job
        unexplained = (job.state == "CANCELLED" and not job.cancelled_by) or (
            job.state in WAITING and job.restarts > 0 and not job.ended_as
        )
        asked.account = unexplained and asked.accounted != _execution(run, job.id)
        if asked.account:
            asked.at = now - self._settings.interval + _BEHIND
        _note_end(run, job, now)
        return "answered"

    def _candidates(
        self, run: Run, sources: Mapping[str, Source], over: str
    ) -> tuple[Candidate | None, Candidate | None]:
        """By the file that was written last of those that tell one: a requeued job may write into another one. What is
        believed goes before a number in a name, where both are written at the same time. And another one, which is not
        known to be `over`, of a file with steps that is written at the same time, or of the same file.
        """
        found = [
            (source.mtime, one, source)
            for source in _files(run, sources)
            if (one := candidate(source.member, source.path, self._settings.job_from)) is not None
        ]
        newest = max((mtime for mtime, _, _ in found), default=0.0)
        found.sort(key=lambda one: (one[1].proven and newest - one[0] < TOGETHER, one[0]))
        if not found:
            return None, None
        chosen = found[-1][1]
        others = [Candidate(source.member.before, proven=True) for _, _, source in found if source.member.before]
        others += [one for mtime, one, source in found if newest - mtime < TOGETHER and source.has_steps]
        return chosen, next((one for one in others if one.id != over and differs(one.id, chosen.id)), None)

    def _failed(self, run: Run, answer: JobAnswered, now: float) -> str:
        if answer.gone:
            self._speaks()
            if run.state.job is None or run.state.job.state not in OVER:
                asked_of(run).account = asked_of(run).accounted != _execution(run, answer.question.job)
            _say(run, f"{answer.problem}: it ended long ago, or {run.state.name!r} is none of its jobs")
        elif answer.question.account:
            _say(run, f"the accounting does not tell of job {answer.question.job}: {answer.problem}")
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


def _execution(run: Run, job: str) -> str:
    """A job that was requeued is another execution under the same id."""
    known = run.state.job
    return f"{job} {known.restarts if known is not None else 0}"


def _say(run: Run, problem: str) -> None:
    if problem != asked_of(run).problem:
        _log.info("run=%s slurm %s", run.state.name, problem)
    asked_of(run).problem = problem


def _note_end(run: Run, job: SlurmJob, now: float) -> None:
    """When what Slurm knows of its end is to be folded."""
    asked = asked_of(run)
    if job.state not in OVER and job.state not in WAITING:
        asked.ends_at = float("inf")
        return
    over = job.ended_at if job.state in OVER else None  # of one that waits it is a forecast
    ended = now if over is None else over - run.state.wall_offset
    asked.ends = run.state.attempt.number
    asked.ends_at = max(ended, run.state.read_at, now if asked.account else 0.0) + _LAST_LINES


def _is_settled(run: Run) -> bool:
    """Its attempt has ended, so has its job, and whoever knows more was asked."""
    job, asked = run.state.job, asked_of(run)
    if run.state.attempt.phase not in ENDED or job is None or job.state not in OVER:
        return False
    return asked.at > float("-inf") and not asked.account and not proofs(run.state)


def _take_other(run: Run, answer: JobAnswered, sources: Mapping[str, Source]) -> str:
    """Does another job, which runs too, write the run? Unknown: it is as it was."""
    job, asked, other = answer.job, asked_of(run), asked_of(run).other
    if other is None or other.id != answer.question.job or (job is None and not answer.gone):
        return "failed"
    owners = _owners(run, sources)
    writes = job is not None and job.state in RUNNING and refusal(run.state, job, other, owners) is None
    run.state.second_job, asked.over = (other.id, "") if writes else ("", other.id)
    return "answered"


def _merged(known: SlurmJob | None, answered: SlurmJob) -> SlurmJob:
    """What the accounting adds to what the controller said of the same job."""
    if known is None or (known.id, known.uid, known.name) != (answered.id, answered.uid, answered.name):
        return answered
    if answered.state in WAITING:
        return replace(known, ended_as=answered.ended_as, ended_on=answered.ended_on)
    return replace(
        known, state=answered.state, exit_code=answered.exit_code, signal=answered.signal,
        ended_at=answered.ended_at or known.ended_at, cancelled_by=answered.cancelled_by,
    )  # fmt: skip


def _files(run: Run, sources: Mapping[str, Source]) -> list[Source]:
    return [sources[name] for name in run.state.sources if name in sources]


def _owners(run: Run, sources: Mapping[str, Source]) -> frozenset[int]:
    """User ids of the run's files, as far as their file systems tell."""
    return frozenset(source.owner for source in _files(run, sources) if source.owner is not None)
