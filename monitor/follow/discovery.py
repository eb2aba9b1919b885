"""One walk over the patterns of one mount, in slices: directories in, paths of possible logs out.

A walk never leaves its mount (another reader has what lies below a mount point), asks for no attributes but those of
links and oddities, and gives a tick per entry so that its caller can stop between any two.
"""

from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from monitor.clock import Clock
from monitor.follow.listings import Listings
from monitor.follow.os_layer import Entry, OsLayer
from monitor.follow.patterns import Pattern, States, excluded, has_magic
from monitor.follow.textual import may_be_log, may_hold_logs


class Job(NamedTuple):
    """Walk `root`, which is at `states` of the pattern. Without states `root` is a path that was given literally."""

    pattern: Pattern
    root: str
    states: States = frozenset()
    exclude: tuple[str, ...] = ()
    in_tree: bool = False
    """The pattern is a directory's tree."""


class Found(NamedTuple):
    """A path to follow. `literal`: it was given as it stands, so it is followed whatever it is called or holds."""

    path: str
    literal: bool = False


Step: TypeAlias = Found | None
"""None: one more entry was looked at."""


@dataclass
class Walk:
    """`run` once; the counts are complete at its end."""

    os_layer: OsLayer
    jobs: Sequence[Job]
    mount_points: frozenset[str]
    known: Callable[[str], bool] = lambda path: False  # noqa: ARG005
    """Is the path followed already? Then a link need not be looked at."""
    listings: Listings | None = None
    """Of the walks before, with the clock they need: directories that have not changed are not listed again."""
    clock: Clock | None = None
    entries: int = 0
    stats: int = 0
    unsupported: Counter[str] = field(default_factory=Counter)
    errors: list[OSError] = field(default_factory=list)
    """Directories that could not be read: nothing is known of what they hold."""

    def run(self) -> Iterator[Step]:
        """Literal paths first, then plain files, then links: a file's own name wins over a link to it."""
        links: list[Found] = []
        for job in sorted(self.jobs, key=lambda job: bool(job.states)):
            if job.states:
                yield from self._directory(job, job.root, job.states, links)
            else:
                yield from self._literal(job, links)
        yield from links

    def _literal(self, job: Job, links: list[Found]) -> Iterator[Step]:
        try:
            mode = self._stat(job.root)
        except OSError:
            mode = 0  # not there yet, or not to be seen now: its source asks again, and tells
        if stat.S_ISDIR(mode):
            tree = job.pattern.tree()
            states = tree.below(tree.start(), job.root)
            yield from self._directory(job._replace(pattern=tree, in_tree=True), job.root, states, links)
        elif mode or not has_magic(job.root):  # else a pattern, and no file that is called like it
            yield Found(job.root, literal=True)

    def _directory(self, job: Job, directory: str, states: States, links: list[Found]) -> Iterator[Step]:
        key, status, now, wall = (job, directory), None, 0.0, 0.0
        others: list[tuple[Entry, States]] = []
        try:
            if self.listings is not None and self.clock is not None:
                now, wall = self.clock.monotonic(), self.clock.wall()
                self.stats += 1
                status = self.os_layer.stat(directory)
                known = self.listings.unchanged(key, status, now)
                if known is not None:
                    yield None
                    for entry, below in known.entries:
                        yield from self._other(job, _join(directory, entry.name), entry, states, below, links)
                    return
            entries: list[Entry] = []
            for entry in self.os_layer.scandir(directory):
                self.entries += 1
                entries.append(entry)
                yield None
        except OSError as error:
            if self.listings is not None:
                self.listings.forget(key)
            if not isinstance(error, FileNotFoundError):  # appears later, or was removed under the walk
                self.errors.append(error)
            return
        entries.sort()  # which of two names of one file wins must not depend on the directory's order
        for entry in entries:
            path = _join(directory, entry.name)
            if excluded(job.exclude, path, entry.name):
                continue
            below = job.pattern.after(states, entry.name, link=entry.kind == "link")
            if entry.kind != "file":
                others.append((entry, below))
                yield from self._other(job, path, entry, states, below, links)
            elif job.pattern.accepts(below) and may_be_log(entry.name, in_tree=job.in_tree):
                yield Found(path)
        if self.listings is not None and status is not None:
            self.listings.keep(key, status, now, wall, others)

    def _other(
        self, job: Job, path: str, entry: Entry, states: States, below: States, links: list[Found]
    ) -> Iterator[Step]:
        if entry.kind == "directory":
            yield from self._enter(job, path, entry.name, below, links)
        else:
            yield from self._odd(job, path, entry, states, below, links)

    def _enter(self, job: Job, path: str, name: str, below: States, links: list[Found]) -> Iterator[Step]:
        if job.pattern.accepts(below) and not job.pattern.any_depth:
            self.unsupported["directory"] += 1
        deeper = below - {len(job.pattern.parts)}
        if deeper and path not in self.mount_points and may_hold_logs(name):
            yield from self._directory(job, path, below, links)

    def _odd(
        self, job: Job, path: str, entry: Entry, states: States, below: States, links: list[Found]
    ) -> Iterator[Step]:
        as_file = job.pattern.accepts(job.pattern.after(states, entry.name)) and may_be_log(
            entry.name, in_tree=job.in_tree
        )
        as_directory = bool(below - {len(job.pattern.parts)})
        if not (as_file or as_directory) or self.known(path):
            return
        try:
            mode = self._stat(path)
        except OSError:
            return  # a dangling link: it is looked at again on the next walk
        if stat.S_ISREG(mode) and as_file:
            links.append(Found(path))
        elif stat.S_ISDIR(mode):
            yield from self._enter(job, path, entry.name, below, links)
        elif as_file:
            self.unsupported[kind_of(mode)] += 1

    def _stat(self, path: str) -> int:
        self.stats += 1
        return self.os_layer.stat(path).st_mode


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


def _join(directory: str, name: str) -> str:
    return f"{directory.rstrip('/')}/{name}"


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
