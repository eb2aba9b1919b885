"""The rule `mixed_log`: two trainings write into one log at the same time, as with `srun a & srun b`.

Their steps cannot be separated in general. The training that is ahead is followed, the other one is not. The rule has
no setting: an attempt that continues after it seemed replaced shows that two write (monitor/run/attempts.py).
"""

from megatron_monitor.detectors.base import CLEAR, Finding, Rule, RuleSettings
from megatron_monitor.run.state import RunState


class MixedLog(Rule):
    """Has no memory: the run's state has the finding."""

    name = "mixed_log"

    def evaluate(self, state: RunState, _now: float, _settings: RuleSettings) -> Finding:
        """Fire until the attempt is replaced or the second job has ended."""
        attempt = state.attempt
        if not (state.mixed or state.second_job):
            return CLEAR
        jobs = [state.job.id, state.second_job] if state.second_job and state.job is not None else []
        named = f"jobs {jobs[0]} and {jobs[1]} both run and" if jobs else "two trainings"
        summary = f"{named} write into one log: the training that is ahead is followed, the other is not"
        return Finding("firing", "warning", summary, {"jobs": jobs} if jobs else {}, onset=attempt.latest.iteration)
