"""From patterns to the paths of possible logs: each mount's part of the patterns, and one walk over it in slices.

A mount has a reader of its own, so that one that hangs blocks its own thread only: a walk never leaves its mount. It
asks for no attributes but those of directories and links, and stops after each entry for its caller.
"""

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from msgspec import Struct, field

from megatron_monitor.follow.mounts import Mount, Mounts
from megatron_monitor.follow.os_layer import Entry, OsLayer
from megatron_monitor.follow.patterns import (
    LINK,
    PathPattern,
    WatchedPath,
    absolute,
    excluded,
    has_magic,
    may_be_log,
    may_hold_logs,
)


class WalkRequest(NamedTuple):
    """Walk `root` for what the pattern finds."""

    pattern: PathPattern
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


def plan(
    watches: Iterable[WatchedPath], mounts: Mounts, resolve: Callable[[str], str]
) -> dict[Mount, list[WalkRequest]]:
    """Jobs by mount. `resolve` follows links; it may give up (a hung mount) and return the path as it is.

    A pattern is walked from its fixed directory by the reader of that mount, and from every mount point below that it
    can reach by that mount's reader.
    """
    jobs: dict[Mount, list[WalkRequest]] = {}
    for watch in watches:
        path = absolute(watch.pattern)
        pattern = PathPattern.parse(path)
        magic = has_magic(path)
        root = pattern.fixed if magic else path
        real = resolve(root)
        mount = mounts.of(real)
        walked = WalkRequest(pattern if magic else pattern.tree(), root, watch.exclude, in_tree=not magic)
        if magic:
            jobs.setdefault(mount, []).append(walked)
        for below in mounts.below(real):
            point = root.rstrip("/") + below.point[len(real.rstrip("/")) :]
            if walked.pattern.leads(point):
                jobs.setdefault(below, []).append(walked._replace(root=point))
        if not magic or "[" in path:  # a shell expands a pattern to names that may look like one: run[1].log
            jobs.setdefault(mount, []).append(
                WalkRequest(pattern.tree(), path, watch.exclude, in_tree=True, literal=True)
            )
    return jobs


def owner(jobs: Mapping[Mount, Sequence[WalkRequest]], path: str) -> Mount | None:
    """Whose walk would find a file with this absolute path, if any's: to resume what its directory no longer shows."""
    finders = [(len(job.root), mount) for mount, some in jobs.items() for job in some if job.finds(path)]
    return max(finders, key=lambda one: one[0])[1] if finders else None


class DiscoveredPath(NamedTuple):
    """A path to follow. `literal`: it was given as it stands, so it is followed whatever it is called or holds."""

    path: str
    literal: bool = False


Step: TypeAlias = DiscoveredPath | None
"""None: one more entry was looked at."""


class Walk(Struct):
    """`run` once; the counts are complete at its end."""

    os_layer: OsLayer
    jobs: Sequence[WalkRequest]
    mount_points: frozenset[str]
    known: Callable[[str], bool] = lambda path: False  # noqa: ARG005
    """Is the path followed already? Then a link need not be looked at."""
    stats: int = 0
    errors: list[OSError] = field(default_factory=list)
    """Directories that could not be read: nothing is known of what they hold."""
    _pending: list[tuple[WalkRequest, str]] = field(default_factory=list)
    """Directories to list: their absolute paths, with LINK before names that are links; `/` is the empty one."""
    _links: list[DiscoveredPath] = field(default_factory=list)

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

    def _literal(self, job: WalkRequest) -> Iterator[Step]:
        try:
            mode = self._stat(job.root).st_mode
        except OSError:
            mode = 0  # not there yet, or not to be seen now: its source asks again, and reports it
        if stat.S_ISDIR(mode):
            self._pending.append((job, job.root.rstrip("/")))
        elif mode or not has_magic(job.root):  # else a pattern, and no file that is called like it
            yield DiscoveredPath(job.root, literal=True)

    def _directory(self, job: WalkRequest, marked: str) -> Iterator[Step]:
        directory = marked.replace(LINK, "")
        entries: list[Entry] = []
        try:
            for entry in self.os_layer.scandir(directory or "/"):
                entries.append(entry)
                yield None
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
                    yield DiscoveredPath(f"{directory}/{name}")
            elif kind != "other":
                odd.append(entry)
        self._look_at_odd(job, marked, odd)

    def _look_at_odd(self, job: WalkRequest, marked: str, odd: Sequence[Entry]) -> None:
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
                    self._links.append(DiscoveredPath(path))
                enters = enters and stat.S_ISDIR(mode)
            if enters:
                self._pending.append((job, below))

    def _stat(self, path: str) -> os.stat_result:
        self.stats += 1
        return self.os_layer.stat(path)


def find(watches: Iterable[WatchedPath], mounts: Mounts, os_layer: OsLayer) -> Iterator[DiscoveredPath]:
    """Every file that one walk over all mounts finds, once."""
    jobs = plan(watches, mounts, os_layer.realpath)
    seen = set[str]()
    for found in Walk(os_layer, [job for some in jobs.values() for job in some], frozenset()).run():
        if found is not None and found.path not in seen:
            seen.add(found.path)
            yield found


def kind_of(mode: int) -> str:
    """What a mode that is no plain file's is; empty for a plain file."""
    kinds = {stat.S_IFREG: "", stat.S_IFDIR: "directory", stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket"}
    return kinds.get(stat.S_IFMT(mode), "device")
