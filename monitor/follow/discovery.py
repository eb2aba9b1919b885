"""Search for possible logs: the patterns are divided among the mounts, and each mount is walked in slices.

Each mount has its own reader thread, so a hung mount blocks only its own thread. A walk therefore never leaves its
mount. It asks for attributes of directories and links only, and pauses after each entry for its caller.
"""

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct, field

from megatron_monitor.follow.mounts import Mount, Mounts
from megatron_monitor.follow.os_layer import Entry, OsLayer
from megatron_monitor.follow.patterns import (
    LINK,
    SKIPPED_DIRECTORIES,
    PathPattern,
    WatchedPath,
    absolute,
    excluded,
    has_magic,
    may_be_log,
)


class WalkRequest(NamedTuple):
    """A directory to walk for files that match a pattern."""

    pattern: PathPattern
    root: str
    exclude: tuple[str, ...] = ()
    in_tree: bool = False  # the pattern matches a whole directory tree
    literal: bool = False
    """`root` was configured without wildcards and may be a file; the pattern matches the tree below it."""

    def finds(self, path: str) -> bool:
        """Return True if the walk would find a file with this absolute path, judged by the text alone."""
        below = path.startswith(f"{self.root.rstrip('/')}/") or path == self.root
        return below and bool(self.pattern.matches(path)) and not excluded(self.exclude, path, os.path.basename(path))


def plan(
    watches: Iterable[WatchedPath], mounts: Mounts, resolve: Callable[[str], str]
) -> dict[Mount, list[WalkRequest]]:
    """Return the walks of each mount. `resolve` follows links; for a hung mount it may return the path unchanged.

    The reader of the mount that holds a pattern's fixed directory walks from there. Mount points below which may hold
    matches are walked by their own readers.
    """
    walks: dict[Mount, list[WalkRequest]] = {}
    for watch in watches:
        path = absolute(watch.pattern)
        pattern = PathPattern.parse(path)
        magic = has_magic(path)
        root = pattern.fixed if magic else path
        real = resolve(root)
        mount = mounts.of(real)
        walk = WalkRequest(pattern if magic else pattern.tree(), root, watch.exclude, in_tree=not magic)
        if magic:
            walks.setdefault(mount, []).append(walk)
        for below in mounts.below(real):
            point = root.rstrip("/") + below.point[len(real.rstrip("/")) :]
            if walk.pattern.may_match_below(point):
                walks.setdefault(below, []).append(walk._replace(root=point))
        if not magic or "[" in path:  # a shell may expand a pattern to a name that looks like one: run[1].log
            literal = WalkRequest(pattern.tree(), path, watch.exclude, in_tree=True, literal=True)
            walks.setdefault(mount, []).append(literal)
    return walks


def mount_that_finds(walks: Mapping[Mount, Sequence[WalkRequest]], path: str) -> Mount | None:
    """Return the mount whose walk would find this absolute path; None if no walk would. Resumes files that are gone."""
    finders = [(len(walk.root), mount) for mount, some in walks.items() for walk in some if walk.finds(path)]
    return max(finders, key=lambda finder: finder[0])[1] if finders else None


class DiscoveredPath(NamedTuple):
    """A path to follow. A `literal` path was configured without wildcards and is followed whatever its name or data."""

    path: str
    literal: bool = False


class Walk(Struct):
    """One search for logs on a mount: call `run` once."""

    os_layer: OsLayer
    walks: Sequence[WalkRequest]
    mount_points: frozenset[str]
    stat: Callable[[str], os.stat_result]
    on_error: Callable[[OSError], None] = lambda error: None  # noqa: ARG005
    """Called for directories that cannot be read; their contents are unknown."""
    is_followed: Callable[[str], bool] = lambda path: False  # noqa: ARG005
    """Returns True for paths that are already followed: links among them are not looked at."""
    _pending: list[tuple[WalkRequest, str]] = field(default_factory=list)
    """Directories to list: absolute paths with LINK before names that are links; `/` is written ""."""
    _links: list[DiscoveredPath] = field(default_factory=list)

    def run(self) -> Iterator[DiscoveredPath | None]:
        """Yield paths, and None after each entry. Literal paths come first, then plain files, then links, so that the
        name of a file has priority over a link to it.
        """
        for walk in sorted(self.walks, key=lambda walk: not walk.literal):
            mode = self._mode(walk.root) if walk.literal else stat.S_IFDIR
            if stat.S_ISDIR(mode):
                self._pending.append((walk, walk.root.rstrip("/")))
            elif mode or not has_magic(walk.root):  # an absent pattern is not followed; an absent path looks again
                yield DiscoveredPath(walk.root, literal=True)
            while self._pending:
                yield from self._directory(*self._pending.pop())
        yield from sorted(self._links)

    def _directory(self, walk: WalkRequest, marked: str) -> Iterator[DiscoveredPath | None]:
        directory = marked.replace(LINK, "")
        entries: list[Entry] = []
        try:
            for entry in self.os_layer.scandir(directory or "/"):
                entries.append(entry)
                yield None
        except FileNotFoundError:  # appears later, or was removed during the walk
            return
        except OSError as error:
            self.on_error(error)
            return
        entries.sort()  # which of two names of one file is followed must not depend on the directory's order
        links_and_directories: list[Entry] = []
        matches, in_tree = walk.pattern.matches, walk.in_tree

        def may_be_log_here(name: str) -> bool:
            return bool(matches(f"{marked}/{name}")) and may_be_log(name, in_tree=in_tree)

        for entry in entries:
            name, kind, _ = entry
            if walk.exclude and excluded(walk.exclude, f"{directory}/{name}", name):
                continue
            if kind == "file":
                if may_be_log_here(name):
                    yield DiscoveredPath(f"{directory}/{name}")
            elif kind != "other":
                links_and_directories.append(entry)
        for name, kind, _ in reversed(links_and_directories):  # the first one is pushed last, so it is entered first
            self._enter(walk, f"{marked}/{LINK}{name}" if kind == "link" else f"{marked}/{name}", name, may_be_log_here)

    def _enter(self, walk: WalkRequest, marked: str, name: str, may_be_log_here: Callable[[str], bool]) -> None:
        """Queue a directory to be listed; keep a link to a file for the end."""
        path = marked.replace(LINK, "")
        enters = (
            walk.pattern.may_match_below(marked) and path not in self.mount_points and name not in SKIPPED_DIRECTORIES
        )
        if marked.endswith(LINK + name):
            as_file = may_be_log_here(name)
            if not (as_file or enters) or self.is_followed(path):
                return
            mode = self._mode(path)
            if stat.S_ISREG(mode) and as_file:
                self._links.append(DiscoveredPath(path))
            enters = enters and stat.S_ISDIR(mode)
        if enters:
            self._pending.append((walk, marked))

    def _mode(self, path: str) -> int:
        """Return the st_mode of the path, links followed; 0 if it cannot be seen now."""
        try:
            return self.stat(path).st_mode
        except OSError:
            return 0


def find(watches: Iterable[WatchedPath], mounts: Mounts, os_layer: OsLayer) -> Iterator[DiscoveredPath]:
    """Yield every file that one walk over all mounts finds, once."""
    walks = [walk for some in plan(watches, mounts, os_layer.realpath).values() for walk in some]
    seen = set[str]()
    for found in Walk(os_layer, walks, frozenset(), os_layer.stat).run():
        if found is not None and found.path not in seen:
            seen.add(found.path)
            yield found


def unsupported_kind(mode: int) -> str:
    """Return what a mode is if it is not a plain file; empty for a plain file."""
    kinds = {stat.S_IFREG: "", stat.S_IFDIR: "directory", stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket"}
    return kinds.get(stat.S_IFMT(mode), "device")
