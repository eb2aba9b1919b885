"""Restart failed: a remediation ended the run's job, or found it ended, and no attempt can begin (monitor/remediator/).

It stands until an attempt begins: nothing else says that a run which nobody watches has gone. There is nothing to set:
what a remediation did is known.
"""

from megatron_monitor.detectors.base import CLEAR, Finding, Rule, RuleSettings
from megatron_monitor.run.state import RunState


class RestartFailed(Rule):
    """It remembers nothing."""

    name = "restart_failed"

    def evaluate(self, state: RunState, _now: float, _settings: RuleSettings) -> Finding:
        """Fires while the core knows of a restart that brought no attempt."""
        found = state.unrestarted
        if found is None:
            return CLEAR
        summary = f"remediation {found.remediation} was to restart job {found.job}, and no attempt begins: {found.why}"
        evidence = {"remediation": found.remediation, "slurm_job": found.job, "actions": found.actions}
        return Finding("firing", "critical", summary, evidence, onset=state.attempt.latest.iteration, since=found.at)
