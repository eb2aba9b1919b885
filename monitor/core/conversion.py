"""State files of earlier versions, as plain values, to the present form. Pure; each is read once and written anew."""

import dataclasses
from typing import Any

import msgspec

from megatron_monitor.core.saved import ENDED, LEDGER, MONITOR
from megatron_monitor.run.ending import Evidence, ending
from megatron_monitor.run.launches import program_of
from megatron_monitor.run.state import Launch

_OF_THE_LAUNCH = {one.name for one in dataclasses.fields(Launch)} - {"pace", "arguments", "arguments_changed"}
"""Fields of a run in version 2 that are those of its present launch; of these three it is decided below."""
_OF_A_FAILURE = ("failure", "message", "line", "consequence", "rank", "node", "logged_at", "exit_code", "helper")


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
        "silences": {
            "good": state.get("gaps", {}),
            "held": state.get("buffering", {}).get("longest_silence"),
        },
        "checkpoints": checkpoints,
    }
    launch["evidence"] = _evidence(state, launch)
    found = ending([msgspec.convert(row, Evidence) for row in launch["evidence"]])
    launch["ending"] = msgspec.to_builtins(found)
    state["launch_records"] = state.get("launches", [])
    state["launch"] = launch
    return state


def _evidence(state: dict[str, Any], launch: dict[str, Any]) -> list[dict[str, Any]]:
    """The flags of a launch's end, as what they were set by."""
    rows: list[dict[str, Any]] = []
    failure, at = state.get("failure"), launch.get("first_failure_at") or state.get("updated_at", 0.0)
    after, phase = launch.get("iterations", 0), launch.get("phase")
    if failure is not None:
        rows.append(_failure(failure, launch))
    watchdog = {"sort": "watchdog", "at": at, "failure": "nccl", "message": "NCCL watchdog", "fatal": True}
    rows += [{**watchdog, "rank": rank} for rank in state.get("watchdog_ranks", [])]
    rows += [{**watchdog, "node": node} for node in state.get("watchdog_nodes", [])]
    if launch.get("done_at") is not None:
        rows.append({"sort": "finished" if phase == "finished" else "done", "at": launch["done_at"]})
    elif phase == "finished":
        rows.append({"sort": "finished", "at": at})
    bad = launch.get("job_failed_at")
    if launch.get("processes_ended") or (phase == "crashed" and failure is None):
        code = None if phase == "crashed" else 1 if bad is not None else 0
        count = max(1, launch.get("processes_ended", 0))
        message = "a process ended badly" if code != 0 else ""
        exited = {"sort": "exit", "failure": "unknown", "message": message, "exit_code": code, "count": count}
        rows.append({**exited, "at": at if bad is None else bad})
    if launch.get("processes_terminated"):
        rows.append({"sort": "terminated", "at": at})
    if phase == "crashed" and not launch.get("doubtful"):
        rows.append({"sort": "silence", "at": at})
    return [{"after": after, **row} for row in rows]


def _failure(failure: dict[str, Any], launch: dict[str, Any]) -> dict[str, Any]:
    known = {name: failure[name] for name in _OF_A_FAILURE if failure.get(name) is not None}
    raised = failure["failure"] in ("python_exception", "stopped") and launch.get("uncaught_after") is not None
    ended = launch.get("phase") == "crashed" and bool(failure.get("fatal"))
    told = {"sort": "traceback" if raised else "failure", "at": failure["at"], "fatal": ended}
    return {**known, **told, "after": failure.get("after", 0), "raised": not raised}


def from_version_3(saved: dict[str, Any]) -> dict[str, Any]:
    """All was one value; now each log is a part, and so are the records of nodes and of ended runs."""
    parts: dict[str, Any] = {LEDGER: saved.pop("ledger", {}), ENDED: saved.pop("ended", {})}
    sources, runs = saved.pop("sources", {}), saved.pop("runs", {})
    saved["unclaimed"] = {name: source["saved_at"] for name, source in sources.items()}
    saved["heard_at"] = max(saved["unclaimed"].values(), default=float("-inf"))
    for name, source in sources.items():
        parts.setdefault(source["run"], {}).setdefault("sources", {})[name] = source
    for name, run in runs.items():
        log = run["state"].get("experiment", {}).get("log") or name
        parts.setdefault(log, {}).setdefault("runs", {})[name] = run
    return {MONITOR: saved, **parts}


EARLIER = {2: lambda saved: from_version_3(from_version_2(saved)), 3: from_version_3}
"""For store.Store.load."""
