"""The readers of all mounts, and one reading to the end with them: nothing here starts a thread or watches anything."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence

from monitor.clock import Clock, SystemClock
from monitor.follow.discovery import Job
from monitor.follow.messages import Message, Position, SourceId
from monitor.follow.mount_reader import MountReader
from monitor.follow.mounts import Mount, Mounts, read_mounts
from monitor.follow.os_layer import OsLayer
from monitor.follow.patterns import Watch
from monitor.follow.plan import owner, plan
from monitor.follow.registry import Registry
from monitor.follow.settings import FollowSettings


class Crew:
    """The readers, by mount point: what is mounted there may change (autofs), the reader stays."""

    def __init__(self, resume: Mapping[SourceId, Position], settings: FollowSettings, os_layer: OsLayer) -> None:
        self._resume = dict(resume)
        self._settings = settings
        self._os = os_layer
        self._registry = Registry(former for position in resume.values() for former in position.former)
        self._readers: dict[str, MountReader] = {}
        self._table = Mounts([])
        self._points: frozenset[str] = frozenset()

    def muster(self, patterns: Sequence[Watch], table: Mounts, resolve: Callable[[str], str]) -> list[MountReader]:
        """The readers that are new with this mount table; those there are get what they have to look for besides."""
        self._table = table
        self._points |= table.points()
        jobs = plan(patterns, table, resolve)
        new = []
        for mount, some in jobs.items():
            reader = self._readers.get(mount.point)
            if reader is not None:
                reader.add_jobs(some)
                continue
            reader = self._readers[mount.point] = self._reader(mount, some, jobs)
            new.append(reader)
        return new

    def _reader(self, mount: Mount, some: list[Job], jobs: Mapping[Mount, Sequence[Job]]) -> MountReader:
        reader = MountReader(
            mount,
            some,
            settings=self._settings,
            os_layer=self._os,
            registry=self._registry,
            resume=self._resume,
            table=lambda: self._table,
            points=lambda: self._points,
        )
        for source in self._resume:
            if owner(jobs, source) == mount:
                self._registry.reserve(self._resume[source], source)
                reader.follow(source)
        return reader


def read_once(
    patterns: Sequence[Watch],
    resume: Mapping[SourceId, Position] | None = None,
    *,
    settings: FollowSettings | None = None,
    os_layer: OsLayer | None = None,
    clock: Clock | None = None,
    mounts: Callable[[], Mounts] = read_mounts,
) -> Generator[Message, None, None]:
    """Every file to its end, once, in the caller's thread, in turns of `read_bytes`. Nothing is waited for.

    A path that was given literally and cannot be read is told as Unreadable, an absent one too (ENOENT).
    """
    once = (settings or FollowSettings()).once()
    system = os_layer or OsLayer()
    crew = Crew(resume or {}, once, system)
    for reader in crew.muster(patterns, mounts(), system.realpath):
        try:
            yield from reader.read_once(clock or SystemClock())
        finally:
            reader.close()
