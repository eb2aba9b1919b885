"""Reads flight recorder dumps for the core, on a thread of its own: a file system that hangs stops this thread alone.

Only files that the configuration names are opened, never one that a line of a log names. A file counts if it was
written after the run's last progress: a dump of the launch before says nothing of this one.
"""

from __future__ import annotations

import glob
import logging
import os
import stat

from monitor.nodes.flight_recorder import LARGEST, Dump, NoDumpError, diagnose, rank_of, read_dump
from monitor.run.dumps import DumpsAsked, DumpsRead
from monitor.system.asking import Asking
from monitor.system.clock import Clock

_log = logging.getLogger(__name__)

_WAITING = 100  # questions
_MOST = 16_384  # files
_SECONDS = 120.0  # for all of a run's; what was read until then counts
_STACK_RANKS = 8
_TOGETHER = 120.0  # seconds in which the ranks write after the signal: an older dump shows its rank as it was then


def read_dumps(asked: DumpsAsked, clock: Clock) -> DumpsRead:
    """What the run's dumps tell now."""
    until = clock.monotonic() + _SECONDS
    dumps: list[Dump] = []
    written: dict[int, float] = {}
    for pattern in asked.patterns:
        for path in sorted(glob.iglob(pattern))[:_MOST]:
            rank = rank_of(os.path.basename(path))
            if rank is None or len(dumps) >= _MOST or clock.monotonic() > until:
                continue
            try:
                found = _read(path, asked.since)
                if found is not None:
                    dumps.append(read_dump(found[0], rank))
                    written[rank] = found[1]
            except (OSError, NoDumpError) as error:
                _log.info("run=%r dump=%r is left out: %s", asked.run, path, error)
    told = diagnose(dumps)
    newest = max(written.values(), default=0.0)
    old = {rank for rank, at in written.items() if newest - at > _TOGETHER}
    if told.missing is not None and not old.isdisjoint(told.missing.ranks):
        return DumpsRead(asked, told.dumps)
    stacks = {rank: told.stacks[rank] for rank in sorted(told.stacks)[:_STACK_RANKS]}
    return DumpsRead(asked, told.dumps, told.missing, stacks)


def _read(path: str, since: float) -> tuple[bytes, float] | None:
    """A regular file that was written since then, and when; None for what is none. A pipe is not waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_mtime < since:
            return None
        return stream.read(LARGEST + 1), status.st_mtime


class DumpReader(Asking[DumpsAsked, DumpsRead]):
    """Where too many wait a run gets an empty answer, and asks again."""

    def __init__(self, clock: Clock) -> None:
        super().__init__("dumps", lambda asked: read_dumps(asked, clock), lambda asked, _: DumpsRead(asked), _WAITING)
