"""The rule `crash_without_exit`: a fatal line, then silence. The other processes keep their GPUs and the job does not
end.

This happened to BLOOM every week: one process failed, and the scheduler still listed the job as running
(docs/development/incident-record.md, "Hangs", H6). The log does not show the job. It shows that no launcher reported an
end, that no process was ended, and that no line came.
"""

from megatron_monitor.detectors.base import CLEAR, Finding, Rule, RuleSettings, missing_evidence
from megatron_monitor.run.job import evidence as job_evidence
from megatron_monitor.run.nodes import suspects
from megatron_monitor.run.state import Attempt, RunState

# srun --kill-on-bad-exit and torchrun end the other processes within a minute, PyTorch's own clean-up within seconds.
_MINIMUM = 90.0
_MAXIMUM = 300.0  # Maximum seconds, however slow the iterations are: nothing ends by itself after five minutes.
_ITERATIONS = 2.0  # In between, the time of so many iterations: healthy ranks would have shown progress.


def _due(attempt: Attempt) -> float | None:
    """Return the instant at which the silence after the fatal line is long enough. None if an end was seen or no fatal
    line.
    """
    failure, found = attempt.failure, attempt.ending
    if attempt.phase != "crashed" or failure is None or found.gone or not found.certain:
        return None
    last = max(failure.at, found.since or failure.at)
    wait = _ITERATIONS * (attempt.pace.baseline or 0.0) * attempt.every
    return last + min(_MAXIMUM, max(_MINIMUM, wait))


class CrashWithoutExit(Rule):
    """Has no memory: the run's state has the ending."""

    name = "crash_without_exit"
    outlives = True
    is_timed = True

    def evaluate(self, state: RunState, now: float, _settings: RuleSettings) -> Finding:
        """Fire until an end is seen or the run continues."""
        attempt = state.attempt
        due = _due(attempt)
        if due is None or not state.live or attempt.failure is None:
            return CLEAR
        if now < due:
            return Finding("clear", next_check=due)
        failure = attempt.failure
        nodes = suspects(state)[:8]
        shown = f" (suspect: {', '.join(nodes)})" if nodes else ""
        summary = (
            f"{failure.failure} {now - failure.at:.0f} s ago, and no process has ended{shown}: the job may still "
            "hold its nodes; look with squeue, cancel it, and start it with srun --kill-on-bad-exit=1"
        )
        evidence = {
            "failure": failure.failure,
            "message": failure.message,
            "line": failure.line,
            "nodes": nodes,
            **missing_evidence(state),
            "silence_seconds": round(now - failure.at, 1),
            **job_evidence(state),
        }
        return Finding("firing", "critical", summary, evidence, onset=attempt.latest.iteration, since=failure.at)
