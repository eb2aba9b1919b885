"""Decides when Slurm is asked about which run's job, and what an answer changes.

An answer counts only if it can be this run's job (run/job.py). What Slurm proves and the log does not show (the job was
cancelled, exceeded its time limit, lost a node, waits to begin again) is added to the run like lines of the log. This
happens some seconds after the end, because the log's own lines have more detail.
"""

import logging
import shutil

from msgspec import Struct
from msgspec.structs import replace

from megatron_monitor.config import Config
from megatron_monitor.core import Core
from megatron_monitor.core.extension import Extension
from megatron_monitor.core.runs import Run
from megatron_monitor.core.sources import TOGETHER, Source
from megatron_monitor.identity import NO_KEY, JobKey, candidate, differs
from megatron_monitor.run.job import OVER, RUNNING, WAITING, proofs, refusal
from megatron_monitor.run.phases import ENDED
from megatron_monitor.run.records import SlurmJob
from megatron_monitor.slurm import JobAnswered, JobQuestion
from megatron_monitor.slurm.client import client
from megatron_monitor.system.clock import Clock

_log = logging.getLogger(__name__)

_LAST_LINES = 15.0  # seconds after a job's end in which its last lines are written and read
_ACCOUNTING_DELAY = 5.0  # seconds behind the controller: before, the accounting may name root as the job's user
_EVERY = 1.0  # seconds between two checks for runs that are due


class JobQuery(Struct):
    """What Slurm was asked about a run, and what is to be asked next."""

    at: float = float("-inf")
    candidate: JobKey = NO_KEY
    other: JobKey = NO_KEY
    """Another job that may also write the run."""
    over: str = ""
    """Id of the last other job that did not write the run."""
    waiting: bool = False
    account: bool = False
    """True: the next question goes to the accounting."""
    accounted: str = ""
    """The execution of the job about which the accounting was asked last."""
    problem: str = ""
    """The last logged problem, so that each is logged once."""
    ends_at: float = float("inf")
    """Instant at which Slurm's knowledge of the end is added to the run."""
    ends: int = 0
    """Number of the attempt that ended: a later attempt is not ended by it."""


def asked_of(run: Run) -> JobQuery:
    """Return the state of the questions about a run."""
    found = run.notes.setdefault("slurm", JobQuery())
    assert isinstance(found, JobQuery)
    return found


class SlurmJobs(Extension):
    """The schedule of questions, and whether Slurm answers. It is not saved: after a restart Slurm is asked again."""

    def __init__(self, core: Core, clock: Clock) -> None:
        self._core, self._clock, self._client = core, clock, client(clock)
        self.configure(core.config)

    def configure(self, config: Config) -> None:
        """Use new settings. Answers to old questions are dropped."""
        self._client.stop()
        self._settings, self._client = config.slurm, client(self._clock)
        self._is_available = shutil.which("scontrol") is not None
        self._looked_at = self._silent_until = float("-inf")
        self._silence = ""

    def look(self, now: float) -> None:
        """Process answers, then ask what is due."""
        for answers in self._client.answers():
            for answer in answers:
                self.answered(answer, now)
        if self._is_available and (questions := self.questions(now)):
            self._client.ask(questions)

    def before_judgement(self, run: Run, now: float) -> None:
        """Add to the run how its attempt ended, if the log does not show it."""
        asked = asked_of(run)
        if now < asked.ends_at:
            return
        asked.ends_at = float("inf")
        if asked.ends != run.state.attempt.number:
            return  # another attempt has begun meanwhile
        core = self._core
        core.of_run(run, lambda: core.judge.take(run, proofs(run.state), "slurm", now, True))
        core.request(run)

    def stop(self) -> None:
        """Stop. A running call ends by itself."""
        self._client.stop()

    def questions(self, now: float) -> list[JobQuestion]:
        """Return the questions that are due. Each is asked once."""
        if 0.0 <= now - self._looked_at < _EVERY or now < self._silent_until:
            return []
        self._looked_at = now
        due: list[JobQuestion] = []
        for name, run in self._core.runs.items():
            if not self._is_due(run, now):
                continue
            asked = asked_of(run)
            before, asked.at = asked.candidate, now
            asked.candidate, asked.other = self._candidates(run, asked.over)
            asked.account = asked.account and asked.candidate.id == before.id
            if not asked.candidate.id:
                continue
            asked.waiting = True
            due.append(JobQuestion(name, asked.candidate.id, asked.account, attempt=run.state.attempt.number))
            if asked.other.id:
                due.append(JobQuestion(name, asked.other.id, second_job=True))
            else:
                run.state.second_job = ""
        return due

    def _is_due(self, run: Run, now: float) -> bool:
        asked, job = asked_of(run), run.state.job
        if asked.waiting or 0.0 <= now - asked.at < self._settings.interval:
            return False
        if run.historical or not (run.state.live and run.state.proven):
            return False
        has_ended = run.state.attempt.phase in ENDED and job is not None and job.state in OVER
        return not has_ended or asked.at == float("-inf") or asked.account or bool(proofs(run.state))

    def answered(self, answer: JobAnswered, now: float) -> None:
        """Process an answer of Slurm."""
        if (run := self._core.runs.get(answer.question.run)) is not None:
            self._core.counts.add("slurm_calls_total", self._take(run, answer, now))
            self._core.request(run)

    def _take(self, run: Run, answer: JobAnswered, now: float) -> str:
        """Apply an answer to the run's state. Return `answered`, `refused` or `failed`."""
        asked = asked_of(run)
        if answer.question.second_job:
            return self._take_other(run, answer, now)
        if answer.question.job != asked.candidate.id:
            return "refused"  # the run belongs to another job by now
        asked.waiting = False
        if answer.question.attempt not in (None, run.state.attempt.number):
            return "refused"  # another attempt has begun: the answer is about the one before
        late, known, answered = False, run.state.job, answer.job
        if answer.question.account:
            # The controller reports a cancelled job, and the accounting does not know it yet.
            if known is not None and known.state == "CANCELLED" and answered is not None:
                late = not answered.cancelled_by or answered.uid != known.uid
            of = _execution(run, answer.question.job)
            asked.account = late and asked.accounted != of  # ask once more
            asked.accounted = of
        if late:
            return "answered"
        if answered is None:
            return self._failed(run, answer, now)
        self._note_answer()
        job = _merged(known, answered) if answer.question.account else answered
        return self._take_job(run, asked.candidate, job, now)

    def _take_job(self, run: Run, of: JobKey, job: SlurmJob, now: float) -> str:
        """Accept the job, or log why it is refused."""
        asked = asked_of(run)
        why = self._refusal(run, job, of, now)
        if why is not None:
            run.state.job = None
            _log_problem(run, f"job {of.id} is not accepted: {why}")
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
            asked.at = now - self._settings.interval + _ACCOUNTING_DELAY
        _note_end(run, job, now)
        return "answered"

    def _candidates(self, run: Run, over: str) -> tuple[JobKey, JobKey]:
        """Return (the run's probable job, another job that may write the run too).

        The first comes from the file written last that names a job, because a requeued job may write a new file; of
        files written at the same time, a proven id is preferred to a number in a name. The second comes from the same
        file, or from a file with steps that is written at the same time, and is not known to be `over`.
        """
        found = [
            (source.mtime, one, source)
            for source in self._files(run)
            if (one := candidate(source.member, source.path, self._settings.job_from)).id
        ]
        newest = max((mtime for mtime, _, _ in found), default=0.0)
        found.sort(key=lambda one: (one[1].trusted and newest - one[0] < TOGETHER, one[0]))
        if not found:
            return NO_KEY, NO_KEY
        chosen = found[-1][1]
        others = [JobKey(source.member.before, "", trusted=True) for _, _, source in found if source.member.before]
        others += [one for mtime, one, source in found if newest - mtime < TOGETHER and source.has_steps]
        return chosen, next((one for one in others if one.id != over and differs(one.id, chosen.id)), NO_KEY)

    def _failed(self, run: Run, answer: JobAnswered, now: float) -> str:
        if answer.gone:
            self._note_answer()
            if run.state.job is None or run.state.job.state not in OVER:
                asked_of(run).account = asked_of(run).accounted != _execution(run, answer.question.job)
            _log_problem(run, f"{answer.problem}: it ended long ago, or {run.state.name!r} is not its run")
        elif answer.question.account:
            _log_problem(run, f"the accounting does not show job {answer.question.job}: {answer.problem}")
        else:
            self._silent_until = now + self._settings.interval
            if not self._silence:
                _log.warning("slurm does not answer: %s; only the logs are used", answer.problem)
            self._silence = answer.problem
        return "failed"

    def _note_answer(self) -> None:
        if self._silence:
            _log.info("slurm answers again")
        self._silence = ""

    def _take_other(self, run: Run, answer: JobAnswered, now: float) -> str:
        """Record whether another running job writes the run too. Without an answer nothing changes."""
        job, asked, other = answer.job, asked_of(run), asked_of(run).other
        if other.id != answer.question.job or (job is None and not answer.gone):
            return "failed"
        running = job if job is not None and job.state in RUNNING else None
        writes = running is not None and self._refusal(run, running, other, now) is None
        run.state.second_job, asked.over = (other.id, "") if writes else ("", other.id)
        return "answered"

    def _files(self, run: Run) -> list[Source]:
        return [self._core.sources[name] for name in run.state.sources if name in self._core.sources]

    def _refusal(self, run: Run, job: SlurmJob, of: JobKey, now: float) -> str | None:
        """Return why the job cannot be the run's; None if it can."""
        owners = frozenset(source.owner for source in self._files(run) if source.owner is not None)
        return refusal(run.state, job, of.id, owners, now, proven=of.trusted)


def _execution(run: Run, job: str) -> str:
    """Return the key of one execution of a job: a requeued job keeps its id."""
    known = run.state.job
    return f"{job} {known.restarts if known is not None else 0}"


def _log_problem(run: Run, problem: str) -> None:
    if problem != asked_of(run).problem:
        _log.info("run=%s slurm %s", run.state.name, problem)
    asked_of(run).problem = problem


def _note_end(run: Run, job: SlurmJob, now: float) -> None:
    """Set when Slurm's knowledge of the end is added to the run."""
    asked = asked_of(run)
    if job.state not in OVER and job.state not in WAITING:
        asked.ends_at = float("inf")
        return
    over = job.ended_at if job.state in OVER else None  # for a waiting job it is a forecast
    ended = now if over is None else over - run.state.wall_offset
    asked.ends = run.state.attempt.number
    asked.ends_at = max(ended, run.state.read_at, now if asked.account else 0.0) + _LAST_LINES


def _merged(known: SlurmJob | None, answered: SlurmJob) -> SlurmJob:
    """Return the controller's answer with what the accounting adds about the same job."""
    if known is None or (known.id, known.uid, known.name) != (answered.id, answered.uid, answered.name):
        return answered
    if answered.state in WAITING:
        return replace(known, ended_as=answered.ended_as, ended_on=answered.ended_on)
    return replace(
        known, state=answered.state, exit_code=answered.exit_code, signal=answered.signal,
        ended_at=answered.ended_at or known.ended_at, cancelled_by=answered.cancelled_by,
    )  # fmt: skip


for_core = SlurmJobs
