"""Readers: one per mount, each searches its mount in slices and looks at every file when it is due. Synchronous.

`MountReader.poll` is a generator, so a slow consumer delays the reading and no messages pile up. Nothing here starts a
thread.
"""

import contextlib
import heapq
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Literal

from megatron_monitor.follow.context import MountContext, OpenFiles, Registry
from megatron_monitor.follow.discovery import DiscoveredPath, Walk, WalkRequest, mount_that_finds, plan
from megatron_monitor.follow.followed_file import FollowedFile
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
from megatron_monitor.follow.mounts import Mount, Mounts
from megatron_monitor.follow.os_layer import OsLayer
from megatron_monitor.follow.patterns import WatchedPath
from megatron_monitor.follow.settings import OLD_SECONDS, UNOBSERVED_AFTER, FollowSettings
from megatron_monitor.system.clock import Clock

_log = logging.getLogger(__name__)

# Seconds:
_OLD_FILES_SLICE = 0.25  # for which old files are read before the others are looked at again
_MAX_DELAY = 0.5  # by which a look may be late; then the runs of the mount are judged no further
_CATCH_UP = 10.0  # after unobserved time, for which a file with more to read keeps its mount unobserved at most
_MIN_DISCOVERY_INTERVAL = 1.0  # between two walks if an unknown path has changed
_FORGET_GONE = 86_400.0  # after which a deleted file that a pattern found is forgotten: names with dates add up
_WALK_DIVISOR = 50.0  # a walk takes a fiftieth of the time at most
_MAX_UNKNOWN_PATHS = 4096
Mode = Literal["inotify", "poll"]


class MountReader:
    """Follows the files that its walks find. For one thread at a time; only `add_walks` may come from another."""

    def __init__(self, mount: Mount, shared: "Readers") -> None:
        self.mount = mount
        self.mode: Mode = "poll"
        self.sources: dict[SourceId, FollowedFile] = {}
        self.has_more = False  # the last pass left work that can continue at once: a walk, or more to read
        self.unopened = 0  # files that were found and not opened yet. Any thread may read it
        self._shared = shared
        self._settings = settings = shared.settings
        self._due: list[tuple[float, int, FollowedFile]] = []  # a heap; void if the file's `due_at` is another
        self._sequence = 0
        self._old: list[tuple[float, SourceId]] = []  # a heap of (minus time, source) of old files not read yet
        self._context = MountContext(
            shared.os_layer,
            settings,
            OpenFiles(shared.os_layer, settings.max_open_files),
            shared.registry,
            lambda device: shared.table.is_local(device, mount),
            mount.point,
        )
        self._walks: tuple[WalkRequest, ...] = ()
        self._walk: Iterator[DiscoveredPath | None] | None = None
        self._found_away: set[SourceId] = set()  # files that the walk found and that were away
        self._unknown_paths: set[str] = set()  # paths that changed and are not followed: each hastens one walk
        self._walk_due = float("-inf")
        self._walked_at = self._walk_seconds = 0.0
        self._active_at: float | None = None  # when it last did something, or was due to
        self._pass_began = 0.0
        self._unobserved_since: float | None = None
        self._observed_again_at = 0.0
        self._overdue_since = float("inf")  # when the file that is looked at next was due

    def add_walks(self, walks: Iterable[WalkRequest]) -> None:
        """Add to what the next walks search for."""
        self._walks = tuple(dict.fromkeys((*self._walks, *walks)))

    def follow(self, path: str, *, literal: bool = False) -> FollowedFile:
        """Follow this path from now on."""
        key = source_id(path)
        source = self.sources.get(key)
        if source is None:
            resume = self._shared.resume.pop(key, None)
            source = self.sources[key] = FollowedFile(path, key, self._context, literal=literal, resume=resume)
            self._schedule(source, self._pass_began)
            self.unopened += 1
        source.literal = source.literal or literal
        return source

    def poll(self, clock: Clock, changed: Iterable[str] = (), *, all_files: bool = False) -> Iterator[Message]:
        """Run one pass: a slice of the walk, then each file that is due or whose path changed."""
        yield from self._check_lateness(clock)
        self._pass_began = began = clock.monotonic()
        for path in changed:
            source = self.sources.get(source_id(path))
            if source is not None and source.due_at > began:
                self._schedule(source, began)
            elif source is None and path not in self._unknown_paths:
                self._unknown_paths.add(path)
                self._walk_due = min(self._walk_due, self._walked_at + self._min_walk_interval)
        if all_files:
            self._walk_due = began
            self._schedule_all(began)
        yield from self._discover(clock)
        yield from self._check_lateness(clock)
        self._context.next_pass(len(self.sources))
        self.has_more = self._walk is not None
        for source in self._in_order(self._take_due(clock.monotonic()), clock):
            self._overdue_since = source.due_at
            yield from self._poll_file(source, clock)
        self._overdue_since = float("inf")
        until = clock.monotonic() + _OLD_FILES_SLICE
        while self._old and self._walk is None and clock.monotonic() < until:
            old = self.sources.get(heapq.heappop(self._old)[1])
            if old is not None and old.due_at == float("inf") and not old.failed:  # else it was scheduled since
                yield from self._poll_file(old, clock)
        self.has_more = self.has_more or bool(self._old)

    def _schedule(self, source: FollowedFile, due_at: float) -> None:
        """Files that are due at the same time are looked at in the order in which they were scheduled."""
        source.due_at = due_at
        if due_at < float("inf"):
            self._sequence += 1
            heapq.heappush(self._due, (due_at, self._sequence, source))

    def _take_due(self, now: float) -> list[FollowedFile]:
        """Return the due files, longest due first. Files that are scheduled meanwhile wait for the next call."""
        taken = []
        while self._due and self._due[0][0] <= now:
            at, _, source = heapq.heappop(self._due)
            if source.due_at == at:
                taken.append(source)
        return taken

    def _schedule_all(self, now: float) -> None:
        self._due.clear()
        for source in self.sources.values():
            if source.due_at < float("inf"):
                self._schedule(source, now)

    def _in_order(self, due: Sequence[FollowedFile], clock: Clock) -> Sequence[FollowedFile]:
        """Return the files to look at now. Of new ones the one written first is the first: a rotated log comes before
        the log that follows it, and the rest of a file that an earlier process has read comes before both. Old files
        are put behind all others, the newest of them first.
        """
        known, new = list[FollowedFile](), list[tuple[float, FollowedFile]]()
        for source in due:
            if source.looked_at:
                known.append(source)
                continue
            written = clock.wall()
            with contextlib.suppress(OSError):
                written = self._context.stat(source.path).st_mtime
            if written >= clock.wall() - OLD_SECONDS:
                read = source.resume.written if isinstance(source.resume, Position) else written
                new.append((min(read, written), source))
            else:
                source.due_at = float("inf")
                heapq.heappush(self._old, (-written, source.source))
        return [*known, *(source for _, source in sorted(new, key=itemgetter(0)))]

    def _poll_file(self, source: FollowedFile, clock: Clock) -> Iterator[Message]:
        """Look at one file. A bug that it triggers costs this file alone: it is quarantined."""
        self.unopened -= not source.looked_at
        try:
            if source.failed:
                source.due_at = float("inf")
            else:
                source.poll(clock.monotonic(), clock.wall())
        except Exception as error:  # noqa: BLE001 - the boundary of a file
            _log.exception("source=%r quarantined: an error in the monitor's own code", source.path)
            source.leave()
            source.failed, source.due_at = True, float("inf")
            reason = f"an error in the monitor's own code ({type(error).__name__})"
            self._context.pending.append(Unreadable(source.source, None, reason, clock.wall()))
        yield from self._check_lateness(clock)
        messages, self._context.pending = self._context.pending, []
        for message in messages:
            yield message
            self._active_at = clock.monotonic()  # the consumer's time does not count
        self.has_more = self.has_more or source.has_more
        self._schedule(source, source.due_at)

    def _check_lateness(self, clock: Clock) -> Iterable[Message]:
        """Report time without a look. After it every file is looked at before anything is judged."""
        now, active_at = clock.monotonic(), self._active_at
        self._active_at = now
        if active_at is None or now - active_at <= UNOBSERVED_AFTER:
            return ()
        self._observed_again_at = now
        if self._unobserved_since is None:
            self._unobserved_since = active_at
        self._schedule_all(now)
        return (UnobservedTime(self.mount.point, now - active_at, clock.wall()),)

    def end_pass(self, now: float, pause: float) -> None:
        """End a pass whose messages were all taken. The next one begins after `pause` seconds."""
        catches_up = self.has_more and now - self._observed_again_at < _CATCH_UP
        if self._pass_began > self._observed_again_at and not catches_up:
            self._unobserved_since = None
        self._active_at = now + pause

    def unobserved_seconds(self, now: float) -> float:
        """Return for how long the mount has been unobserved; 0 if it is observed. Any thread may call."""
        since, active_at = self._unobserved_since, self._active_at
        if since is not None:
            return now - since
        return now - active_at if active_at is not None and now - active_at > _MAX_DELAY else 0.0

    def overdue_seconds(self, now: float) -> float:
        """Return for how long a due file has waited for its look. Any thread may call."""
        return max(0.0, now - self._overdue_since)

    def seconds_until_due(self, now: float) -> float:
        """Return the seconds until a file or a walk is due."""
        if self._walk is not None:
            return 0.0
        while self._due and self._due[0][0] != self._due[0][2].due_at:
            heapq.heappop(self._due)
        return max(0.0, min(self._due[0][0] if self._due else float("inf"), self._walk_due) - now)

    def directories(self, now: float) -> dict[str, float]:
        """Return the directories to observe, and when a file in each last changed; `now` if new logs may appear."""
        found = {os.path.dirname(walk.root) if walk.literal else walk.root: now for walk in self._walks}
        for source in self.sources.values():
            at = source.changed_at
            if at > found.get(source.directory, float("-inf")) and not source.is_away:
                found[source.directory] = at
        return found

    def close(self) -> None:
        """Close every file."""
        self._context.files.drop_all()

    @property
    def _min_walk_interval(self) -> float:
        """Seconds between two walks at least: large trees are walked less often."""
        return max(_MIN_DISCOVERY_INTERVAL, _WALK_DIVISOR * self._walk_seconds)

    def _discover(self, clock: Clock) -> Iterator[Message]:
        """Run a slice of the walk that is under way or due."""
        began = clock.monotonic()
        if self._walk is None:
            if began < self._walk_due:
                return
            context, is_followed = self._context, lambda path: source_id(path) in self.sources
            points = self._shared.points
            self._walk = Walk(
                context.os_layer, self._walks, points, context.stat, context.count_error, is_followed
            ).run()
            self._found_away = set()
            self._walk_due, self._walk_seconds = float("inf"), 0.0
        try:
            for _ in range(self._settings.entries_per_slice):
                found = next(self._walk)
                if found is not None:
                    source = self.follow(found.path, literal=found.literal)
                    if source.is_away:
                        self._found_away.add(source.source)
            self._walk_seconds += clock.monotonic() - began
            return
        except StopIteration:
            pass
        except Exception:  # noqa: BLE001 - the boundary of the search
            _log.exception("mount=%r: the search for logs failed; it starts again", self.mount.point)
        self._walk_seconds += clock.monotonic() - began
        yield self._end_walk(clock)

    def _end_walk(self, clock: Clock) -> Message:
        now, context = clock.monotonic(), self._context
        self._walk, self._walked_at = None, now
        requested = self._walk_due < float("inf")  # meanwhile: a path may be newer than the list of its directory
        if len(self._unknown_paths) > _MAX_UNKNOWN_PATHS:
            self._unknown_paths.clear()
        self._walk_due = now + max(self._min_walk_interval, 0.0 if requested else self._settings.idle_interval)
        stats, errors, context.stats, context.errors = context.stats, dict(context.errors), 0, Counter()
        return Scanned(self.mount.point, clock.wall(), stats=stats, errors=errors, forgotten=self._forget(now))

    def _forget(self, now: float) -> tuple[SourceId, ...]:
        """Stop following paths that only a pattern found and that have been gone for a day."""
        forgotten = []
        for key, source in self.sources.items():
            long_ago = source.missing_since is not None and now - source.missing_since > _FORGET_GONE
            if long_ago and not source.literal and key not in self._found_away:
                forgotten.append(key)
        for key in forgotten:
            source = self.sources.pop(key)
            source.leave()
            source.due_at = float("inf")
        return tuple(forgotten)


class Readers:
    """The readers by mount point. The mount on a point may change (autofs); its reader stays."""

    def __init__(self, resume: Mapping[SourceId, Position], settings: FollowSettings, os_layer: OsLayer) -> None:
        self.settings = settings
        self.os_layer = os_layer
        self.registry = Registry(resume)
        self.table = Mounts([])
        self.points: frozenset[str] = frozenset()  # every mount point ever seen; a walk from above does not enter it
        self.resume = dict(resume)  # positions of sources that are not followed yet
        self._readers: dict[str, MountReader] = {}

    def sync_readers(
        self, patterns: Sequence[WatchedPath], table: Mounts, resolve: Callable[[str], str]
    ) -> list[MountReader]:
        """Return the readers that this mount table adds; the existing ones get the walks that are new."""
        self.table = table
        self.points |= table.points
        walks = plan(patterns, table, resolve)
        new = []
        for mount, some in walks.items():
            if mount.point not in self._readers:
                reader = self._readers[mount.point] = MountReader(mount, self)
                new.append(reader)
                for source in tuple(self.resume):
                    if mount_that_finds(walks, source) == mount:
                        self.registry.reserve(self.resume[source], source)
                        if is_path(source):  # else the walk finds it
                            reader.follow(source)
            self._readers[mount.point].add_walks(some)
        self.resume = dict(self.resume)  # an emptied dict keeps its memory: some MB after 100,000 files
        return new
