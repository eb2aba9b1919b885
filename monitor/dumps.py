"""Has flight recorder dumps read for the core: by a process of its own, on a thread of its own.

Only files that the configuration names are opened, never one that a line of a log names. A file counts if it was
written after the run's last progress: a dump of the attempt before says nothing of this one. Whatever a dump holds,
this process gets no more of it than `_MOST` bytes of what `dump_files.py` prints, and only as what it must be.
"""

import glob
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from megatron_monitor.nodes.flight_recorder import Diagnosis
from megatron_monitor.parsers.json_text import read_json
from megatron_monitor.run.dumps import DumpReply, DumpRequest
from megatron_monitor.system.asking import Asking
from megatron_monitor.system.clock import Clock
from megatron_monitor.system.process import run

_log = logging.getLogger(__name__)

_READER = (sys.executable, "-s", "-S", "-P", "-m", "megatron_monitor.system.dump_files")
_VARIABLES = {"PYTHONPATH": str(Path(__file__).parents[1])}  # all that is imported there is ours or Python's
_SECONDS = 130.0  # the reader's own limit, and a last dump
_MOST = 8 * 2**20  # bytes
_WAITING = 100  # questions
_STACK_RANKS = 8


class DumpsUnreadableError(Exception):
    """The process that reads dumps did not come to an end; says why."""


@dataclass(frozen=True, slots=True)
class DumpDiagnosis(Diagnosis):
    """What dumps tell together, and which told nothing."""

    stale: bool
    """The dump of a missing rank is older than the others: it may be of another hang."""
    left_out: list[tuple[str, str]]
    """Path and why."""


def read_files(patterns: Sequence[str], since: float, clock: Clock) -> DumpDiagnosis:
    """What the dumps tell that were written since then, Unix seconds. Raises DumpsUnreadableError."""
    given = json.dumps([since, patterns]).encode()  # more names than arguments may be
    ended = run(_READER, clock, _SECONDS, _MOST, _VARIABLES, given=given)
    try:
        if ended.code == 0:
            return read_json(ended.output, msgspec.json.Decoder(DumpDiagnosis).decode)
    except msgspec.DecodeError as error:
        raise DumpsUnreadableError(str(error)) from error
    raise DumpsUnreadableError(ended.message)


def read_dumps(asked: DumpRequest, clock: Clock) -> DumpReply:
    """What the run's dumps tell now."""
    there = [pattern for pattern in asked.patterns if next(glob.iglob(pattern), None) is not None]
    if not there:
        return DumpReply(asked)
    try:
        reply = read_files(there, asked.since, clock)
    except DumpsUnreadableError as error:
        _log.warning("run=%r its dumps cannot be read: %s", asked.run, error)
        return DumpReply(asked)
    for path, reason in reply.left_out:
        _log.info("run=%r dump=%r is left out: %s", asked.run, path, reason)
    if reply.stale:
        return DumpReply(asked, reply.dumps)
    stacks = {rank: reply.stacks[rank] for rank in sorted(reply.stacks)[:_STACK_RANKS]}
    return DumpReply(asked, reply.dumps, reply.missing, stacks)


def dump_reader(clock: Clock) -> Asking[DumpRequest, DumpReply]:
    """Where too many wait a run gets an empty answer, and asks again."""
    return Asking("dumps", lambda asked: read_dumps(asked, clock), lambda asked, _: DumpReply(asked), _WAITING)
