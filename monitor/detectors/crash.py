"""The rule `crash`: an attempt ended by a failure. One incident with cause, place and cost, for any number of ranks.

The cause is the strongest evidence of the end, in any order of lines (monitor/run/ending.py). The crash is reported a
few seconds after the first line: ranks' lines arrive out of order, and the launcher's line about a victim often comes
first.
A loop may catch an exception, such as out of memory or a full disk. Without another proof of an end (from a launcher,
the scheduler, another failure, or a traceback outside any function) the crash is reported when the next iterations do
not come. Remaining risk: a loop that catches and then computes for longer is reported; its next iteration resolves it.
"""

from typing import Any

from megatron_monitor.breakdown.messages import advice_for
from megatron_monitor.detectors.base import (
    CLEAR,
    Finding,
    Rule,
    RuleSettings,
    Severity,
    ahead,
    duration,
    missing_evidence,
    stated,
)
from megatron_monitor.detectors.checkpoint_failed import CheckpointFailed
from megatron_monitor.run.derived import unsaved_progress_seconds
from megatron_monitor.run.ending import PLANNED, Evidence
from megatron_monitor.run.job import evidence as job_evidence
from megatron_monitor.run.nodes import blamed
from megatron_monitor.run.records import AttemptEnd
from megatron_monitor.run.state import Attempt, RunState

_AFTER_PROOF = 1.0  # seconds after the proof of an unconfirmed failure: lines of that moment may have the cause
# Fields of a failure that become evidence.
_REPORTED = ("failure", "message", "line", "rank", "node", "exit_code", "logged_at")


# Seconds after the first fatal line, for the other ranks' lines. Lines of another host are visible after 3 s (acregmin
# of an NFS client) plus half a second of polling; 5 s gave no better cause in 106 logs.
_WAIT = 4.0
# A failure that may have been caught is reported after the time of so many logged iterations: the rest of the failed
# one and its repetition.
_CAUGHT_ITERATIONS = 2.0
_CAUGHT_MAXIMUM = 300.0  # seconds: then the hang would be reported too
# Seconds after a traceback before the first iteration, which may come from another program of the job: the next program
# imports and prints within seconds.
_STARTING = 30.0
# Seconds if the log shows only that a job step of one task failed: such a step may have prepared the job, and the
# training's first line takes minutes.
_STEP_BEFORE = 600.0
# Seconds after a failed import or start of a program before the first iteration, without other evidence of an end: some
# programs report that flash-attn is missing and continue; imports from a busy file system take a minute or two.
_FAILED_IMPORT = 120.0


def ended_by(attempt: Attempt) -> Evidence | None:
    """Return the failure that has ended the present attempt; None if it has not crashed."""
    return attempt.failure if attempt.phase == "crashed" else None


def due(state: RunState) -> float | None:
    """Return the instant at which the crash is reported; None without a failure."""
    found, failure = state.attempt.ending, ended_by(state.attempt)
    at = found.since
    if failure is None or at is None:
        return None
    if state.attempt.foreign:
        return at + _STEP_BEFORE
    if found.certain:
        proved = found.certain_at or at
        return at + _WAIT if proved <= at else max(at + _WAIT, proved + _AFTER_PROOF)
    least = _WAIT
    if failure.optional:
        least = _FAILED_IMPORT
    elif failure.failure == "python_exception" and not state.attempt.iterations:
        least = _STARTING
    return max(at, found.passed_at or at) + max(least, min(_CAUGHT_MAXIMUM, _CAUGHT_ITERATIONS * _expected(state)))


def _expected(state: RunState) -> float:
    """Return the known seconds between two progress lines in the phase of the failure."""
    before = state.phase_before
    longest = state.learned.silences.longest(before) if before in ("evaluating", "saving") else None
    return max(state.attempt.expected_gap or 0.0, longest or 0.0)


class Crash(Rule):
    """Remembers which attempt's end was reported."""

    name = "crash"
    outlives = True
    is_timed = True

    reported: int = -1
    """Number of the last attempt with a reported end."""

    def evaluate(self, state: RunState, now: float, _settings: RuleSettings) -> Finding:
        """Fire once the cause is known, until another attempt begins. If that begins earlier, report the crash then."""
        attempt = state.attempt
        failure, at, job_failed = ended_by(attempt), due(state), attempt.ending.job_failed_at
        if not state.live:
            return CLEAR
        if job_failed is not None and attempt.phase == "finished":
            return _after_the_end(state, job_failed, next_check=ahead(job_failed + _AFTER_PROOF, now))
        if (end := self._unreported(state)) is not None:
            return _replaced(end)
        if failure is None:
            return CLEAR
        if at is not None and now < at:
            return Finding("unknown", next_check=at)
        severity = _severity(failure.failure, done=attempt.ending.done_at is not None)
        since = attempt.ending.since  # a better cause found later is the same crash
        summary, evidence = _summary(state, failure), _evidence(state, failure)
        return Finding("firing", severity, summary, evidence, onset=attempt.latest.iteration, since=since)

    def note(self, state: RunState, found: Finding) -> None:
        """Record a reported crash."""
        if found.state == "firing":
            self.reported = found.facts.get("attempt", state.attempt.number)

    def _unreported(self, state: RunState) -> AttemptEnd | None:
        """Return the unreported crash of the attempt before, if it was followed live."""
        end = state.ends[-1] if state.ends else None
        if end is None or not (end.crashed and end.watched) or end.number <= self.reported:
            return None
        return end if end.number == state.attempt.number - 1 else None


def _replaced(end: AttemptEnd) -> Finding:
    place = f" on {end.nodes[0]}" if end.culprit and len(end.nodes) == 1 else ""
    summary = (
        f"{_end(end.failure, end.last_iteration)}: {end.failure}{place}: {end.message[:200]}; the next attempt has "
        f"begun; {advice_for('crash', end.failure, end.message)}"
    )
    evidence = {
        "failure": end.failure,
        "message": end.message,
        "line": end.line,
        "attempt": end.number,
        "nodes": end.nodes if end.culprit else [],
    }
    severity = _severity(end.failure, done=False)
    return Finding("firing", severity, summary, evidence, onset=end.last_iteration, since=end.at)


def _after_the_end(state: RunState, at: float, next_check: float | None) -> Finding:
    """Return the finding for a job that failed after the training was done."""
    iteration, failure = state.attempt.latest.iteration, state.attempt.failure
    message = failure.message[:200] if failure else "its exit code says so"
    summary = f"training was complete after iteration {iteration}, then its job failed: {message}"
    evidence = {"failure": failure.failure, "message": failure.message, "line": failure.line} if failure else {}
    return Finding("firing", "warning", summary, evidence, onset=iteration, since=at, next_check=next_check)


def _severity(failure: str, *, done: bool) -> Severity:
    """Return info for planned ends, warning for a failure after the training, otherwise critical."""
    return "info" if failure in PLANNED else "warning" if done else "critical"


def _end(failure: str, iteration: int | None) -> str:
    """Return what happened and at which iteration."""
    where = f"after iteration {iteration}" if iteration is not None else "before the first iteration"
    return f"{'ended' if failure in PLANNED else 'crashed'} {where}"


def _summary(state: RunState, failure: Evidence) -> str:
    attempt = state.attempt
    iteration = attempt.latest.iteration
    place = f" on rank {failure.rank}" if failure.rank is not None else ""
    place += f" on {failure.node}" if failure.node else ""
    ranks = len(attempt.watchdog_ranks)
    many = f" ({ranks} ranks' watchdogs timed out)" if failure.failure == "nccl" and ranks > 1 else ""
    risk, save = unsaved_progress_seconds(state), CheckpointFailed.of(state).interrupted(attempt)
    lost = f"; the checkpoint of iteration {save} may be incomplete" if save else ""
    lost += f"; {duration(risk)} of work since the last checkpoint lost" if risk and iteration is not None else ""
    advice = advice_for("crash", failure.failure, failure.message)
    if failure.failure == "stopped" and state.job is not None and state.job.cancelled_by:
        advice = f"cancelled by {state.job.cancelled_by}: not a failure"
    message = failure.message[:200]
    if absent := missing_evidence(state):
        message += f"; {absent['missing']}"
        if failure.failure == "nccl":
            place = ""  # that rank was only the first to time out
    return f"{_end(failure.failure, iteration)}: {failure.failure}{place}{many}: {message}{lost}; {advice}"


def _evidence(state: RunState, failure: Evidence) -> dict[str, Any]:
    attempt = state.attempt
    fields = {
        **{name: getattr(failure, name) for name in _REPORTED},
        "watchdog_ranks": attempt.watchdog_ranks[:64] or None,
        "watchdog_nodes": attempt.watchdog_nodes[:64] or None,
        "last_checkpoint_iteration": state.learned.checkpoints.last_iteration,
        "failed_iteration": CheckpointFailed.of(state).interrupted(attempt) or None,
        "lost_seconds": unsaved_progress_seconds(state),
        "last_line": attempt.last_line or None,
        "nodes": blamed(state) or None,
        "ranks": [failure.rank] if failure.rank is not None and not attempt.watchdog_ranks else None,
        **missing_evidence(state),
        **job_evidence(state),
    }
    return stated(fields)
