"""Mixed log: two trainings write into one log at the same time, as `srun a & srun b` does.

The steps of both cannot be told apart in general. The training that is ahead is followed, the other one is not. There
is nothing to set: where an attempt that seemed replaced goes on, two write (monitor/run/attempts.py).
"""

from collections.abc import Sequence

from megatron_monitor.detectors.base import AttemptRule, Finding, RuleSettings, unless_standing
from megatron_monitor.run.state import RunState
from megatron_monitor.run.steps.step import Step


class MixedLog(AttemptRule):
    """What was found before."""

    name = "mixed_log"

    mixed: bool = False
    second_job: str = ""

    def on_steps(self, state: RunState, _steps: Sequence[Step], _settings: RuleSettings) -> bool:
        """Whether it begins, or what Slurm says of a second job has changed."""
        found = state.attempt.mixed, state.second_job
        if found == (self.mixed, self.second_job):
            return False
        self.mixed, self.second_job = found
        return True

    def evaluate(self, state: RunState, _now: float, _settings: RuleSettings) -> Finding:
        """Fires until the attempt is replaced, or the second job has ended."""
        attempt = state.attempt
        if verdict := unless_standing(state, self.attempt, found=attempt.mixed or bool(state.second_job)):
            return verdict
        jobs = [state.job.id, state.second_job] if state.second_job and state.job is not None else []
        named = f"jobs {jobs[0]} and {jobs[1]} both run and" if jobs else "two trainings"
        summary = f"{named} write into one log: the training that is ahead is followed, the other is not"
        return Finding("firing", "warning", summary, {"jobs": jobs} if jobs else {}, onset=attempt.latest.iteration)
