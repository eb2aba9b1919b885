"""Goodput: what of the run's time counted, what was lost to which cause, and how often to save.

Definitions: docs/incident-record.md, "Goodput" (Kokolis et al., arXiv 2410.21680; Young 1974, Daly 2006).
"""

import math
from typing import Any

from monitor.run.ending import PLANNED
from monitor.run.state import RunState


def mean_time_between_failures_seconds(state: RunState) -> float | None:
    """Productive time over unplanned ends, the present one counted if it was one; None before the first."""
    failures = state.unplanned_ends + (state.launch.phase == "crashed" and not _planned(state))
    return state.productive_seconds / failures if failures and state.productive_seconds > 0 else None


def _planned(state: RunState) -> bool:
    launch = state.launch
    return launch.failure is not None and launch.failure.failure in PLANNED


def advised_save_interval(state: RunState) -> float | None:
    """Seconds between saves that lose least: sqrt(2 x save time x MTBF), the first-order optimum of Young and Daly."""
    between, save = mean_time_between_failures_seconds(state), state.past.checkpoints.save_seconds
    return math.sqrt(2 * save * between) if between is not None and save else None


def figures(state: RunState, wall_seconds: float) -> dict[str, Any]:
    """Goodput for people and for `replay --json`; absent where the log does not tell."""
    between, advised = mean_time_between_failures_seconds(state), advised_save_interval(state)
    baseline = state.launch.pace.baseline
    out: dict[str, Any] = {
        "productive_seconds": round(state.productive_seconds, 1),
        "unplanned_restarts": state.unplanned_ends,
        "planned_restarts": max(0, state.restarts - state.unplanned_ends),
        "mean_time_between_failures_seconds": round(between, 1) if between is not None else None,
        "advised_save_interval_seconds": round(advised, 1) if advised is not None else None,
    }
    if advised is not None and baseline:
        out["advised_save_interval_iterations"] = max(1, round(advised / baseline))
    if wall_seconds > 0:
        out["unproductive_seconds"] = round(max(0.0, wall_seconds - state.productive_seconds), 1)
    return out
