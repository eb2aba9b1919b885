"""The registry of followed files: the reader of each, the proof of its place, and whether it was read to its end."""

from collections import ChainMap, Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from msgspec import Struct, field, msgpack

from megatron_monitor.config import Config
from megatron_monitor.config import Watch as Runs
from megatron_monitor.core.groups import Groups
from megatron_monitor.core.ordered import Ordered
from megatron_monitor.core.saved import SavedSource
from megatron_monitor.follow.content import ENOUGH_BYTES
from megatron_monitor.follow.marker import Marker
from megatron_monitor.follow.messages import Data, Fingerprint, Opened, Restarted
from megatron_monitor.follow.patterns import WatchedPath
from megatron_monitor.identity import StreamIdentity
from megatron_monitor.identity.naming import experiment_name, watch_of
from megatron_monitor.log_tail import LogTail
from megatron_monitor.parsers.events import LogEvent
from megatron_monitor.parsers.reader import SourceReader
from megatron_monitor.reading import Rules, evaluated_reader
from megatron_monitor.run.experiments import Experiments, ExperimentState
from megatron_monitor.run.state import RunState

TOGETHER = 300.0
"""Seconds between the last lines of two files of one job."""


def watches(config: Config) -> list[WatchedPath]:
    """What the follower is to look for."""
    return [WatchedPath(pattern, tuple(watch.exclude)) for watch in config.runs for pattern in watch.paths]


def unmatched(config: Config, paths: Iterable[str]) -> list[str]:
    """The patterns and files of the configuration by which none of these paths is found, but for the spool's: whoever
    is to push begins when it likes.
    """
    known = list(paths)
    patterns = [one for watch in config.runs for one in watch.paths if not config.is_pushed(one)]
    return [one for one in patterns if not any(watch_of(path, (Runs(paths=(one,)),)).watch for path in known)]


class Source(Struct):
    """One followed file, the run it belongs to (that of its first experiment), and how far the loop has come."""

    name: str
    path: str
    run: str
    reader: SourceReader
    marker: Marker
    mtime: float
    """When it was last written, by its file system's clock. Unix seconds."""
    counted: tuple[int, int]
    """(lines, matched lines) of the reader that the counters hold already."""
    mount: str = ""
    """Whose reader reads it."""
    caught_up: bool = False
    """It was read to its end once: what comes now comes live."""
    behind_bytes: int = 0
    read_at: float = 0.0
    """When it was last read. An instant."""
    resumed: bool = False
    """It goes on where an earlier daemon left it."""
    observed_until: float | None = None
    """By an earlier daemon, as long as what was written since has not been read to its end. An instant."""
    new: bool = False
    """It was not there when its directory was first searched: it came while we watched."""
    failed: str = ""
    """What the monitor's own code failed by at it: it is put aside (aside.py) until other content begins."""
    owner: int | None = None
    """The user id of the file."""
    put_out: bool = False
    """Its run made room for others, and is not read again for those who want to see what is over."""
    has_steps: bool = False
    """It holds lines of the training loop, not only of what surrounds it."""
    experiments: Experiments = field(default_factory=Experiments)
    """Which of its experiments its lines belong to."""
    member: StreamIdentity = field(default_factory=lambda: StreamIdentity("", ""))
    """Which run it is a stream of, and why (belonging.py)."""
    waiting: list[tuple[LogEvent, float]] = field(default_factory=list)
    """Its events, with their instants, while its run is not decided."""
    older_state: RunState | None = None
    """What it tells of attempts before all that its run was known by, until it is read to its end. Risk left: of a file
    amid which the daemon is killed the lines before that do not count.
    """
    ends: list[tuple[LogEvent, float]] = field(default_factory=list)
    """What it says of its end, while it is read as history beside other streams of its training."""
    setup_events: list[tuple[LogEvent, float]] = field(default_factory=list)
    """Its set-up, until its steps have told whose it is."""
    stepped_at: float = float("-inf")
    """When a step of it last came live. An instant."""
    ordered: Ordered | None = None
    """Of a stream that is pushed: its lines that wait for those before them."""
    tail: LogTail = field(default_factory=LogTail)
    """Its last lines, for the page."""

    def feed(self, message: Data, now: float = 0.0) -> Sequence[LogEvent]:
        """The next bytes; the events of the lines that they end, none where lines wait to be put in order."""
        held = 0 if self.ordered is None else self.ordered.size + len(self.ordered.partial)
        gap = message.offset - self.reader.fed_bytes - held
        if gap > 0:
            self.reader.skip(gap)
        self.marker.feed(message)
        self.behind_bytes, self.mtime = message.behind_bytes, message.mtime
        if self.ordered is None:
            return self.reader.feed(message.data)
        self.ordered.add(message.data, now)
        return ()

    @property
    def read_until(self) -> int:
        """The offset behind the last whole line that was read."""
        return self.reader.consumed_bytes + (self.ordered.size if self.ordered is not None else 0)

    @property
    def reported_nothing(self) -> bool:
        """Whether it is of no training and no job, as far as it was read."""
        return self.reader.reported_nothing and self.member.reported_nothing and self.ordered is None

    def restart(self, rules: Rules, message: Restarted | None = None) -> None:
        """Other content under the same path begins, or will: after a deletion there is no message of it yet."""
        if message is not None:
            self.marker.feed(message)
        if self.ordered is not None:
            self.ordered.begin_anew()
        self.reader, self.counted, self.failed, self.tail = evaluated_reader(rules), (0, 0), "", LogTail()

    def save(self, now: float) -> SavedSource:
        """The reader's context with what waits for it, and the proof of the place up to which all is in these."""
        reader, waits = self.reader.save(), 0
        if self.ordered is not None:
            reader.ordered, waits = self.ordered.save(), self.ordered.size
        position, known = self.marker.position(reader.offset + waits), self.experiments.known()
        observed = now if self.observed_until is None else self.observed_until
        return SavedSource(
            self.run, position, reader, observed, known, self.member, self.put_out, self.new, self.mount, self.owner
        )


_SAVED = msgpack.Decoder(SavedSource)


class Sources(dict[str, Source]):
    """By name. A run is catching up while one of its sources has not been read to its end. An old file that is no
    training is dormant: what is saved of it is all that is kept, until it moves, or another one of its log does; then
    it goes on as after a restart.
    """

    def __init__(self, rules: Rules) -> None:
        super().__init__()
        self.dormant: dict[str, bytes] = {}
        """By name, SavedSource encoded: there may be a hundred thousand."""
        self._rules = rules
        self._of_run = Groups()  # run -> its sources; one that is dormant is the only one
        self._unread = Counter[str]()  # run -> its sources that have not been read to their end
        self._latest: dict[str, Experiments] = {}  # run -> of its sources the one that is furthest

    def open(
        self,
        message: Opened,
        run: str,
        saved: SavedSource | None = None,
        known: ExperimentState | None = None,
        ordered: Ordered | None = None,
        former: tuple[Fingerprint, ...] = (),
    ) -> Source:
        """Follow it from the message's offset on; `saved` is what was known of it, and `known` those that its lines
        before were of. `ordered`: it is pushed. `former`: the files that it has left behind.
        """
        reader, marker = evaluated_reader(self._rules), Marker(former)
        resumed = saved is not None and message.resumed
        if saved is not None and resumed:
            reader.restore(saved.reader)
            if ordered is not None and saved.reader.ordered is not None:
                ordered.restore(saved.reader.ordered)
        elif message.offset:  # what stands before was delivered under another name
            reader.skip(message.offset)
        marker.feed(message)
        counted = reader.lines, reader.matched_lines
        source = Source(
            message.source, message.path, run, reader, marker, message.mtime, counted, message.mount,
            owner=message.owner, ordered=ordered, resumed=resumed, tail=LogTail(message.tail),
        )  # fmt: skip
        if saved is not None:
            source.new, source.put_out, source.observed_until = saved.new, saved.put_out, saved.saved_at
        self[source.name] = source
        if known is not None:
            source.experiments = Experiments(known.number, known.label, known.reported, known.ids)
            self.note_experiment(source)
        self._join(source)
        return source

    def put_dormant(self, name: str, saved: SavedSource) -> bool:
        """Keep no more of it, where its first bytes prove the place, and its log has no other source."""
        position = saved.position
        if position.head_bytes < min(ENOUGH_BYTES, position.offset + 1) or {*self._of_run.of(saved.run)} - {name}:
            return False
        self.dormant[name] = msgpack.encode(saved)
        self._of_run.add(saved.run, name)
        return True

    def awake(self, name: str) -> Source | None:
        """The source of that name; one that is dormant goes on."""
        if (kept := self.dormant.pop(name, None)) is not None:
            saved = _SAVED.decode(kept)
            at = saved.position
            found = Opened(
                name, name, at, at.offset, at.written, True, at.offset, at.device, at.inode,
                owner=saved.owner, mount=saved.mount,
            )  # fmt: skip
            source = self.open(found, saved.run, saved)
            source.member = saved.member or source.member
            self.finish(source)
        return self.get(name)

    def dormant_of(self, run: str) -> dict[str, SavedSource]:
        """The source of that run, where it is dormant."""
        return {name: _SAVED.decode(self.dormant[name]) for name in self._of_run.of(run) if name in self.dormant}

    def _join(self, source: Source) -> None:
        if self.dormant:
            for name in self._of_run.of(source.run):
                self.awake(name)
        self._of_run.add(source.run, source.name)
        if not source.caught_up:
            self._unread[source.run] += 1

    def drop(self, source: Source) -> None:
        """It is followed no more."""
        self.finish(source)
        del self[source.name]
        self._leave(source)

    def _leave(self, source: Source) -> None:
        if source.name not in self.dormant:
            self._of_run.remove(source.run, source.name)
        if not self.of_run(source.run):
            self._unread.pop(source.run, None)
            self._latest.pop(source.run, None)

    def move(self, source: Source, run: str) -> None:
        """It is a stream of another run."""
        if not source.caught_up:
            self._read(source)
        self._leave(source)
        source.run = run
        self._join(source)

    def finish(self, source: Source) -> None:
        """It was read to its end, or cannot be read: its run need not wait for it."""
        if not source.caught_up:
            source.caught_up, source.observed_until = True, None
            self._read(source)

    def _read(self, source: Source) -> None:
        self._unread[source.run] -= 1
        if not self._unread[source.run]:
            del self._unread[source.run]

    def note_experiment(self, source: Source) -> None:
        """One of its experiments may have begun."""
        latest = self._latest.get(source.run)
        if source.experiments.reported and (latest is None or source.experiments.number >= latest.number):
            self._latest[source.run] = source.experiments

    def latest(self, source: Source) -> Experiments:
        """What tells the experiment that its lines are of; a source that holds no arguments asks its neighbours."""
        own = source.experiments
        return own if own.reported else self._latest.get(source.run, own)

    def current(self, run: str, source: Source | None = None) -> str:
        """The name of the run that lines belong to now: those of `source`, else the newest of that log."""
        own = self._latest.get(run) if source is None else self.latest(source)
        return run if own is None else experiment_name(run, own.label)

    def telling(self, run: str) -> list[Source]:
        """Those of its sources that told steps; all where none has yet."""
        own = self.of_run(run)
        return [source for source in own if source.member.steps] or own

    @property
    def names(self) -> Collection[str]:
        """Of those that are dormant, too."""
        return ChainMap[str, Any](self, self.dormant)

    @property
    def runs(self) -> Iterable[str]:
        """Those that have sources."""
        return self._of_run

    def of_run(self, run: str) -> list[Source]:
        """Its sources, but for one that is dormant."""
        return [self[name] for name in self._of_run.of(run) if name in self]

    def catching_up(self, run: str) -> bool:
        """Is one of its sources not yet read to its end?"""
        return run in self._unread

    def unread(self) -> dict[str, float]:
        """Until when each was observed that an earlier daemon read, and this one has not yet."""
        own = (source for run in self._unread for source in self.of_run(run))
        return {source.name: source.observed_until for source in own if source.observed_until is not None}

    @property
    def ready(self) -> bool:
        """Was every source read to its end?"""
        return not self._unread
