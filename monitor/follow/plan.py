"""Which mount each pattern reaches: one reader a mount, so that a mount that hangs blocks its own thread only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from monitor.follow.discovery import Job
from monitor.follow.mounts import Mount, Mounts
from monitor.follow.patterns import Pattern, States, Watch, absolute, excluded, has_magic


def plan(watches: Iterable[Watch], mounts: Mounts, resolve: Callable[[str], str]) -> dict[Mount, list[Job]]:
    """Jobs by mount. `resolve` follows links; it may give up (a hung mount) and return the path as it is.

    A pattern is walked from its fixed directory by the reader of that mount, and from every mount point below that it
    can reach by that mount's reader.
    """
    jobs: dict[Mount, list[Job]] = {}
    for watch in watches:
        path = absolute(watch.pattern)
        pattern = Pattern.parse(path)
        if has_magic(path):
            root = pattern.fixed
            real = resolve(root)
            _add(jobs, mounts.of(real), Job(pattern, root, pattern.below(pattern.start(), root), watch.exclude))
            _add_below(jobs, mounts, pattern, root, real, watch, in_tree=False)
            if "[" in path:  # a shell expands a pattern to names that may look like one: run[1].log
                _add(jobs, mounts.of(real), Job(pattern, path, frozenset(), watch.exclude))
        else:
            real = resolve(path)
            _add(jobs, mounts.of(real), Job(pattern, path, frozenset(), watch.exclude))
            _add_below(jobs, mounts, pattern.tree(), path, real, watch, in_tree=True)
    return jobs


def owner(jobs: Mapping[Mount, Sequence[Job]], path: str) -> Mount | None:
    """Whose walk would find a file with this absolute path, if any's: to resume what its directory no longer shows."""
    name = path.rpartition("/")[2]
    best: tuple[int, Mount] | None = None
    for mount, some in jobs.items():
        for job in some:
            if job.states:
                inside = path.startswith(job.root.rstrip("/") + "/")
                below = job.pattern.below(job.states, path[len(job.root.rstrip("/")) :]) if inside else frozenset()
                found = job.pattern.accepts(below)
            else:
                found = path == job.root or job.pattern.tree().matches(path)
            if found and not excluded(job.exclude, path, name) and (best is None or len(job.root) > best[0]):
                best = len(job.root), mount
    return best[1] if best else None


def _add_below(
    jobs: dict[Mount, list[Job]], mounts: Mounts, pattern: Pattern, root: str, real: str, watch: Watch, *, in_tree: bool
) -> None:
    states: States = pattern.below(pattern.start(), root)
    for mount in mounts.below(real):
        relative = mount.point[len(real.rstrip("/")) :]
        reached = pattern.below(states, relative) - {len(pattern.parts)}
        if reached:
            _add(jobs, mount, Job(pattern, root.rstrip("/") + relative, reached, watch.exclude, in_tree))


def _add(jobs: dict[Mount, list[Job]], mount: Mount, job: Job) -> None:
    jobs.setdefault(mount, []).append(job)
