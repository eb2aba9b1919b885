"""Reads PyTorch flight recorder dumps for the core, in a separate process (dump_files.py) started from its own thread.

Only files that the configuration names are opened, never a path from a log. A file counts if it was written after the
run's last progress, because an older dump is about an earlier attempt. For any content of a dump, this process receives
at most `_MAX_OUTPUT` bytes, and decodes them with a fixed type.
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
_VARIABLES = {"PYTHONPATH": str(Path(__file__).parents[1])}  # the process imports only this package and Python's
_SECONDS = 130.0  # the process's own limit plus one dump
_MAX_OUTPUT = 8 * 2**20  # bytes
_MAX_WAITING = 100  # requests
_STACK_RANKS = 8


class DumpsUnreadableError(Exception):
    """The process that reads dumps failed, for the reason in the message."""


@dataclass(frozen=True, slots=True)
class DumpDiagnosis(Diagnosis):
    """The diagnosis of all dumps, and which dumps were left out."""

    stale: bool
    """True: the dump of a missing rank is older than the others, so it may be from another hang."""
    left_out: list[tuple[str, str]]
    """Path and why."""


def read_files(patterns: Sequence[str], since: float, clock: Clock) -> DumpDiagnosis:
    """Return the diagnosis of the dumps written since `since`, Unix seconds. Raises DumpsUnreadableError."""
    given = json.dumps([since, patterns]).encode()  # may be longer than an argument list
    ended = run(_READER, clock, _SECONDS, _MAX_OUTPUT, _VARIABLES, given=given)
    try:
        if ended.code == 0:
            return read_json(ended.output, msgspec.json.Decoder(DumpDiagnosis).decode)
    except msgspec.DecodeError as error:
        raise DumpsUnreadableError(str(error)) from error
    raise DumpsUnreadableError(ended.message)


def read_dumps(asked: DumpRequest, clock: Clock) -> DumpReply:
    """Return the diagnosis of the run's dumps; empty if there are none or they cannot be read."""
    there = [pattern for pattern in asked.patterns if next(glob.iglob(pattern), None) is not None]
    if not there:
        return DumpReply(asked)
    try:
        reply = read_files(there, asked.since, clock)
    except DumpsUnreadableError as error:
        _log.warning("run=%s its dumps cannot be read: %s", asked.run, error)
        return DumpReply(asked)
    for path, reason in reply.left_out:
        _log.info("run=%s dump=%s is left out: %s", asked.run, path, reason)
    if reply.stale:
        return DumpReply(asked, reply.dumps)
    stacks = {rank: reply.stacks[rank] for rank in sorted(reply.stacks)[:_STACK_RANKS]}
    return DumpReply(asked, reply.dumps, reply.missing, stacks)


def dump_reader(clock: Clock) -> Asking[DumpRequest, DumpReply]:
    """Return the thread that reads dumps. If too many requests wait, a run gets an empty reply and asks again."""
    return Asking("dumps", lambda asked: read_dumps(asked, clock), lambda asked, _: DumpReply(asked), _MAX_WAITING)
