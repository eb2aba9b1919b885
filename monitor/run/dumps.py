"""Decides when to read a run's flight recorder dumps, and applies their contents to its attempt. Pure."""

from collections.abc import Iterable

from msgspec import Struct, field

from megatron_monitor.nodes.collectives import Missing
from megatron_monitor.run.phases import ENDED
from megatron_monitor.run.state import RunState

_READ_INTERVAL = 30.0  # seconds between two reads: ranks write their dumps within half a minute of the first time-out
_MAX_READS = 20  # ten minutes: later dumps are not expected


class DumpRequest(Struct, frozen=True):
    """A request to read the dumps of a run's attempt."""

    run: str
    attempt: int
    patterns: tuple[str, ...]
    since: float
    """Unix seconds. Earlier dumps belong to another hang."""


class DumpReply(Struct, frozen=True):
    """The contents of the dumps. Empty if there were none."""

    asked: DumpRequest
    dumps: int = 0
    missing: Missing | None = None
    stacks: dict[int, list[str]] = field(default_factory=dict)
    """Rank -> recorded stack, for missing ranks."""


class DumpChecks(Struct):
    """The reads of an attempt's dumps so far."""

    attempt: int = -1
    at: float = float("-inf")
    times: int = 0
    dumps: int = 0
    """Number of dumps in the last read."""


def ask(state: RunState, looked: DumpChecks, patterns: Iterable[str], now: float) -> DumpRequest | None:
    """Return a request if a read is due: while the run hangs, or after it failed in a collective that timed out. If the
    run continues, the contents are forgotten, because they belonged to that hang.
    """
    attempt = state.attempt
    timed_out = attempt.phase == "crashed" and bool(attempt.watchdog_ranks)
    troubled = attempt.hung or timed_out
    if looked.attempt != attempt.number or not (troubled or attempt.phase in ENDED):
        looked.attempt, looked.at, looked.times, looked.dumps = attempt.number, float("-inf"), 0, 0
        if not troubled:
            attempt.dumped, attempt.dumped_stacks = None, {}
    if not troubled or looked.times >= _MAX_READS or now - looked.at < _READ_INTERVAL:
        return None
    since = state.unix(state.progress_at if state.progress_at is not None else state.first_at)
    named = _named(patterns, state.name)
    if since is None or not named:
        return None
    looked.at, looked.times = now, looked.times + 1
    return DumpRequest(state.name, attempt.number, named, since)


def _named(patterns: Iterable[str], run: str) -> tuple[str, ...]:
    """Return the patterns with the run's name as literal text: a run called ../x or * reads no other directory."""
    plain = not any(char in run for char in "*?[]") and ".." not in run.split("/")
    return tuple(pattern.replace("{run}", run) for pattern in patterns if plain or "{run}" not in pattern)


def take(state: RunState, looked: DumpChecks, read: DumpReply) -> bool:
    """Apply the contents. Return True if they differ from the known ones. Ranks without a dump are named only if no
    dump was written since the last read, because the last ranks may still be writing.
    """
    attempt = state.attempt
    if read.asked.attempt != attempt.number or not read.dumps:
        return False
    settled, looked.dumps = read.dumps == looked.dumps, read.dumps
    found = read.missing
    if found is not None and found.proof == "silent" and not settled:
        found = None
    if found == attempt.dumped:
        return False
    attempt.dumped, attempt.dumped_stacks = found, dict(read.stacks) if found is not None else {}
    return True
