"""The registry of followed files: reader, verified position, and whether the file was read to its end."""

from collections import ChainMap
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field, msgpack

from megatron_monitor.config import Config
from megatron_monitor.config import Watch as Runs
from megatron_monitor.core.logs import Log, Logs
from megatron_monitor.core.ordered import Ordered
from megatron_monitor.core.saved import SavedSource
from megatron_monitor.follow.content import ENOUGH_BYTES, Content
from megatron_monitor.follow.messages import Data, Fingerprint, Opened, Restarted
from megatron_monitor.follow.patterns import WatchedPath
from megatron_monitor.identity import StreamIdentity
from megatron_monitor.identity.naming import watch_of
from megatron_monitor.log_tail import LogTail, limit_of
from megatron_monitor.parsers.events import LogEvent
from megatron_monitor.parsers.reader import SourceReader
from megatron_monitor.reading import Rules, evaluated_reader
from megatron_monitor.run.experiments import Experiments
from megatron_monitor.run.state import RunState
from megatron_monitor.snapshot import MonitorCounts

if TYPE_CHECKING:
    from megatron_monitor.core.runs import Run

TOGETHER = 300.0
"""Seconds between the last lines of two files of one job."""


def watches(config: Config) -> list[WatchedPath]:
    """Return the patterns that the follower searches."""
    return [WatchedPath(pattern, tuple(watch.exclude)) for watch in config.runs for pattern in watch.paths]


def unmatched(config: Config, paths: Iterable[str]) -> list[str]:
    """Return the configured patterns that match none of these paths, except the spool's: senders may start later."""
    known = set(paths)
    patterns = [one for watch in config.runs for one in watch.paths if not config.is_pushed(one)]
    open_ones = [one for one in patterns if one not in known]
    return [one for one in open_ones if not any(watch_of(path, (Runs(paths=(one,)),)).watch for path in known)]


class Source(Struct, eq=False):
    """One followed file, its log, and how far it was read."""

    name: str
    path: str
    log: Log
    reader: SourceReader
    content: Content
    """What was read of its file."""
    mtime: float
    """Unix time of the last write, by the file system's clock."""
    counted: tuple[int, int]
    """(lines, matched lines) of the reader that the counters already contain."""
    member: StreamIdentity
    """Its run, with the reason (attribution.py)."""
    former: tuple[Fingerprint, ...] = ()
    """Files that were read and left (rotated): they are not read again under any name."""
    mount: str = ""
    """The mount, which has its own reader thread."""
    run: "Run | None" = None
    """The run of its present lines, if it has begun (`Log.point`)."""
    caught_up: bool = False
    """True: it was read to its end once, so new lines are live."""
    behind_bytes: int = 0
    read_at: float = 0.0
    """Instant of the last read."""
    resumed: bool = False
    """True: it continues at the position of an earlier process."""
    observed_until: float | None = None
    """Instant until which an earlier process observed it; None once the lines written since are read."""
    new: bool = False
    """True: it appeared after the first search of its directory."""
    failed: str = ""
    """Why an error in the monitor's own code: it is quarantined until other content begins."""
    owner: int | None = None
    """User id of the file."""
    put_out: bool = False
    """True: its run was dropped to make room, and is not read again."""
    has_steps: bool = False
    """True: it has lines of the training loop."""
    experiments: Experiments = field(default_factory=Experiments)
    """The experiment to which its present lines belong."""
    waiting: list[tuple[LogEvent, float]] = field(default_factory=list)
    """(event, instant) while its run is undecided."""
    older_state: RunState | None = None
    """State of attempts before all known ones of the run, until the file is read to its end. Remaining risk: if the
    daemon is killed before that, the lines read until then do not count.
    """
    ends: list[tuple[LogEvent, float]] = field(default_factory=list)
    """(event, instant) of its end, while it is read as history together with other streams of the run."""
    setup_events: list[tuple[LogEvent, float]] = field(default_factory=list)
    """(event, instant) of its set-up, until its steps show its run."""
    stepped_at: float = float("-inf")
    """Instant of its last live step."""
    ordered: Ordered | None = None
    """For a pushed stream: lines that wait for earlier ones."""
    tail: LogTail = field(default_factory=LogTail)
    """Its last lines, for the page."""

    def feed(self, message: Data, now: float = 0.0) -> Sequence[LogEvent]:
        """Read the next bytes. Return the events of the lines that they complete; none if lines wait to be sorted."""
        held = 0 if self.ordered is None else self.ordered.size + len(self.ordered.partial)
        gap = message.offset - self.reader.fed_bytes - held
        if gap > 0:
            self.reader.skip(gap)
        self.content = message.content or Content(offset=message.offset + len(message.data))
        self.behind_bytes, self.mtime = message.behind_bytes, message.mtime
        if self.ordered is None:
            return self.reader.feed(message.data)
        self.ordered.add(message.data, now)
        return ()

    @property
    def read_until(self) -> int:
        """Offset after the last complete line."""
        return self.reader.consumed_bytes + (self.ordered.size if self.ordered is not None else 0)

    def restart(self, rules: Rules, message: Restarted | None = None) -> None:
        """Begin with new content under the same path. Without a message the file was read to its end and deleted."""
        if message is not None:
            self.content, self.former = message.content or Content(), message.former(self.former)
        if self.ordered is not None:
            self.ordered.begin_anew()
        self.reader, self.counted, self.failed, self.tail = evaluated_reader(rules), (0, 0), "", LogTail()
        self.reader.skip(self.content.offset)

    def count_lines(self, counts: MonitorCounts) -> None:
        """Count the lines that its reader has read since the last call."""
        lines, matched = self.reader.lines, self.reader.matched_lines
        known_lines, known_matched = self.counted
        if lines != known_lines:
            self.counted = (lines, matched)
            counts.add("lines_total", "matched", by=matched - known_matched)
            counts.add("lines_total", "other", by=lines - known_lines - (matched - known_matched))

    def save(self, now: float) -> SavedSource:
        """Return the saved form: the reader's context, the verified position, and the waiting lines."""
        reader, waits = self.reader.save(), 0
        if self.ordered is not None:
            reader.ordered, waits = self.ordered.save(), self.ordered.size
        position = self.content.position(reader.offset + waits, self.former, self.mtime)
        observed = now if self.observed_until is None else self.observed_until
        experiments = self.experiments if self.experiments.reported or self.experiments.held else None
        return SavedSource(
            self.log.name, position, reader, observed, self.member, experiments, tuple(self.waiting),
            tuple(self.setup_events), self.put_out, self.new, self.mount, self.owner,
        )  # fmt: skip


class Sources(dict[str, Source]):
    """Sources by name. A log is catching up while one of its sources is not read to its end.

    An old file without a training is dormant: only its saved form is kept, until it or another file of its log grows.
    Then it continues as after a restart.
    """

    def __init__(self, rules: Rules, logs: Logs) -> None:
        super().__init__()
        self.dormant: dict[str, bytes] = {}
        """Name -> encoded SavedSource. There may be a hundred thousand."""
        self.dormant_logs: dict[str, str] = {}
        """Name of a log -> its dormant source, which is its only one."""
        self.tail_bytes = 0
        """Bytes of the last lines that each source keeps."""
        self._rules, self._logs = rules, logs
        self._unread: set[str] = set()

    def open(
        self, message: Opened, log: str, member: StreamIdentity, known: SavedSource | None,
        ordered: Ordered | None = None,
    ) -> Source:  # fmt: skip
        """Add a source of the named log that is followed from the message's offset.

        `known`: its saved form, or that of the file before under this path. `ordered`: given for a pushed stream.
        """
        reader, content = evaluated_reader(self._rules), message.content or Content()
        if known is not None and message.resumed:
            reader.restore(known.reader)
            if ordered is not None and known.reader.ordered is not None:
                ordered.restore(known.reader.ordered)
        elif message.offset:  # the bytes before were delivered under another name
            reader.skip(message.offset)
        counted = reader.lines, reader.matched_lines
        source = Source(
            message.source, message.path, self._logs.named(log), reader, content, message.mtime, counted, member,
            mount=message.mount, owner=message.owner, ordered=ordered, tail=LogTail(content.tail),
        )  # fmt: skip
        if known is not None:
            source.new, source.put_out, source.observed_until = known.new, known.put_out, known.saved_at
            source.former, source.resumed = known.position.former, message.resumed
            source.mtime = known.position.written if message.resumed else message.mtime
        self[source.name] = source
        self.tail_bytes = limit_of(len(self))
        self._unread.add(source.name)
        self._join(source)
        if known is not None:
            source.experiments = known.experiments or source.experiments
            source.log.note_experiment(source)
            if source.resumed:
                source.waiting, source.setup_events = list(known.waiting), list(known.setup_events)
            else:
                source.experiments.held.clear()
        return source

    def put_dormant(self, name: str, saved: SavedSource) -> bool:
        """Make a source dormant if its first bytes verify its position and its log has no other source."""
        position, log = saved.position, self._logs.get(saved.run)
        others = {*(log.sources if log is not None else ()), self.dormant_logs.get(saved.run, name)} - {name}
        if position.head_bytes < min(ENOUGH_BYTES, position.offset + 1) or others:
            return False
        self.dormant[name], self.dormant_logs[saved.run] = msgpack.encode(saved), name
        return True

    def awake(self, name: str) -> Source | None:
        """Return the source of that name. A dormant source continues."""
        if (kept := self.dormant.pop(name, None)) is not None:
            saved = msgpack.decode(kept, type=SavedSource)
            at = saved.position
            del self.dormant_logs[saved.run]
            found = Opened(
                name, name, Content(at.device, at.inode, at.start, proved=at), at.offset, at.written, True,
                owner=saved.owner, mount=saved.mount,
            )  # fmt: skip
            source = self.open(found, saved.run, saved.member, saved)
            self.finish(source)
        return self.get(name)

    def dormant_of(self, log: str) -> dict[str, SavedSource]:
        """Return the dormant source of the named log, by its name."""
        name = self.dormant_logs.get(log)
        return {} if name is None else {name: msgpack.decode(self.dormant[name], type=SavedSource)}

    def _join(self, source: Source) -> None:
        log = source.log
        if (dormant := self.dormant_logs.get(log.name)) is not None:
            self.awake(dormant)
        log.sources[source.name] = source
        source.run = log.runs.get(log.label_of(source))
        log.unread += not source.caught_up

    def drop(self, source: Source) -> None:
        """Remove a source that is no longer followed."""
        self.finish(source)
        del self[source.name]
        self.tail_bytes = limit_of(len(self))
        self._leave(source)

    def _leave(self, source: Source) -> None:
        log = source.log
        del log.sources[source.name]
        source.run = None
        log.unread -= not source.caught_up
        self._logs.leave(log)

    def move(self, source: Source, log: str) -> None:
        """Move a source to the named log."""
        self._leave(source)
        source.log = self._logs.named(log)
        self._join(source)

    def finish(self, source: Source) -> None:
        """Note that a source was read to its end or cannot be read: its log does not wait for it."""
        if not source.caught_up:
            source.caught_up, source.observed_until = True, None
            source.log.unread -= 1
            self._unread.discard(source.name)

    @property
    def names(self) -> Collection[str]:
        """All names, with those of dormant sources."""
        return ChainMap[str, Any](self, self.dormant)

    def unread(self) -> dict[str, float]:
        """Return, for sources not yet read to their end, the instant until which an earlier process observed them."""
        found = {name: self[name].observed_until for name in self._unread}
        return {name: at for name, at in found.items() if at is not None}

    @property
    def ready(self) -> bool:
        """True if every source was read to its end."""
        return not self._unread
