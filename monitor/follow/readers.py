"""All files of one mount, synchronous: discovery in slices, every due file in turn, statistics per walk.

`poll` is a generator so that a slow consumer holds back the reading, not the memory. Nothing here starts a thread or
watches anything: `read_once` reads everything to its end in the caller's thread.
"""

import errno
import heapq
import logging
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Literal

from megatron_monitor.follow.context import Context, OpenFiles, Registry
from megatron_monitor.follow.discovery import DiscoveredPath, Step, Walk, WalkRequest, owner, plan
from megatron_monitor.follow.messages import (
    Message,
    Position,
    Scanned,
    SourceId,
    UnobservedTime,
    Unreadable,
    is_path,
    source_id,
)
from megatron_monitor.follow.mounts import Mount, Mounts, read_mounts
from megatron_monitor.follow.os_layer import OsLayer
from megatron_monitor.follow.patterns import WatchedPath
from megatron_monitor.follow.settings import LAPSE, OLD_SECONDS, FollowSettings
from megatron_monitor.follow.source import FollowedFile
from megatron_monitor.system.clock import Clock, SystemClock

_log = logging.getLogger(__name__)

_OLD_SLICE = 0.25  # seconds for which old files are read before the others are looked at again
_LATE = 0.5  # seconds without a look where one was due, after which the runs of the mount are judged no further
_CATCH_UP = 10.0  # seconds after a lapse for which a file with more to read keeps its mount unheard, and no longer
_DISCOVERY_SOONEST = 1.0  # seconds between two walks when a path that is not known has changed
_WALK_SHARE = 50.0  # a walk takes a fiftieth of the time at most
_FORGET_GONE = 86_400.0  # seconds after which a deleted file that a pattern found is forgotten: dated names add up
_MOST_STRANGERS = 4096
Mode = Literal["inotify", "poll"]


class MountReader:
    """Follows what its jobs find. One thread at a time; only `add_jobs` may come from another."""

    def __init__(self, mount: Mount, shared: "Readers") -> None:
        self.mount = mount
        self.mode: Mode = "poll"
        self.sources: dict[SourceId, FollowedFile] = {}
        self.hurried = False
        """The last pass left something to be done at once: a walk, or more to read."""
        self.waiting = 0
        """Files that have not been opened yet. Any thread may ask."""
        self._shared = shared
        self._settings = settings = shared.settings
        self._due: list[tuple[float, int, FollowedFile]] = []  # a heap; void once the source is due at another time
        self._places = 0
        self._old: list[tuple[float, SourceId]] = []  # files that wait: (their age, name), a heap
        self._context = Context(
            shared.os_layer,
            settings,
            OpenFiles(shared.os_layer, settings.max_open_files),
            shared.registry,
            lambda device: shared.table.is_local(device, mount),
            mount.point,
        )
        self._jobs: tuple[WalkRequest, ...] = ()
        self._walk: Walk | None = None
        self._steps: Iterator[Step] = iter(())
        self._found: set[SourceId] = set()
        self._strangers: set[str] = set()  # paths that changed and are not followed: each hastens one walk
        self._walk_due = float("-inf")
        self._walked_at = self._walk_seconds = 0.0
        self._looked: float | None = None  # when it last did something, or meant to
        self._began = 0.0
        self._lapse: tuple[float, float] | None = None  # (since when nobody listened, when that was over)
        self._awaited = float("inf")  # since when the file that is looked at next has been due

    def add_jobs(self, jobs: Iterable[WalkRequest]) -> None:
        """More to look for, from the next walk on."""
        self._jobs = tuple(dict.fromkeys((*self._jobs, *jobs)))

    def follow(self, path: str, *, literal: bool = False) -> FollowedFile:
        """Look at this path from now on."""
        key = source_id(path)
        source = self.sources.get(key)
        if source is None:
            resume = self._shared.resume.pop(key, None)
            source = self.sources[key] = FollowedFile(path, key, self._context, literal=literal, resume=resume)
            self._put(source, self._began)
            self.waiting += 1
        source.literal = source.literal or literal
        return source

    def poll(self, clock: Clock, changed: Iterable[str] = (), *, all_files: bool = False) -> Iterator[Message]:
        """One pass: a slice of the walk, then each file that is due, or whose path was seen to change."""
        yield from self._unobserved(clock)
        self._began = begun = clock.monotonic()
        for path in changed:
            source = self.sources.get(source_id(path))
            if source is not None and source.due_at > begun:
                self._put(source, begun)
            elif source is None and path not in self._strangers:
                self._strangers.add(path)
                self._walk_due = min(self._walk_due, self._walked_at + self._least_interval)
        if all_files:
            self._walk_due = begun
            self._hasten_all(begun)
        yield from self._discover(clock)
        yield from self._unobserved(clock)
        self._context.next_pass(len(self.sources))
        self.hurried = self._walk is not None
        for source in self._take_due(clock.monotonic()):
            self._awaited = source.due_at
            if source.met or not self._put_off(source, clock):
                yield from self._turn(source, clock)
        self._awaited = float("inf")
        until = clock.monotonic() + _OLD_SLICE
        while self._old and self._walk is None and clock.monotonic() < until:
            waited = self.sources.get(heapq.heappop(self._old)[1])
            if waited is not None and waited.due_at == float("inf") and not waited.failed:  # else it was hastened
                yield from self._turn(waited, clock)
        self.hurried = self.hurried or bool(self._old)

    def _put(self, source: FollowedFile, due_at: float) -> None:
        """Those due at the same time come in the order in which they were put."""
        source.due_at = due_at
        if due_at < float("inf"):
            self._places += 1
            heapq.heappush(self._due, (due_at, self._places, source))

    def _take_due(self, now: float) -> list[FollowedFile]:
        """The longest due first. What is put meanwhile has to wait for the next call."""
        taken = []
        while self._due and self._due[0][0] <= now:
            at, _, source = heapq.heappop(self._due)
            if source.due_at == at:
                taken.append(source)
        return taken

    def _hasten_all(self, now: float) -> None:
        self._due.clear()
        for source in self.sources.values():
            if source.due_at < float("inf"):
                self._put(source, now)

    def _turn(self, source: FollowedFile, clock: Clock) -> Iterator[Message]:
        self.waiting -= not source.looked_at
        self._poll_source(source, clock)
        yield from self._unobserved(clock)
        for message in self._context.take_pending():
            yield message
            self._looked = clock.monotonic()  # what the consumer took is no lapse
        self.hurried = self.hurried or source.more
        self._put(source, source.due_at)

    def _put_off(self, source: FollowedFile, clock: Clock) -> bool:
        """Those that moved last are read first: is this one old, as far as can be seen?"""
        source.met = True
        try:
            age = clock.wall() - self._context.stat(source.path).st_mtime
        except OSError:
            return False
        if age <= OLD_SECONDS:
            return False
        source.due_at = float("inf")
        heapq.heappush(self._old, (age, source.source))
        return True

    def _unobserved(self, clock: Clock) -> Iterable[Message]:
        """Between two calls: has nobody listened since the last one? Then every file is to be looked at first."""
        now, looked = clock.monotonic(), self._looked
        self._looked = now
        if looked is None or now - looked <= LAPSE:
            return ()
        self._lapse = self._lapse[0] if self._lapse is not None else looked, now
        self._hasten_all(now)
        return (UnobservedTime(self.mount.point, now - looked, clock.wall()),)

    def passed(self, now: float, pause: float) -> None:
        """A pass has ended, all that it gave was taken, and the next one is to begin after `pause` seconds."""
        if self._lapse is not None:
            over = self._lapse[1]
            more = self.hurried and now - over < _CATCH_UP
            if self._began > over and not more:
                self._lapse = None
        self._looked = now + pause

    def unobserved_seconds(self, now: float) -> float:
        """For how long nobody has listened; 0 while somebody does. From any thread."""
        lapse, looked = self._lapse, self._looked
        if lapse is not None:
            return now - lapse[0]
        return now - looked if looked is not None and now - looked > _LATE else 0.0

    def late_seconds(self, now: float) -> float:
        """For how long a file has waited for the look that it was to have: what was written to it since is not known.
        From any thread.
        """
        return max(0.0, now - self._awaited)

    def _poll_source(self, source: FollowedFile, clock: Clock) -> None:
        """Look at one file. A bug that it wakes costs this file alone: it is looked at no more."""
        if source.failed:
            source.due_at = float("inf")
            return
        try:
            source.poll(clock.monotonic(), clock.wall())
        except Exception as error:  # noqa: BLE001 - the boundary of a file
            _log.exception("source=%r put aside: the monitor's own code failed at it", source.path)
            source.leave()
            source.failed, source.due_at = True, float("inf")
            reason = f"the monitor's own code failed at it ({type(error).__name__})"
            self._context.emit(Unreadable(source.source, None, reason, clock.wall()))

    def wait(self, now: float) -> float:
        """Seconds until something is due."""
        if self._walk is not None:
            return 0.0
        while self._due and self._due[0][0] != self._due[0][2].due_at:
            heapq.heappop(self._due)
        return max(0.0, min(self._due[0][0] if self._due else float("inf"), self._walk_due) - now)

    def read_once(self, clock: Clock) -> Iterator[Message]:
        """Everything that is there now, every file in turn, to the end that each has when it is reached."""
        while self._walk_due <= clock.monotonic() or self._walk is not None:
            yield from self._discover(clock)
        left = list(self.sources.values())
        while left:
            for source in left:
                source.poll(clock.monotonic(), clock.wall())
                yield from self._context.take_pending()
            left = [source for source in left if source.more]
        for source in self.sources.values():
            if source.literal and source.missing_since is not None and not source.started:
                yield Unreadable(source.source, errno.ENOENT, os.strerror(errno.ENOENT), clock.wall())
            elif source.literal and source.unsupported not in ("", "directory", "duplicate"):
                yield Unreadable(source.source, None, f"is a {source.unsupported}", clock.wall())

    def directories(self, now: float) -> dict[str, float]:
        """Where a change would be seen first, and when a file changed there last; now, where new logs are awaited."""
        found = {os.path.dirname(job.root) if job.literal else job.root: now for job in self._jobs}
        for source in self.sources.values():
            at = source.changed_at
            if at > found.get(source.directory, float("-inf")) and not source.away:
                found[source.directory] = at
        return found

    def close(self) -> None:
        """Hold no file open."""
        self._context.files.drop_all()

    @property
    def _least_interval(self) -> float:
        """Seconds between two walks: those over a large tree come more rarely."""
        return max(_DISCOVERY_SOONEST, _WALK_SHARE * self._walk_seconds)

    def _discover(self, clock: Clock) -> Iterator[Message]:
        """A slice of the walk that is under way, or due."""
        began = clock.monotonic()
        if self._walk is None:
            if began < self._walk_due:
                return
            known = lambda path: source_id(path) in self.sources  # noqa: E731
            self._walk = Walk(self._context.os_layer, self._jobs, self._shared.points, known)
            self._steps = self._walk.run()
            self._found = set()
            self._walk_due, self._walk_seconds = float("inf"), 0.0
        try:
            for _ in range(self._settings.entries_per_slice):
                found = next(self._steps)
                if found is not None:
                    source = self.follow(found.path, literal=found.literal)
                    if source.away:
                        self._found.add(source.source)
            self._walk_seconds += clock.monotonic() - began
            return
        except StopIteration:
            pass
        except Exception:  # noqa: BLE001 - the boundary of the search
            _log.exception("mount=%r: the search for logs failed; it begins anew", self.mount.point)
        self._walk_seconds += clock.monotonic() - began
        yield self._scanned(self._walk, clock)

    def _scanned(self, walk: Walk, clock: Clock) -> Message:
        now = clock.monotonic()
        self._walk, self._walked_at = None, now
        asked = self._walk_due < float("inf")  # for what may have come after its directory was listed
        if len(self._strangers) > _MOST_STRANGERS:
            self._strangers.clear()
        self._walk_due = now + max(self._least_interval, 0.0 if asked else self._settings.discovery_interval)
        for error in walk.errors:
            self._context.count_error(error)
        forgotten = self._forget(now)
        scanned = Scanned(
            self.mount.point,
            clock.wall(),
            stats=self._context.stats + walk.stats,
            errors=dict(self._context.errors),
            forgotten=forgotten,
        )
        self._context.stats = 0
        self._context.errors.clear()
        return scanned

    def _forget(self, now: float) -> tuple[SourceId, ...]:
        """Names that only a pattern found and that have been gone for long."""
        forgotten = []
        for key, source in self.sources.items():
            gone = source.gone_since if source.gone_since is not None else source.missing_since
            long_ago = gone is not None and now - gone > _FORGET_GONE
            if long_ago and not source.literal and key not in self._found:
                forgotten.append(key)
        for key in forgotten:
            source = self.sources.pop(key)
            source.leave()
            source.due_at = float("inf")
        return tuple(forgotten)


class Readers:
    """The readers of all mounts, by mount point: what is mounted there may change (autofs), the reader stays."""

    def __init__(self, resume: Mapping[SourceId, Position], settings: FollowSettings, os_layer: OsLayer) -> None:
        self.settings = settings
        self.os_layer = os_layer
        self.registry = Registry(resume)
        self.table = Mounts([])
        """The mounts now."""
        self.points: frozenset[str] = frozenset()
        """Every mount point ever seen: what lies below is not for the reader above."""
        self.resume = dict(resume)
        """Positions of sources that are not followed yet."""
        self._readers: dict[str, MountReader] = {}

    def sync_readers(
        self, patterns: Sequence[WatchedPath], table: Mounts, resolve: Callable[[str], str]
    ) -> list[MountReader]:
        """The readers that are new with this mount table; those there are get what they have to look for besides."""
        self.table = table
        self.points |= table.points()
        jobs = plan(patterns, table, resolve)
        new = []
        for mount, some in jobs.items():
            if mount.point not in self._readers:
                reader = self._readers[mount.point] = MountReader(mount, self)
                new.append(reader)
                for source in tuple(self.resume):
                    if owner(jobs, source) == mount:
                        self.registry.reserve(self.resume[source], source)
                        if is_path(source):  # else the search finds it
                            reader.follow(source)
            self._readers[mount.point].add_jobs(some)
        self.resume = dict(self.resume)  # a table that was emptied keeps its memory, some MB of 100,000
        return new

    def hold(self, found: Iterable[DiscoveredPath], table: Mounts, resolve: Callable[[str], str]) -> list[MountReader]:
        """The readers of these files alone, which search for nothing."""
        self.table = table
        for path, literal in found:
            mount = table.of(resolve(path))
            if mount.point not in self._readers:
                self._readers[mount.point] = MountReader(mount, self)
            self._readers[mount.point].follow(path, literal=literal)
        return list(self._readers.values())


def read_once(
    patterns: Sequence[WatchedPath],
    resume: Mapping[SourceId, Position] | None = None,
    *,
    settings: FollowSettings | None = None,
    os_layer: OsLayer | None = None,
    clock: Clock | None = None,
    mounts: Callable[[], Mounts] = read_mounts,
    found: Iterable[DiscoveredPath] | None = None,
) -> Generator[Message, None, None]:
    """Every file to its end, once, in the caller's thread, in turns of `read_bytes`. Nothing is waited for. Where files
    were `found` before, these are read, and nothing is searched for.

    A path that was given literally and cannot be read comes as Unreadable, an absent one too (ENOENT).
    """
    system = os_layer or OsLayer()
    readers = Readers(resume or {}, (settings or FollowSettings()).for_one_reading(), system)
    table = mounts()
    if found is None:
        held = readers.sync_readers(patterns, table, system.realpath)
    else:
        held = readers.hold(found, table, system.realpath)
    for reader in held:
        try:
            yield from reader.read_once(clock or SystemClock())
        finally:
            reader.close()
