"""Persistence: what a restart needs, and what of it no source has claimed yet. Pure; store.py writes the file.

Law: an offset is saved with the state that its lines produced, never alone. A saved source is claimed when the follower
opens it, and its run with it, under the name that the present configuration gives the run.
"""

import dataclasses
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from monitor.core.ended import Ended
from monitor.core.outbox import Owed
from monitor.follow.messages import Position
from monitor.hands.record import Record
from monitor.identity import Member
from monitor.judgement import Judged
from monitor.nodes.record import Ledger
from monitor.run.ending import Evidence, ending
from monitor.run.experiments import Known
from monitor.run.launches import program_of
from monitor.run.state import Launch

_KEEP_SECONDS = 30 * 86400.0  # a source that could not be seen for a month: its mount is not coming back


@dataclass(slots=True)
class SavedSource:
    """How far a source had been folded, with the proof of the place and the reader's context."""

    run: str
    position: Position
    reader: dict[str, Any]
    saved_at: float
    experiments: Known | None = None
    """Without what is held: the runs are saved with that. None for a source that holds no arguments."""
    member: Member | None = None
    """Which run it is a stream of, and why. None in files of earlier daemons."""


@dataclass(slots=True)
class Saved:
    """What the state file holds."""

    sources: dict[str, SavedSource] = field(default_factory=dict)
    runs: dict[str, Judged] = field(default_factory=dict)
    """Each at the moment its sources stood where SavedSource says."""
    counts: dict[str, list[tuple[tuple[str, ...], float]]] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    """The launches of all runs, for the record of the nodes."""
    wall_offset: float = 0.0
    """Unix time less the instants in here (monitor/system/clock.py), seconds."""
    owed: dict[str, list[Owed]] = field(default_factory=dict)
    """By notifier, the messages that it has not accepted yet."""
    hands: Record = field(default_factory=Record)
    """What policies have done."""
    ended: dict[str, Ended] = field(default_factory=dict)
    """Runs that the page still shows, and nothing else."""

    @property
    def positions(self) -> dict[str, Position]:
        """By source, for the follower to prove."""
        return {name: source.position for name, source in self.sources.items()}

    @property
    def at(self) -> float:
        """The last instant in here."""
        return max((source.saved_at for source in self.sources.values()), default=float("-inf"))

    def names(self) -> dict[str, list[str]]:
        """By log, the run of its name and those of the other experiments in it."""
        found: dict[str, list[str]] = {}
        for name, run in self.runs.items():
            found.setdefault(_log_of(name, run), []).append(name)
        return found

    def unclaimed(self, now: float) -> "Saved":
        """What still waits, to be saved again: a mount that is down at the start costs no state."""
        sources = {name: one for name, one in self.sources.items() if now - one.saved_at < _KEEP_SECONDS}
        wanted = {one.run for one in sources.values()}
        return Saved(sources, {name: run for name, run in self.runs.items() if _log_of(name, run) in wanted})

    def logs(self) -> set[str]:
        """The runs that sources are known by."""
        return {one.run for one in self.sources.values()} | {_log_of(name, run) for name, run in self.runs.items()}

    def only(self, logs: set[str]) -> "Saved":
        """What belongs to these logs: their offsets and their runs, never one without the other."""
        sources = {name: one for name, one in self.sources.items() if one.run in logs}
        runs = {name: run for name, run in self.runs.items() if _log_of(name, run) in logs}
        return replace(self, sources=sources, runs=runs)

    def without(self, logs: set[str]) -> "Saved":
        """What does not."""
        return self.only(self.logs() - logs)

    def forget_expired_runs(self) -> None:
        """Drop the sources of runs that were shown, ended and are no longer kept: they are read again."""
        kept = {_log_of(name, run) for name, run in self.runs.items()}
        for name, one in list(self.sources.items()):
            if one.run not in kept and one.reader.get("matched_lines"):
                del self.sources[name]


def _log_of(name: str, run: Judged) -> str:
    return run.state.experiment.log or name


# State files of earlier versions, as plain values, to the present form. Pure; each is read once and written anew.

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
        known = {name: failure[name] for name in _OF_A_FAILURE if failure.get(name) is not None}
        raised = failure["failure"] in ("python_exception", "stopped") and launch.get("uncaught_after") is not None
        ended = phase == "crashed" and bool(failure.get("fatal"))
        told = {"sort": "traceback" if raised else "failure", "at": failure["at"], "fatal": ended}
        rows.append({**known, **told, "after": failure.get("after", 0), "raised": not raised})
    rows += [
        {"sort": "watchdog", "at": at, "failure": "nccl", "message": "NCCL watchdog", "fatal": True, "rank": rank}
        for rank in state.get("watchdog_ranks", [])
    ]
    rows += [
        {"sort": "watchdog", "at": at, "failure": "nccl", "message": "NCCL watchdog", "fatal": True, "node": node}
        for node in state.get("watchdog_nodes", [])
    ]
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


EARLIER = {2: from_version_2}
"""For store.decode."""
