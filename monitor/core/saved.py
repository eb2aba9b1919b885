"""Persistence: what a restart needs, and what of it no source has claimed yet. Pure; store.py writes the file.

Law: an offset is saved with the state that its lines produced, never alone. A saved source is claimed when the follower
opens it, and its run with it, under the name that the present configuration gives the run.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from monitor.core.ended import Ended
from monitor.core.outbox import Owed
from monitor.follow.messages import Position
from monitor.hands.record import Record
from monitor.identity import Member
from monitor.judgement import Judged
from monitor.nodes.record import Ledger
from monitor.run.experiments import Known

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
class Place:
    """How far a partition of a Kafka topic was handled: what is saved with it holds all records before `offset`."""

    offset: int = 0
    first: dict[str, int] = field(default_factory=dict)
    """Streams of which it was not decided which run they are of -> the record that each began with. One that is not
    among the sources saved here is read again from there."""
    written: dict[str, float] = field(default_factory=dict)
    """When each stream was last written to, Unix seconds."""
    carriers: dict[str, float] = field(default_factory=dict)
    """Until when each agent that sends heartbeats was heard, Unix seconds."""


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
    place: Place | None = None
    """Of a partition; None: it is that of a daemon's own files."""

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
