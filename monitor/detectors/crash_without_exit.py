"""Crash without exit: a fatal line, then nothing; the other processes hold their GPUs and the job does not end.

BLOOM met it weekly: one process died and the scheduler still listed the job as running (docs/incident-record.md,
"Hangs", H6).
The log alone cannot see the job. What it can see: no launcher reported an end, no process was ended, the log is silent.
"""

from msgspec import Struct

from megatron_monitor.detectors.base import CLEAR, Detector, Verdict, missing_evidence
from megatron_monitor.run.job import evidence as job_evidence
from megatron_monitor.run.nodes import suspects
from megatron_monitor.run.state import Launch, RunState
from megatron_monitor.units import Factor, Seconds


class CrashWithoutExitSettings(Struct, frozen=True):
    """Thresholds, each with its reason."""

    minimum: Seconds = 90.0
    """srun --kill-on-bad-exit and torchrun end the others within a minute; PyTorch's own clean-up takes seconds."""
    maximum: Seconds = 300.0
    """However slow the iterations are: nothing ends by itself after five minutes."""
    iterations: Factor = 2.0
    """Between the two: so many iterations' time, in which healthy ranks would have shown progress."""


def _due(launch: Launch, settings: CrashWithoutExitSettings) -> float | None:
    """When the silence after the fatal line is over; None if an end was seen or there was no fatal line."""
    failure, found = launch.failure, launch.ending
    if launch.phase != "crashed" or failure is None or found.gone or not found.certain:
        return None
    last = max(failure.at, found.since or failure.at)
    wait = settings.iterations * (launch.pace.baseline or 0.0) * (launch.log_interval or 1)
    return last + min(settings.maximum, max(settings.minimum, wait))


def deadlines(state: RunState, settings: CrashWithoutExitSettings) -> tuple[float | None]:
    """When the silence is over."""
    return (_due(state.launch, settings),)


def check(state: RunState, _memory: None, now: float, settings: CrashWithoutExitSettings) -> Verdict:
    """Firing until an end is seen, or the run goes on."""
    launch = state.launch
    due = _due(launch, settings)
    if due is None or not state.live or now < due or launch.failure is None:
        return CLEAR
    failure = launch.failure
    nodes = suspects(state)[:8]
    shown = f" (suspect: {', '.join(nodes)})" if nodes else ""
    summary = (
        f"{failure.failure} {now - failure.at:.0f} s ago, and no process was seen to end{shown}: the job may still "
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
    return Verdict("firing", "critical", summary, evidence, onset=launch.latest.iteration, since=failure.at)


DETECTOR = Detector(CrashWithoutExitSettings, check, deadlines=deadlines)
