"""Restart failed: a policy ended the run's job, or found it ended, and the next launch cannot begin (monitor/hands/).

It stands until a launch begins: nothing else says that a run which nobody watches has gone.
"""

from msgspec import Struct

from monitor.detectors.base import CLEAR, Detector, Verdict
from monitor.run.state import RunState


class RestartFailedSettings(Struct, frozen=True):
    """Nothing to set: what a policy did is known."""


def check(state: RunState, _memory: None, _now: float, _settings: RestartFailedSettings) -> Verdict:
    """Fires while the core knows of a restart that brought no launch."""
    found = state.unrestarted
    if found is None:
        return CLEAR
    summary = f"policy {found.policy} was to restart job {found.job}, and no launch begins: {found.why}"
    evidence = {"policy": found.policy, "slurm_job": found.job, "actions": found.actions}
    return Verdict("firing", "critical", summary, evidence, onset=state.launch.latest.iteration, since=found.at)


DETECTOR = Detector(RestartFailedSettings, check, messages="each")
