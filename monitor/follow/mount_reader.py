"""All files of one mount, synchronous: discovery in slices, every due file in turn, statistics per walk.

`poll` is a generator so that a slow consumer holds back the reading, not the memory. Nothing here starts a thread.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

from monitor.clock import Clock
from monitor.follow.agenda import Agenda
from monitor.follow.context import Context
from monitor.follow.descriptors import Descriptors
from monitor.follow.discovery import Found, Job, Step, Walk, may_find
from monitor.follow.listings import Listings
from monitor.follow.messages import Message, Position, Scanned, SourceId, Unreadable, source_id
from monitor.follow.mounts import Mount, Mounts
from monitor.follow.os_layer import OsLayer
from monitor.follow.registry import Registry
from monitor.follow.settings import FollowSettings
from monitor.follow.source import Source

_MOST_STRANGERS = 4096  # names remembered: asking the patterns again takes some 20 us
Mode = Literal["inotify", "poll"]


class MountReader:
    """Follows what its jobs find. One thread at a time; only `add_jobs` may come from another."""

    def __init__(
        self,
        mount: Mount,
        jobs: Iterable[Job],
        *,
        settings: FollowSettings,
        os_layer: OsLayer,
        registry: Registry,
        resume: Mapping[SourceId, Position],
        table: Callable[[], Mounts],
        points: Callable[[], frozenset[str]],
    ) -> None:
        """`table` gives the mounts now, `points` every mount point ever seen: what lies below is not this reader's."""
        self.mount = mount
        self.mode: Mode = "poll"
        self.note = ""
        """Why `mode` is not what the mount allows."""
        self.sources: dict[SourceId, Source] = {}
        self.hurried = False
        """The last pass left something to be done at once: a walk, or more to read."""
        self.context = Context(
            os_layer,
            settings,
            Descriptors(os_layer, settings.max_open_files),
            registry,
            lambda device: table().is_local(device, mount),
        )
        self._settings = settings
        self._points = points
        self._resume = dict(resume)
        self._jobs: tuple[Job, ...] = tuple(jobs)
        self._strangers: set[str] = set()  # paths that no walk would find
        self._agenda = Agenda()
        self._listings = Listings(settings.settle_seconds, settings.relist_interval) if mount.local else None
        self._walk: Walk | None = None
        self._steps: Iterator[Step] = iter(())
        self._found: set[SourceId] = set()
        self._walk_due = self._walked_at = float("-inf")
        self._unsupported: Counter[str] = Counter()
        self._passes = 0
        self._seconds = 0.0

    def add_jobs(self, jobs: Iterable[Job]) -> None:
        """More to look for, from the next walk on."""
        new = [job for job in jobs if job not in self._jobs]
        if new:
            self._jobs = (*self._jobs, *new)
            self._strangers.clear()

    def follow(self, path: str, *, literal: bool = False) -> None:
        """Look at this path from now on."""
        key = source_id(path)
        if key not in self.sources:
            resume = self._resume.pop(key, None)
            source = self.sources[key] = Source(path, self.context, literal=literal, resume=resume)
            self._agenda.put(source)
        elif literal:
            self.sources[key].literal = True

    def poll(self, clock: Clock, hints: Iterable[str] = (), *, all_files: bool = False) -> Iterator[Message]:
        """One pass: a slice of the walk, then each file that is due or hinted at (a path that was seen to change)."""
        begun = clock.monotonic()
        self._hint(hints, begun, all_files=all_files)
        yield from self._discover(clock)
        self.context.spread_seconds = len(self.sources) / self._settings.stats_per_second
        self.hurried = self._walk is not None
        for source in self._agenda.take(clock.monotonic()):
            now = clock.monotonic()
            told = source.glance(now, at := clock.wall())
            if told is None:
                yield from source.poll(now, at)
                self.hurried = self.hurried or source.more
            elif told:
                yield told[0]
            self._agenda.put(source)
        self._passes += 1
        self._seconds += clock.monotonic() - begun

    def wait(self, now: float) -> float:
        """Seconds until something is due."""
        if self._walk is not None:
            return 0.0
        return max(0.0, min(self._agenda.next_at(), self._walk_due) - now)

    def read_once(self, clock: Clock) -> Iterator[Message]:
        """Everything that is there now, every file in turn, to the end that each has when it is reached."""
        while self._walk_due <= clock.monotonic() or self._walk is not None:
            yield from self._discover(clock)
        left = list(self.sources.values())
        while left:
            for source in left:
                yield from source.poll(clock.monotonic(), clock.wall())
            left = [source for source in left if source.more]
        for source in self.sources.values():
            if source.literal and source.missing_since is not None and not source.started:
                yield Unreadable(source.source, errno.ENOENT, os.strerror(errno.ENOENT), clock.wall())
            elif source.literal and source.unsupported not in ("", "directory", "duplicate"):
                yield Unreadable(source.source, None, f"is a {source.unsupported}", clock.wall())

    def directories(self) -> set[str]:
        """Where a change would be seen first: for the waker."""
        found = {source.directory for source in self.sources.values() if source.gone_since is None}
        found.update(job.root if job.states else os.path.dirname(job.root) for job in self._jobs)
        return found

    def close(self) -> None:
        """Give every descriptor back."""
        self.context.descriptors.close_all()

    def _hint(self, hints: Iterable[str], now: float, *, all_files: bool) -> None:
        for path in hints:
            source = self.sources.get(source_id(path))
            if source is not None:
                self._agenda.hasten(source, now)
            elif self._may_be_new(path):
                self._walk_due = min(self._walk_due, self._walked_at + self._settings.discovery_soonest)
        if all_files:
            self._walk_due = now
            self._agenda.hasten_all(self.sources.values(), now)

    def _may_be_new(self, path: str) -> bool:
        """Not so of what lies beside the logs and is written as often as they are."""
        if path in self._strangers:
            return False
        if may_find(self._jobs, path):
            return True
        if len(self._strangers) >= _MOST_STRANGERS:
            self._strangers.clear()
        self._strangers.add(path)
        return False

    def _discover(self, clock: Clock) -> Iterator[Message]:
        now = clock.monotonic()
        if self._walk is None:
            if now < self._walk_due:
                return
            known = self.sources
            self._walk = Walk(
                self.context.os_layer, self._jobs, self._points(), lambda path: source_id(path) in known,
                self._listings, clock,
            )  # fmt: skip
            self._steps = self._walk.run()
            self._found = set()
            self._walk_due = float("inf")
        for _ in range(self._settings.entries_per_slice):
            try:
                found = next(self._steps)
            except StopIteration:
                yield self._walked(self._walk, clock)
                return
            if found is not None:
                self._take(found)

    def _take(self, found: Found) -> None:
        key = source_id(found.path)
        self._found.add(key)
        self.follow(found.path, literal=found.literal)

    def _walked(self, walk: Walk, clock: Clock) -> Message:
        now = clock.monotonic()
        self._walk, self._walked_at = None, now
        hinted = self._walk_due < float("inf")  # at what may have come after its directory was listed
        self._walk_due = now + (self._settings.discovery_soonest if hinted else self._settings.discovery_interval)
        for error in walk.errors:
            self.context.count_error(error)
        forgotten = self._forget(now)
        sources: Sequence[Source] = list(self.sources.values())
        kinds = Counter(source.unsupported for source in sources if source.unsupported) + walk.unsupported
        duplicates = kinds.pop("duplicate", 0)
        if kinds.get("directory"):  # a directory that was given is not a file gone wrong
            kinds["directory"] -= sum(source.literal and source.unsupported == "directory" for source in sources)
        told = Scanned(
            self.mount.point,
            self.mount.file_system,
            self.mode,
            clock.wall(),
            files=sum(source.followed for source in sources),
            missing=sum(source.missing_since is not None for source in sources),
            unreadable=sum(source.unreadable for source in sources),
            open_files=len(self.context.descriptors),
            entries=walk.entries,
            stats=self.context.stats + walk.stats,
            passes=self._passes,
            seconds=self._seconds,
            duplicates=duplicates,
            unsupported={kind: count for kind, count in sorted(kinds.items()) if count},
            errors=dict(self.context.errors),
            forgotten=forgotten,
            note=self.note,
        )
        self.context.stats = self._passes = 0
        self._seconds = 0.0
        self.context.errors.clear()
        return told

    def _forget(self, now: float) -> tuple[SourceId, ...]:
        """Names that only a pattern found and that have been gone for long."""
        forgotten = []
        for key, source in list(self.sources.items()):
            gone = source.gone_since if source.gone_since is not None else source.missing_since
            long_ago = gone is not None and now - gone > self._settings.forget_gone
            if long_ago and not source.literal and key not in self._found:
                source.leave()
                source.due_at = float("inf")
                del self.sources[key]
                forgotten.append(key)
        return tuple(forgotten)
