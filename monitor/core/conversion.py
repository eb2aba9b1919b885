"""State files of earlier versions, as plain values, to the present form. Pure; each is read once and written anew."""

from __future__ import annotations

from typing import Any

from monitor.run.launches import program_of

_OF_THE_LAUNCH = (
    "phase", "phase_since", "progress_clock", "hung", "latest", "topology", "environment", "software",
    "parameters_by_rank", "train_iterations", "dialect", "driver", "tflops_formula", "overflows", "pure_seconds",
    "step_seconds", "log_interval", "engine_seconds", "printed_rates", "rates_of_loop", "effective_tflops",
    "tflops_key", "tflops_seconds", "gap_ratios", "overhead_until", "overhead_iteration", "timed_overhead",
    "evaluated_at", "impure", "last_iteration_at", "stopwatch", "arrivals", "between", "counts_steps",
    "evaluation_interval", "evaluation_due", "evaluation_silent", "silent_work", "evaluation_sets",
    "validations_since", "seconds_since_checkpoint", "memory", "validations", "custom_values", "failure",
    "watchdog_ranks", "watchdog_nodes", "observed", "last_raw", "trainer_total", "trainer_declared", "trainer_bar",
    "account", "parts",
)  # fmt: skip
"""Fields of a run in version 2 that are those of its present launch."""


def from_version_2(saved: dict[str, Any]) -> dict[str, Any]:
    """A run had one flat state, and a part of it was its attempt."""
    for run in saved.get("runs", {}).values():
        run["state"] = _run(run["state"])
    return saved


def _run(state: dict[str, Any]) -> dict[str, Any]:
    launch: dict[str, Any] = state.pop("attempt", {})
    launch |= {name: state.pop(name) for name in _OF_THE_LAUNCH if name in state}
    number, pace, checkpoints = launch.get("number", 0), state.pop("pace", {}), state.pop("checkpoints", {})
    launch["pace"] = state["seconds"] = pace
    launch["counted"] = state.get("counted_attempt", -1) == number
    launch["resumed"] = launch.get("iterations", 0) > 0
    if state.get("arguments_of", -1) == number:
        launch["arguments"] = state.get("arguments", {})
        launch["arguments_changed"] = state.get("arguments_changed", [])
    launch["save"] = {
        "iteration": checkpoints.get("started_iteration"),
        "started_at": checkpoints.get("started_at"),
        "stamp": checkpoints.get("started_stamp"),
        "pending_async": checkpoints.get("pending_async", False),
        "files_iteration": checkpoints.get("files_iteration"),
    }
    for stream in state.get("copies", {}).get("cursors", {}).values():
        stream["launch"] = stream.get("attempt", -1)
    dialect = launch.get("dialect")
    state["past"] = {
        "programs": [program_of(dialect)] if launch["resumed"] or state.get("iterations_total") else [],
        "driver": launch.get("driver"),
        "log_interval": state.get("log_interval_before"),
        "baseline": state.get("baseline_before"),
        "highest_iteration": state.get("highest_iteration"),
        "gaps": state.get("gaps", {}),
        "checkpoints": checkpoints,
    }
    state["launch_records"] = state.get("launches", [])
    state["launch"] = launch
    return state


EARLIER = {2: from_version_2}
"""For store.decode."""
