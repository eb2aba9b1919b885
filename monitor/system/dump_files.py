"""The flight recorder's dumps on disk, read in a process of its own, which `dumps.py` starts and ends.

Whoever can write a dump decides what it costs to read it. So this process limits its own memory and yields to every
other. Standard input: JSON, [since, patterns]; standard output: what the dumps tell together, as JSON. A dump that
needs more than there is left out, with the reason, and the next one is read. Imports little: it starts in 0.06 s.
"""

import glob
import json
import os
import resource
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from megatron_monitor.nodes.flight_recorder import LARGEST, Dump, NoDumpError, diagnose, rank_of, read_dump
from megatron_monitor.system.clock import SystemClock

_MEMORY = 512 * 2**20  # bytes of address space: a dump of 20,000 entries with 20 frames each takes some 330 MB
_MOST = 16_384  # files
_SECONDS = 100.0  # for all of them; what was read until then counts
_REASONS = 1000
_STACKS = 1000  # ranks
_TOGETHER = 120.0  # seconds in which the ranks write after the signal: an older dump shows its rank as it was then


def summarize(patterns: Sequence[str], since: float) -> dict[str, object]:
    """What the dumps tell that were written since then, Unix seconds; `left_out`: path and why, of the others."""
    left_out: list[tuple[str, str]] = []
    written: dict[int, float] = {}
    found = diagnose(_dumps(patterns, since, written, left_out))
    newest = max(written.values(), default=0.0)
    old = {rank for rank, at in written.items() if newest - at > _TOGETHER}
    stacks = {rank: found.stacks[rank] for rank in sorted(found.stacks)[:_STACKS]}
    stale = found.missing is not None and not old.isdisjoint(found.missing.ranks)
    return asdict(found) | {"stacks": stacks, "stale": stale, "left_out": left_out[:_REASONS]}


def _dumps(
    patterns: Sequence[str], since: float, written: dict[int, float], left_out: list[tuple[str, str]]
) -> Iterator[Dump]:
    """One after the other: only what is needed of each stays in memory."""
    clock = SystemClock()
    until = clock.monotonic() + _SECONDS
    for path in [path for pattern in patterns for path in _files(pattern)]:
        rank = rank_of(os.path.basename(path))
        if rank is None or len(written) >= _MOST or clock.monotonic() > until:
            left_out.append((path, "its name does not end in a rank" if rank is None else "there was no time for it"))
            continue
        try:
            read = _read(path, since)
            if read is not None:
                dump, at = read_dump(read[0], rank), read[1]
                written[rank] = at
                yield dump
        except OSError as error:
            left_out.append((path, error.strerror or str(error)))
        except NoDumpError as error:
            left_out.append((path, str(error)))
        except MemoryError:
            left_out.append((path, f"it takes more than {_MEMORY >> 20} MB of memory"))


def _files(pattern: str) -> list[str]:
    """A file's own name is no pattern, and who named one hears why it cannot be opened."""
    if os.path.lexists(pattern) or not glob.has_magic(pattern):
        return [pattern]
    return sorted(glob.iglob(pattern))[:_MOST]


def _read(path: str, since: float) -> tuple[bytes, float] | None:
    """A regular file that was written since then, and when; None for an older one. A pipe is not waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise NoDumpError("it is no regular file")
        if status.st_mtime < since:
            return None
        return stream.read(min(status.st_size, LARGEST) + 1), status.st_mtime


def main() -> None:
    """Read what standard input names, within the limits."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(10)
    since, patterns = json.load(sys.stdin)
    sys.stdout.buffer.write(json.dumps(summarize(patterns, since), ensure_ascii=False).encode("utf-8", "replace"))


if __name__ == "__main__":
    main()
