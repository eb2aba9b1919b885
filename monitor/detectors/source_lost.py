"""The rule `source_lost`: a file of the run cannot be read, so that the run is neither gone nor healthy but unobserved.

It has no threshold: the follower decides after how many failed reads a source is unreadable.
"""

from megatron_monitor.detectors.base import CLEAR, Finding, Rule, RuleSettings, Severity
from megatron_monitor.run.phases import ENDED
from megatron_monitor.run.state import RunState


class SourceLost(Rule):
    """Has no memory."""

    name = "source_lost"
    outlives = True

    def evaluate(self, state: RunState, _now: float, _settings: RuleSettings) -> Finding:
        """Fire while a source of a live run is unreadable, and name each source with its error. Ended runs need no more
        lines, because old jobs' logs are removed.
        """
        attempt = state.attempt
        if not state.unreadable or not state.live or attempt.phase in ENDED:
            return CLEAR
        named = "; ".join(f"{source}: {message}" for source, message in sorted(state.unreadable.items())[:5])
        severity: Severity = "critical" if state.lost else "warning"
        evidence = {"sources": dict(state.unreadable)}
        return Finding("firing", severity, f"cannot read {named}", evidence, onset=attempt.latest.iteration)
