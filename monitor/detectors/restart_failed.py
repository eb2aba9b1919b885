"""The rule `restart_failed`: a remediation ended the run's job or found it ended, and no attempt can begin
(monitor/remediator/).

The incident stays open until an attempt begins, because no other rule reports a run without a job. There is no setting:
the actions of a remediation are known.
"""

from megatron_monitor.detectors.base import CLEAR, Finding, Rule, RuleSettings
from megatron_monitor.run.state import RunState


class RestartFailed(Rule):
    """Has no memory."""

    name = "restart_failed"
    outlives = True

    def evaluate(self, state: RunState, _now: float, _settings: RuleSettings) -> Finding:
        """Fire while the core knows of a restart without an attempt."""
        found = state.unrestarted
        if found is None:
            return CLEAR
        summary = f"remediation {found.remediation} was to restart job {found.job}, but no attempt begins: {found.why}"
        evidence = {"remediation": found.remediation, "slurm_job": found.job, "actions": found.actions}
        return Finding("firing", "critical", summary, evidence, onset=state.attempt.latest.iteration, since=found.at)
