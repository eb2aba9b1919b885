"""Source lost: a file of the run cannot be read. Could not observe is never gone, and never healthy.

There is nothing to set yet: the follower decides after how many failed reads a source is unreadable.
"""

from megatron_monitor.detectors.base import CLEAR, Finding, Rule, RuleSettings, Severity
from megatron_monitor.run.phases import ENDED
from megatron_monitor.run.state import RunState


class SourceLost(Rule):
    """It remembers nothing."""

    name = "source_lost"

    def evaluate(self, state: RunState, _now: float, _settings: RuleSettings) -> Finding:
        """Fires while any source of a live run is unreadable, and names each with its error. Of a run that has ended
        nobody waits for a line: old jobs' logs are removed.
        """
        attempt = state.attempt
        if not state.unreadable or not state.live or attempt.phase in ENDED:
            return CLEAR
        named = "; ".join(f"{source}: {message}" for source, message in sorted(state.unreadable.items())[:5])
        severity: Severity = "critical" if state.lost else "warning"
        evidence = {"sources": dict(state.unreadable)}
        return Finding("firing", severity, f"cannot read {named}", evidence, onset=attempt.latest.iteration)
