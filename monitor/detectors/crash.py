"""Crash: a launch has died, of what, where, and what it cost. One incident, however many ranks report it.

The cause is the first fatal line that is no consequence (monitor/run/ends.py). It is told a few seconds after the first
line: the ranks' lines arrive out of order, and the launcher's word for a victim is often first.
Risk left: a fatal line that the program catches is told where the next iteration takes longer than that; it is resolved
by the iteration.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from monitor.detectors.verdict import Severity, Verdict
from monitor.detectors.words import spoken
from monitor.run.attempts import PLANNED
from monitor.run.derived import seconds_at_risk
from monitor.run.state import FailureRecord, RunState
from monitor.run.units import Seconds

_NAME = "crash"
ADVICE: dict[str, str] = {
    "cuda_oom": "lower the micro batch size, recompute activations, or shard more; at start-up on an idle GPU it is a "
    "sign of a broken node, not of a large model",
    "host_oom": "look at the data loader's workers and at pinned memory; ask for more host memory",
    "nccl": "find the rank that did not arrive (py-spy dump on all nodes, flight recorder); look at its node's network",
    "cuda_error": "note the node; if it fails again there, exclude it",
    "ecc": "exclude the node and have the GPU checked: memory errors come back",
    "bus_error": "look at /dev/shm and at the file system under the data",
    "segfault": "look for the first native frame; a node that does it twice is broken",
    "python_exception": "read the first traceback; the others follow from it",
    "node_failure": "the scheduler lost the node; restart without it",
    "time_limit": "the job's time was over: queue the next one",
    "preempted": "the scheduler took the nodes: the job comes back when it may",
    "disk_full": "make room before the restart, or the next save fails too",
    "killed": "somebody or the system killed it: scancel, the OOM killer, or an administrator",
    "unknown": "read the last lines of every rank",
}


class CrashSettings(Struct, frozen=True):
    """Thresholds, each with its reason."""

    settle: Seconds = 5.0
    """After the first fatal line: within seconds the other ranks' lines show which one was the cause."""


def told(state: RunState) -> FailureRecord | None:
    """The failure that has ended the present launch."""
    return state.failure if state.phase == "crashed" else None


def next_change(state: RunState, now: float, settings: CrashSettings) -> float | None:
    """When the cause is believed."""
    at = state.attempt.first_failure_at
    if told(state) is None or at is None:
        return None
    return at + settings.settle if at + settings.settle > now else None


def check(state: RunState, now: float, settings: CrashSettings) -> Verdict:
    """Firing from the settled cause on, until another launch shows progress."""
    failure, at = told(state), state.attempt.first_failure_at
    if failure is None or not state.live:
        return Verdict(_NAME)
    if at is not None and now < at + settings.settle:
        return Verdict(_NAME, "unknown")
    return Verdict(
        _NAME,
        "firing",
        severity=_severity(failure),
        summary=_summary(state, failure),
        onset_iteration=state.latest.iteration,
        since=failure.at,
        evidence=_evidence(state, failure),
    )


def _severity(failure: FailureRecord) -> Severity:
    """What the scheduler does as planned is information; what a person did by hand wakes nobody else."""
    if failure.failure in PLANNED:
        return "info"
    by_hand = failure.failure == "killed" and failure.message.startswith("Slurm cancelled")
    return "warning" if by_hand or failure.message.startswith("KeyboardInterrupt") else "critical"


def _summary(state: RunState, failure: FailureRecord) -> str:
    iteration = state.latest.iteration
    where = f" after iteration {iteration}" if iteration is not None else " before the first iteration"
    place = f" on rank {failure.rank}" if failure.rank is not None else ""
    place += f" on {failure.node}" if failure.node else ""
    ranks = len(state.watchdog_ranks)
    many = f" ({ranks} ranks' watchdogs gave up)" if failure.failure == "nccl" and ranks > 1 else ""
    risk = seconds_at_risk(state)
    lost = f"; {spoken(risk)} of work since the last checkpoint lost" if risk and iteration is not None else ""
    advice = ADVICE.get(failure.failure, ADVICE["unknown"])
    return f"crashed{where}: {failure.failure}{place}{many}: {failure.message[:200]}{lost}; {advice}"


def _evidence(state: RunState, failure: FailureRecord) -> dict[str, Any]:
    fields = {
        "failure": failure.failure,
        "message": failure.message,
        "line": failure.line,
        "rank": failure.rank,
        "node": failure.node,
        "exit_code": failure.exit_code,
        "logged_at": failure.logged_at,
        "watchdog_ranks": state.watchdog_ranks[:64] or None,
        "watchdog_nodes": state.watchdog_nodes[:64] or None,
        "last_checkpoint_iteration": state.checkpoints.last_iteration,
        "lost_seconds": seconds_at_risk(state),
        "last_line": state.last_line or None,
    }
    return {name: value for name, value in fields.items() if value is not None}
