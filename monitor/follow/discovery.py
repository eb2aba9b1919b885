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

from monitor.follow.mounts import Mount, Mounts
from monitor.follow.os_layer import Entry, OsLayer
from monitor.follow.patterns import Pattern, States, Watch, absolute, excluded, has_magic, may_be_log, may_hold_logs
from monitor.system.clock import Clock


class Job(NamedTuple):
    """Walk `root`, which is at `states` of the pattern. Without states `root` is a path that was given literally."""

    pattern: Pattern
    root: str
    states: States = frozenset()
    exclude: tuple[str, ...] = ()
    in_tree: bool = False
    """The pattern is a directory's tree."""

    def deeper(self, states: States) -> States:
        """The states that a directory can be entered with."""
        return states - {len(self.pattern.parts)}


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
        walked = pattern if magic else pattern.tree()
        states = walked.below(walked.start(), root)
        if magic:
            jobs.setdefault(mount, []).append(Job(pattern, root, states, watch.exclude))
        for below in mounts.below(real):
            relative = below.point[len(real.rstrip("/")) :]
            job = Job(walked, root.rstrip("/") + relative, walked.below(states, relative), watch.exclude, not magic)
            reached = job.deeper(job.states)
            if reached:
                jobs.setdefault(below, []).append(job._replace(states=reached))
        if not magic or "[" in path:  # a shell expands a pattern to names that may look like one: run[1].log
            jobs.setdefault(mount, []).append(Job(pattern, path, frozenset(), watch.exclude))
    return jobs


def owner(jobs: Mapping[Mount, Sequence[Job]], path: str) -> Mount | None:
    """Whose walk would find a file with this absolute path, if any's: to resume what its directory no longer shows."""
    name = path.rpartition("/")[2]
    best: tuple[int, Mount] | None = None
    for mount, some in jobs.items():
        for job in some:
            if job.states:
                root = job.root.rstrip("/")
                found = path.startswith(root + "/") and job.pattern.matches(path[len(root) :], job.states)
            else:
                found = path == job.root or job.pattern.tree().matches(path)
            if found and not excluded(job.exclude, path, name) and (best is None or len(job.root) > best[0]):
                best = len(job.root), mount
    return best[1] if best else None


def may_find(jobs: Iterable[Job], path: str) -> bool:
    """Would a walk find a file of this name, or go on below a link of this name? By the text alone."""
    directory, _, name = path.rpartition("/")
    for job in jobs:
        pattern, in_tree = (job.pattern, job.in_tree) if job.states else (job.pattern.tree(), True)
        states = pattern.below(pattern.start(), directory)
        as_file = pattern.accepts(pattern.after(states, name)) and may_be_log(name, in_tree=in_tree)
        as_link = pattern.after(states, name, link=True) - {len(pattern.parts)}
        if path == job.root or ((as_file or as_link) and not excluded(job.exclude, path, name)):
            return True
    return False


class Found(NamedTuple):
    """A path to follow. `literal`: it was given as it stands, so it is followed whatever it is called or holds."""

    path: str
    literal: bool = False


Step: TypeAlias = Found | int
"""A number: so many more entries were looked at."""
_AT_ONCE = 8  # entries of a directory
_Directory: TypeAlias = tuple[Job, str, States]
_Odd: TypeAlias = tuple[Entry, States]


class _Listing(NamedTuple):
    """What of a directory is looked at on each walk: its plain files are followed since they were first found."""

    odd: tuple[_Odd, ...]
    """Directories and links, each with the state of the pattern below it."""
    stamp: tuple[int, int, int, int]
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

    def unchanged(self, key: tuple[Job, str], stamp: tuple[int, int, int, int]) -> tuple[_Odd, ...] | None:
        """What is to be looked at, if the listing still holds."""
        known = self._known.pop(key, None)
        if known is None or known.stamp != stamp or self.clock.monotonic() - known.listed_at > self._most_seconds:
            return None
        self._known[key] = known
        return known.odd

    def keep(self, key: tuple[Job, str], status: os.stat_result, began: tuple[float, float], odd: list[_Odd]) -> None:
        """Listed after `status` was asked for, at `began`: monotonic and Unix seconds."""
        now, wall = began
        if wall - status.st_mtime > self._recheck_seconds:
            self._known[key] = _Listing(tuple(odd), _directory_stamp(status), now)


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
    _pending: list[_Directory] = field(default_factory=list)
    _links: list[Found] = field(default_factory=list)

    def run(self) -> Iterator[Step]:
        """Literal paths first, then plain files, then links: a file's own name wins over a link to it."""
        for job in sorted(self.jobs, key=lambda job: bool(job.states)):
            if job.states:
                self._pending.append((job, job.root, job.states))
            else:
                yield from self._literal(job)
            while self._pending:
                yield from self._directory(*self._pending.pop())
        yield from sorted(self._links)

    def _literal(self, job: Job) -> Iterator[Step]:
        try:
            mode = self._stat(job.root).st_mode
        except OSError:
            mode = 0  # not there yet, or not to be seen now: its source asks again, and reports it
        if stat.S_ISDIR(mode):
            tree = job.pattern.tree()
            states = tree.below(tree.start(), job.root)
            self._pending.append((job._replace(pattern=tree, in_tree=True), job.root, states))
        elif mode or not has_magic(job.root):  # else a pattern, and no file that is called like it
            yield Found(job.root, literal=True)

    def _directory(self, job: Job, directory: str, states: States) -> Iterator[Step]:
        key, prefix = (job, directory), directory.rstrip("/") + "/"
        entries: list[Entry] = []
        odd: list[_Odd] = []
        try:
            if self.listings is not None:
                began = self.listings.clock.monotonic(), self.listings.clock.wall()
                status = self._stat(directory)
                unchanged = self.listings.unchanged(key, _directory_stamp(status))
                if unchanged is not None:
                    yield 1
                    self._look_at_odd(job, prefix, states, unchanged)
                    return
            listed = self.os_layer.scandir(directory)
            while some := list(islice(listed, _AT_ONCE)):
                entries += some
                yield len(some)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):  # appears later, or was removed under the walk
                self.errors.append(error)
            return
        entries.sort()  # which of two names of one file wins must not depend on the directory's order
        accepted = job.pattern.names(states)
        for entry in entries:
            name, kind, _ = entry
            if job.exclude and excluded(job.exclude, prefix + name, name):
                continue
            if kind == "file":
                if accepted(name) and may_be_log(name, in_tree=job.in_tree):
                    yield Found(prefix + name)
            elif kind in ("directory", "link"):
                odd.append((entry, job.pattern.after(states, name, link=kind == "link")))
        self._look_at_odd(job, prefix, states, odd)
        if self.listings is not None:
            self.listings.keep(key, status, began, odd)

    def _look_at_odd(self, job: Job, prefix: str, states: States, odd: Sequence[_Odd]) -> None:
        """Directories to enter, in their order; links to files, kept for the end."""
        for entry, below in reversed(odd):  # the first is entered first, as the last one put
            path = prefix + entry.name
            if entry.kind == "directory":
                self._enter(job, path, entry.name, below)
                continue
            as_file = job.pattern.names(states)(entry.name) and may_be_log(entry.name, in_tree=job.in_tree)
            if not (as_file or job.deeper(below)) or self.known(path):
                continue
            try:
                mode = self._stat(path).st_mode
            except OSError:
                continue  # a dangling link: it is looked at again on the next walk
            if stat.S_ISREG(mode) and as_file:
                self._links.append(Found(path))
            elif stat.S_ISDIR(mode):
                self._enter(job, path, entry.name, below)

    def _enter(self, job: Job, path: str, name: str, below: States) -> None:
        if job.deeper(below) and path not in self.mount_points and may_hold_logs(name):
            self._pending.append((job, path, below))

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
    if stat.S_ISREG(mode):
        return ""
    if stat.S_ISDIR(mode):
        return "directory"
    if stat.S_ISFIFO(mode):
        return "fifo"
    if stat.S_ISSOCK(mode):
        return "socket"
    return "device"


def _directory_stamp(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns
