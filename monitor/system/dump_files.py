"""The process that reads flight recorder dumps from disk; `dumps.py` starts and ends it.

The author of a dump decides how expensive it is to read, so this process limits its memory and lowers its priority.
Standard input: JSON, [since, patterns]. Standard output: the diagnosis as JSON. A dump that needs too much memory is
left out with the reason. The imports are few, so the process starts in 0.06 s.
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
_MAX_FILES = 16_384
_SECONDS = 100.0  # for all files; those read until then count
_MAX_REASONS = 1000
_MAX_STACKS = 1000  # ranks
_TOGETHER = 120.0  # seconds in which all ranks write after the signal: an older dump shows an earlier state


def summarize(patterns: Sequence[str], since: float) -> dict[str, object]:
    """Return the diagnosis of the dumps written since `since`, Unix seconds, and why others were left out."""
    left_out: list[tuple[str, str]] = []
    written: dict[int, float] = {}
    found = diagnose(_dumps(patterns, since, written, left_out))
    newest = max(written.values(), default=0.0)
    old = {rank for rank, at in written.items() if newest - at > _TOGETHER}
    stacks = {rank: found.stacks[rank] for rank in sorted(found.stacks)[:_MAX_STACKS]}
    stale = found.missing is not None and not old.isdisjoint(found.missing.ranks)
    return asdict(found) | {"stacks": stacks, "stale": stale, "left_out": left_out[:_MAX_REASONS]}


def _dumps(
    patterns: Sequence[str], since: float, written: dict[int, float], left_out: list[tuple[str, str]]
) -> Iterator[Dump]:
    """Yield one dump after the other, so that memory holds one at a time."""
    clock = SystemClock()
    until = clock.monotonic() + _SECONDS
    for path in [path for pattern in patterns for path in _files(pattern)]:
        rank = rank_of(os.path.basename(path))
        if rank is None or len(written) >= _MAX_FILES or clock.monotonic() > until:
            left_out.append((path, "its name does not end with a rank" if rank is None else "there was no time for it"))
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
    """Return the files of a pattern. A plain name is returned even if it is missing, so that the reason is reported."""
    if os.path.lexists(pattern) or not glob.has_magic(pattern):
        return [pattern]
    return sorted(glob.iglob(pattern))[:_MAX_FILES]


def _read(path: str, since: float) -> tuple[bytes, float] | None:
    """Return (content, time of writing) of a regular file; None for a file older than `since`. Pipes do not block."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise NoDumpError("it is not a regular file")
        if status.st_mtime < since:
            return None
        return stream.read(min(status.st_size, LARGEST) + 1), status.st_mtime


def main() -> None:
    """Read the files named on standard input, within the limits."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(10)
    since, patterns = json.load(sys.stdin)
    sys.stdout.buffer.write(json.dumps(summarize(patterns, since), ensure_ascii=False).encode("utf-8", "replace"))


if __name__ == "__main__":
    main()
