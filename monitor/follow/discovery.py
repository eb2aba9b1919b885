"""From patterns to the paths of possible logs: each mount's part of the patterns, and one walk over it in slices.

A mount has a reader of its own, so that one that hangs blocks its own thread only: a walk never leaves its mount. It
asks for no attributes but those of directories and links, and stops after each entry for its caller.
"""

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, TypeAlias

from msgspec import Struct, field

from megatron_monitor.follow.mounts import Mount, Mounts
from megatron_monitor.follow.os_layer import Entry, OsLayer, Stamp, stamp
from megatron_monitor.follow.patterns import (
    LINK,
    Pattern,
    Watch,
    absolute,
    excluded,
    has_magic,
    may_be_log,
    may_hold_logs,
)
from megatron_monitor.system.clock import Clock


class Job(NamedTuple):
    """Walk `root` for what the pattern finds."""

    pattern: Pattern
    root: str
    exclude: tuple[str, ...] = ()
    in_tree: bool = False
    """The pattern is a directory's tree."""
    literal: bool = False
    """`root` was given as it stands, and may be a file. The pattern is its tree."""

    def logs(self, directory: str) -> Callable[[str], bool]:
        """May a file of that name there be a log that the pattern finds?"""
        finds, in_tree = self.pattern.finds, self.in_tree
        return lambda name: bool(finds(f"{directory}/{name}")) and may_be_log(name, in_tree=in_tree)

    def finds(self, path: str) -> bool:
        """Would the walk find a file with this absolute path, by the text alone?"""
        below = path.startswith(f"{self.root.rstrip('/')}/") or path == self.root
        return below and bool(self.pattern.finds(path)) and not excluded(self.exclude, path, os.path.basename(path))


def plan(watches: Iterable[Watch], mounts: Mounts, resolve: Callable[[str], str]) -> dict[Mount, list[Job]]:
    """Jobs by mount. `resolve` follows links; it may give up (a hung mount) and return the path as it is.

    A pattern is walked from its fixed directory by the reader of that mount, and from every mount point below that it
    can reach by that mount's reader.
    """
    jobs: dict[Mount, list[Job]] = {}
    for watch in watches:
        path = absolute(watch.pattern)
        pattern = Pattern.parse(path)
        magic = has_magic(path)
        root = pattern.fixed if magic else path
        real = resolve(root)
        mount = mounts.of(real)
        walked = Job(pattern if magic else pattern.tree(), root, watch.exclude, in_tree=not magic)
        if magic:
            jobs.setdefault(mount, []).append(walked)
        for below in mounts.below(real):
            point = root.rstrip("/") + below.point[len(real.rstrip("/")) :]
            if walked.pattern.leads(point):
                jobs.setdefault(below, []).append(walked._replace(root=point))
        if not magic or "[" in path:  # a shell expands a pattern to names that may look like one: run[1].log
            jobs.setdefault(mount, []).append(Job(pattern.tree(), path, watch.exclude, in_tree=True, literal=True))
    return jobs


def owner(jobs: Mapping[Mount, Sequence[Job]], path: str) -> Mount | None:
    """Whose walk would find a file with this absolute path, if any's: to resume what its directory no longer shows."""
    finders = [(len(job.root), mount) for mount, some in jobs.items() for job in some if job.finds(path)]
    return max(finders, key=lambda one: one[0])[1] if finders else None


def may_find(jobs: Iterable[Job], path: str) -> bool:
    """Would a walk find a file of this name, or go on below a link of this name? By the text alone."""
    directory, _, name = path.rpartition("/")
    for job in jobs:
        as_link = job.pattern.leads(f"{directory}/{LINK}{name}")
        if path == job.root or ((as_link or job.logs(directory)(name)) and not excluded(job.exclude, path, name)):
            return True
    return False


class Found(NamedTuple):
    """A path to follow. `literal`: it was given as it stands, so it is followed whatever it is called or holds."""

    path: str
    literal: bool = False


Step: TypeAlias = Found | int
"""A number: so many more entries were looked at."""
_AT_ONCE = 8  # entries of a directory


class _Listing(NamedTuple):
    """What of a directory is looked at on each walk: its plain files are followed since they were first found."""

    odd: list[Entry]
    """Directories and links."""
    stamp: Stamp
    listed_at: float


class Listings:
    """What directories held when they were last listed: one whose time stamp still stands is not listed again.

    For local file systems only: stamps and clock agree there, and a change of names moves the directory's stamp.
    """

    def __init__(self, clock: Clock, recheck_seconds: float, most_seconds: float) -> None:
        """A stamp younger than `recheck_seconds` may hide a change; a listing is good for `most_seconds`."""
        self.clock = clock
        self._recheck_seconds = recheck_seconds
        self._most_seconds = most_seconds
        self._known: dict[tuple[Job, str], _Listing] = {}

    def unchanged(self, key: tuple[Job, str], status: os.stat_result) -> list[Entry] | None:
        """What is to be looked at, if the listing still holds."""
        known = self._known.pop(key, None)
        if known is None or known.stamp != stamp(status):
            return None
        if self.clock.monotonic() - known.listed_at > self._most_seconds:
            return None
        self._known[key] = known
        return known.odd

    def keep(self, key: tuple[Job, str], status: os.stat_result, began: tuple[float, float], odd: list[Entry]) -> None:
        """Listed after `status` was asked for, at `began`: monotonic and Unix seconds."""
        now, wall = began
        if wall - status.st_mtime > self._recheck_seconds:
            self._known[key] = _Listing(odd, stamp(status), now)


class Walk(Struct):
    """`run` once; the counts are complete at its end."""

    os_layer: OsLayer
    jobs: Sequence[Job]
    mount_points: frozenset[str]
    known: Callable[[str], bool] = lambda path: False  # noqa: ARG005
    """Is the path followed already? Then a link need not be looked at."""
    listings: Listings | None = None
    """Of the walks before."""
    stats: int = 0
    errors: list[OSError] = field(default_factory=list)
    """Directories that could not be read: nothing is known of what they hold."""
    _pending: list[tuple[Job, str]] = field(default_factory=list)
    """Directories to list: their absolute paths, with LINK before names that are links; `/` is the empty one."""
    _links: list[Found] = field(default_factory=list)

    def run(self) -> Iterator[Step]:
        """Literal paths first, then plain files, then links: a file's own name wins over a link to it."""
        for job in sorted(self.jobs, key=lambda job: not job.literal):
            if job.literal:
                yield from self._literal(job)
            else:
                self._pending.append((job, job.root.rstrip("/")))
            while self._pending:
                yield from self._directory(*self._pending.pop())
        yield from sorted(self._links)

    def _literal(self, job: Job) -> Iterator[Step]:
        try:
            mode = self._stat(job.root).st_mode
        except OSError:
            mode = 0  # not there yet, or not to be seen now: its source asks again, and reports it
        if stat.S_ISDIR(mode):
            self._pending.append((job, job.root.rstrip("/")))
        elif mode or not has_magic(job.root):  # else a pattern, and no file that is called like it
            yield Found(job.root, literal=True)

    def _directory(self, job: Job, marked: str) -> Iterator[Step]:
        directory = marked.replace(LINK, "")
        entries: list[Entry] = []
        try:
            if self.listings is not None:
                began = self.listings.clock.monotonic(), self.listings.clock.wall()
                status = self._stat(directory or "/")
                unchanged = self.listings.unchanged((job, marked), status)
                if unchanged is not None:
                    yield 1
                    self._look_at_odd(job, marked, unchanged)
                    return
            listed = self.os_layer.scandir(directory or "/")
            while some := list(islice(listed, _AT_ONCE)):
                entries += some
                yield len(some)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):  # appears later, or was removed under the walk
                self.errors.append(error)
            return
        entries.sort()  # which of two names of one file wins must not depend on the directory's order
        odd: list[Entry] = []
        may_be = job.logs(marked)
        for entry in entries:
            name, kind, _ = entry
            if job.exclude and excluded(job.exclude, f"{directory}/{name}", name):
                continue
            if kind == "file":
                if may_be(name):
                    yield Found(f"{directory}/{name}")
            elif kind != "other":
                odd.append(entry)
        self._look_at_odd(job, marked, odd)
        if self.listings is not None:
            self.listings.keep((job, marked), status, began, odd)

    def _look_at_odd(self, job: Job, marked: str, odd: Sequence[Entry]) -> None:
        """Directories to enter, in their order; links to files, kept for the end."""
        for name, kind, _ in reversed(odd):  # the first is entered first, as the last one put
            below = f"{marked}/{LINK}{name}" if kind == "link" else f"{marked}/{name}"
            path = below.replace(LINK, "")
            enters = job.pattern.leads(below) and path not in self.mount_points and may_hold_logs(name)
            if kind == "link":
                as_file = job.logs(marked)(name)
                if not (as_file or enters) or self.known(path):
                    continue
                try:
                    mode = self._stat(path).st_mode
                except OSError:
                    continue  # a dangling link: it is looked at again on the next walk
                if stat.S_ISREG(mode) and as_file:
                    self._links.append(Found(path))
                enters = enters and stat.S_ISDIR(mode)
            if enters:
                self._pending.append((job, below))

    def _stat(self, path: str) -> os.stat_result:
        self.stats += 1
        return self.os_layer.stat(path)


def find(watches: Iterable[Watch], mounts: Mounts, os_layer: OsLayer) -> Iterator[Found]:
    """Every file that one walk over all mounts finds, once."""
    jobs = plan(watches, mounts, os_layer.realpath)
    seen = set[str]()
    for found in Walk(os_layer, [job for some in jobs.values() for job in some], frozenset()).run():
        if isinstance(found, Found) and found.path not in seen:
            seen.add(found.path)
            yield found


def kind_of(mode: int) -> str:
    """What a mode that is no plain file's is; empty for a plain file."""
    kinds = {stat.S_IFREG: "", stat.S_IFDIR: "directory", stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket"}
    return kinds.get(stat.S_IFMT(mode), "device")
