"""Persistence: what a restart needs, and what of it no source has claimed yet. Pure; store.py writes the file.

Law: an offset is saved with the state that its lines produced, never alone: a log's sources and runs are one part of
the file. A saved source is claimed
when the follower opens it, and its run with it, under the name that the present configuration gives the run.
"""

from collections.abc import Iterable
from sys import intern

import msgspec
from msgspec import Struct, field

from megatron_monitor.alerts import Alerts
from megatron_monitor.core.groups import Groups
from megatron_monitor.core.outbox import PendingNotification
from megatron_monitor.evaluation import MonitoredRun
from megatron_monitor.follow.messages import Position
from megatron_monitor.identity import StreamIdentity
from megatron_monitor.incident_events import IncidentEvents
from megatron_monitor.parsers.reader import Bookmark
from megatron_monitor.pushed import Agent
from megatron_monitor.run.experiments import ExperimentState
from megatron_monitor.snapshot import RunSnapshot

MONITOR, ENDED, EXTENSION = "\0monitor", "\0ended", "\0extension\0"
"""Names of parts that no run can have."""
_KEEP_SECONDS = 30 * 86400.0  # a source that could not be seen for a month: its mount is not coming back


class SavedSource(Struct, omit_defaults=True, gc=False):
    """How far a source had been folded, with the proof of the place and the reader's context."""

    run: str
    position: Position
    reader: Bookmark
    saved_at: float
    experiments: ExperimentState | None = None
    """Without what is held: the runs are saved with that. None for a source that holds no arguments."""
    member: StreamIdentity | None = None
    """Which run it is a stream of, and why."""
    put_out: bool = False
    """Its run made room for others."""
    new: bool = False
    """It came while we watched."""
    mount: str = ""
    owner: int | None = None
    """The user id of the file."""

    @property
    def reported_nothing(self) -> bool:
        """Whether it is of no training and no job, as far as it was read."""
        return self.member is not None and self.member.reported_nothing and self.reader.reported_nothing


class PartitionOffset(Struct):
    """How far a partition of a Kafka topic was handled: what is saved with it holds all records before `offset`."""

    offset: int = 0
    live: int = 0
    """Records before it lay there when the first member of all began: history, of which nobody is told."""
    first: dict[str, int] = field(default_factory=dict)
    """Streams of which it was not decided which run they are of -> the record that each began with. One that is not
    among the sources saved here is read again from there."""
    written: dict[str, float] = field(default_factory=dict)
    """When each stream was last written to, Unix seconds."""
    agents: dict[str, Agent] = field(default_factory=dict)
    """Agents that send heartbeats."""


class LogState(Struct):
    """A part: what is known of one log, its runs at the moment its sources stood where SavedSource says."""

    sources: dict[str, SavedSource] = field(default_factory=dict)
    runs: dict[str, MonitoredRun] = field(default_factory=dict)


class Saved(LogState):
    """What the state file holds: the part of the monitor itself, and in `sources` and `runs` those of all logs."""

    counts: dict[str, list[tuple[tuple[str, ...], float]]] = field(default_factory=dict)
    extensions: dict[str, bytes] = field(default_factory=dict)
    """What each optional part keeps, in its own encoding (core/extension.py). Each a part of its own."""
    wall_offset: float = 0.0
    """Unix time less the instants in here (monitor/system/clock.py), seconds."""
    pending: dict[str, list[PendingNotification]] = field(default_factory=dict)
    """By notifier, the messages that it has not accepted yet."""
    events: IncidentEvents = field(default_factory=IncidentEvents)
    """Which incidents are one event."""
    alerts: Alerts = field(default_factory=Alerts)
    """What an Alertmanager is shown."""
    ended: dict[str, RunSnapshot] = field(default_factory=dict)
    """Runs that the page still shows, and nothing else. A part of its own."""
    contact_at: float = float("-inf")
    """Until when all sources were observed; what was not saved anew then had not changed."""
    unclaimed: dict[str, float] = field(default_factory=dict)
    """The same of each source that was not opened, or not read to its end, since a restart."""
    place: PartitionOffset | None = None
    """Of a partition; None: it is that of a daemon's own files."""

    @property
    def positions(self) -> dict[str, Position]:
        """By source, for the follower to prove."""
        return {name: source.position for name, source in self.sources.items()}

    def forget_expired_runs(self) -> None:
        """Drop the sources of runs that were shown, ended and are no longer kept: they are read again."""
        kept = {run.state.experiment.log or name for name, run in self.runs.items()}
        for name, one in list(self.sources.items()):
            if one.run not in kept and one.reader.matched_lines and not one.put_out:
                del self.sources[name]


class UnclaimedState:
    """What of a state no source has claimed yet: a mount that is down at the start costs no state."""

    def __init__(self, saved: LogState) -> None:
        self.sources, self.runs = saved.sources, saved.runs
        self._sources_of, self._runs_of = Groups(), Groups()
        for name, source in self.sources.items():
            self._sources_of.add(source.run, name)
        for name, run in self.runs.items():
            self._runs_of.add(run.state.experiment.log or name, name)

    @property
    def logs(self) -> Iterable[str]:
        """Those of which anything was saved."""
        return self._sources_of.keys() | self._runs_of.keys()

    def of_log(self, log: str) -> LogState:
        """What still waits; no run whose sources are all gone."""
        names = self._sources_of.of(log)
        runs = self._runs_of.of(log) if names else ()
        return LogState({name: self.sources[name] for name in names}, {name: self.runs[name] for name in runs})

    def take_source(self, name: str) -> SavedSource | None:
        """It is claimed, if it waits."""
        found = self.sources.pop(name, None)
        if found is not None:
            self._sources_of.remove(found.run, name)
        if not self.sources:  # tables that were emptied keep their memory, some MB of 100,000
            self.sources, self._sources_of = {}, Groups()
        return found

    def take_runs(self, log: str) -> list[MonitoredRun]:
        """They are claimed."""
        return [self.runs.pop(name) for name in self._runs_of.pop(log, ())]

    def expire(self, now: float) -> set[str]:
        """Drop what nobody has seen for long; the logs that it was of."""
        old = [name for name, one in self.sources.items() if now - one.saved_at >= _KEEP_SECONDS]
        return {one.run for name in old if (one := self.take_source(name)) is not None}


def of_parts(parts: dict[str, bytes], problems: list[str]) -> Saved | None:
    """The state that these parts make; a log whose part does not fit is read again, and so are all if the monitor's
    own does not. Adds to `problems`.
    """
    saved: Saved | None = None
    decode, decoder = msgspec.msgpack.decode, msgspec.msgpack.Decoder(LogState)
    try:
        kept = {key.removeprefix(EXTENSION): parts.pop(key) for key in [*parts] if key.startswith(EXTENSION)}
        saved = decode(parts.pop(MONITOR), type=Saved)
        saved.extensions = kept
        saved.ended = decode(parts.pop(ENDED), type=dict[str, RunSnapshot])
    except (msgspec.MsgspecError, KeyError) as error:
        problems.append(f"the monitor's own part does not fit: {error}")
        return saved
    for log in sorted(parts):
        try:
            one = decoder.decode(parts.pop(log))  # neighbours lie together: they come and go together, too
        except msgspec.MsgspecError as error:
            problems.append(f"run={log!r} does not fit: {error}")
            continue
        saved.sources.update(one.sources)
        saved.runs.update(one.runs)
        for source in one.sources.values():  # names are shared: there may be 100,000 sources
            source.run = log if source.run == log else source.run
            source.mount = intern(source.mount)
            if (member := source.member) is not None:
                member.base = log if member.base == log else member.base
                member.why, member.pattern = intern(member.why), intern(member.pattern)
    for name, source in saved.sources.items():
        source.saved_at = max(source.saved_at, saved.unclaimed.get(name, saved.contact_at))
    return saved
