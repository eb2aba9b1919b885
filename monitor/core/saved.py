"""The saved state: what a restart needs, and what no source has claimed yet. Pure; store.py writes the file.

Rule: an offset is saved together with the state that its lines produced: a log's sources and runs are one part of the
file. A saved source is claimed with its run when the follower opens it, under the name of the present configuration.
"""

from collections.abc import Iterable
from sys import intern

import msgspec
from msgspec import Struct, field

from megatron_monitor.alerts import Alerts
from megatron_monitor.core.outbox import PendingNotification
from megatron_monitor.follow.messages import Position
from megatron_monitor.identity import StreamIdentity
from megatron_monitor.incident_events import IncidentEvents
from megatron_monitor.incidents import IncidentBook
from megatron_monitor.parsers.events import LogEvent
from megatron_monitor.parsers.reader import Bookmark
from megatron_monitor.pushed import Agent
from megatron_monitor.run.experiments import Experiments
from megatron_monitor.run.state import RunState

MONITOR = "\0monitor"
"""Names of parts that cannot be names of runs."""
_KEEP_SECONDS = 30 * 86400.0  # after a month without access, a mount will not come back


class SavedSource(Struct, omit_defaults=True, gc=False):
    """A source: the verified position of its lines, the reader's context, and the lines that wait."""

    run: str
    position: Position
    reader: Bookmark
    saved_at: float
    member: StreamIdentity
    """Its run, with the reason."""
    experiments: Experiments | None = None
    """With the lines that wait for arguments. None: neither arguments nor such lines. There may be 100,000 sources."""
    waiting: tuple[tuple[LogEvent, float], ...] = ()
    """(event, instant) of lines whose run is undecided."""
    setup_events: tuple[tuple[LogEvent, float], ...] = ()
    put_out: bool = False
    """True: its run was dropped to make room."""
    new: bool = False
    """True: it appeared after the first search of its directory."""
    mount: str = ""
    owner: int | None = None
    """User id of the file."""


class PartitionOffset(Struct):
    """The position in a Kafka partition: the state saved with it includes all records before `offset`."""

    offset: int = 0
    live: int = 0
    """Records before this offset existed when the first member began: history without notifications."""
    written: dict[str, float] = field(default_factory=dict)
    """Stream -> Unix time of its last write."""
    agents: dict[str, Agent] = field(default_factory=dict)
    """Agents that send heartbeats."""


class SavedRun(Struct, omit_defaults=True):
    """A run, with the events of its files that wait until the file with the training loop is read (runs.py)."""

    state: RunState
    book: IncidentBook = field(default_factory=IncidentBook)
    historical: bool = False
    expired: bool = False
    deferred: list[tuple[LogEvent, str, float]] = field(default_factory=list)


class LogState(Struct):
    """A part of the file: one log, with its runs in the state of its sources' positions."""

    sources: dict[str, SavedSource] = field(default_factory=dict)
    runs: dict[str, SavedRun] = field(default_factory=dict)


class Saved(LogState):
    """The content of the state file: the monitor's own part, and all logs in `sources` and `runs`."""

    counts: dict[str, list[tuple[tuple[str, ...], float]]] = field(default_factory=dict)
    wall_offset: float = 0.0
    """Unix time minus instant (monitor/system/clock.py), seconds."""
    pending: dict[str, list[PendingNotification]] = field(default_factory=dict)
    """Notifier -> messages that it has not accepted yet."""
    events: IncidentEvents = field(default_factory=IncidentEvents)
    """The events to which incidents belong."""
    alerts: Alerts = field(default_factory=Alerts)
    """The alerts for Alertmanager."""
    contact_at: float = float("-inf")
    """Instant until which all sources were observed. Parts that were not saved again had not changed."""
    unclaimed: dict[str, float] = field(default_factory=dict)
    """The same for each source that was not opened, or not read to its end, since a restart."""
    place: PartitionOffset | None = None
    """Position in a Kafka partition; None for the state of followed files."""

    @property
    def positions(self) -> dict[str, Position]:
        """Source -> position for the follower to verify."""
        return {name: source.position for name, source in self.sources.items()}


class UnclaimedState:
    """The saved state that no source has claimed yet, for example of a mount that is unavailable at the start."""

    def __init__(self, saved: LogState) -> None:
        self.sources, self.runs = saved.sources, saved.runs
        self._sources_of: dict[str, list[str]] = {}  # log -> names of its sources, in the order of arrival
        self._runs_of: dict[str, list[str]] = {}
        for name, source in self.sources.items():
            self._sources_of.setdefault(source.run, []).append(name)
        for name, run in self.runs.items():
            self._runs_of.setdefault(run.state.experiment.log or name, []).append(name)

    @property
    def logs(self) -> Iterable[str]:
        """The logs with saved state."""
        return self._sources_of.keys() | self._runs_of.keys()

    def of_log(self, log: str) -> LogState:
        """Return the unclaimed part of a log; without runs if all its sources are claimed."""
        names = self._sources_of.get(log, ())
        runs = self._runs_of.get(log, ()) if names else ()
        return LogState({name: self.sources[name] for name in names}, {name: self.runs[name] for name in runs})

    def take_source(self, name: str) -> SavedSource | None:
        """Claim a source; None if it is not saved."""
        found = self.sources.pop(name, None)
        if found is not None:
            self._sources_of[found.run].remove(name)
            if not self._sources_of[found.run]:
                del self._sources_of[found.run]
        if not self.sources:  # emptied dictionaries keep their memory
            self.sources, self._sources_of = {}, {}
        return found

    def take_runs(self, log: str) -> list[SavedRun]:
        """Claim the runs of a log."""
        return [self.runs.pop(name) for name in self._runs_of.pop(log, ())]

    def expire(self, now: float) -> set[str]:
        """Drop sources that were inaccessible for long. Return their logs."""
        old = [name for name, one in self.sources.items() if now - one.saved_at >= _KEEP_SECONDS]
        return {one.run for name in old if (one := self.take_source(name)) is not None}


def of_parts(parts: dict[str, bytes], problems: list[str]) -> Saved | None:
    """Return the state of these parts, and add to `problems`. A log with an unreadable part is read again; None if the
    monitor's own part is unreadable: then all logs are read again.
    """
    decode, decoder = msgspec.msgpack.decode, msgspec.msgpack.Decoder(LogState)
    try:
        saved = decode(parts.pop(MONITOR), type=Saved)
    except (msgspec.MsgspecError, KeyError) as error:
        problems.append(f"the monitor's own part cannot be read: {error}")
        return None
    for log in sorted(parts):
        try:
            one = decoder.decode(parts.pop(log))  # decoded one by one, so that a log's objects are neighbours in memory
        except msgspec.MsgspecError as error:
            problems.append(f"run={log!r} cannot be read: {error}")
            continue
        saved.sources.update(one.sources)
        saved.runs.update(one.runs)
        for source in one.sources.values():  # share strings: there may be 100,000 sources
            source.run = log if source.run == log else source.run
            source.mount = intern(source.mount)
            member = source.member
            member.base = log if member.base == log else member.base
            member.why, member.pattern = intern(member.why), intern(member.pattern)
    for name, source in saved.sources.items():
        source.saved_at = max(source.saved_at, saved.unclaimed.get(name, saved.contact_at))
    return saved
