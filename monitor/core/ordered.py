"""Sorts the lines of a spooled stream by time. Pure.

Agents send batches twice, late and in another order. A line waits for `HOLD` seconds for earlier ones. A later one is
counted and dropped, because the fold never goes back. Waiting lines are saved with the offset, so that each line counts
once, also over a restart.

If the sender's clock was set back, further lines seem to be earlier than others. Therefore the first such line and
those after it wait until a later line or heartbeats show whether the clock was set: then the time from the first line
to the later one is as long as between their arrivals, while an earlier batch came late. If the clock was set, the lines
get the timestamps of the clock as it was before.
"""

from collections.abc import Collection
from contextlib import suppress
from datetime import datetime, timedelta
from functools import lru_cache
from math import ceil, inf
from typing import Any

from msgspec import Struct, field

from megatron_monitor.parsers.redaction import masked
from megatron_monitor.pushed import STAMP
from megatron_monitor.run.log_clock import log_clock

HOLD = 2.0
"""Seconds that a line waits for earlier ones."""
_HEARTBEATS = 20.0  # seconds that a late line waits: three heartbeats and their delay show that a clock was set back
_ASKED = 2.0  # seconds at most from one call of `due` to the next, unless the monitor was stopped and heard nothing
_ONLY_LATE = 10.0  # seconds in which only late lines come, as fast as they were written: then a clock was set back
_MAX_BYTES = 8 << 20  # maximum bytes that wait: half of a larger backlog is released
_MAX_MEMORY = 256 << 20  # maximum bytes of memory for the lines of all streams
_LINE_MEMORY = 200  # bytes of memory for a line besides its text


class Ordered(Struct):
    """The waiting lines of a stream."""

    lines: list[tuple[bytes, bytes, int, float]] = field(default_factory=list)
    """(timestamp, line with its end, bytes of it in the file, instant of arrival)."""
    partial: bytes = b""
    """The text after the last line end."""
    size: int = 0
    """Bytes of the file in `lines`."""
    last: bytes = b""
    """Timestamp of the last released line."""
    last_came: float = inf
    """Instant at which that line came, if known."""
    let_go: set[bytes] = field(default_factory=set)
    """The released lines with that timestamp: a repetition is the same line."""
    late: int = 0
    """Lines that came too late and are not counted yet."""
    again: int = 0
    """Repeated lines that are not counted yet."""
    shift: int = 0
    """Seconds by which the sender's clock was set back. They are added to its timestamps."""
    may_be_late: bool = True
    """False: no waiting line is late."""
    awaited: float = 0.0
    """Seconds for which heartbeats were heard while the first late line waited."""
    asked_at: float = inf
    """Instant of the last call of `due`."""
    most: int = _MAX_BYTES
    """Maximum bytes that wait (see `share_memory`)."""
    settles_at: float | None = None
    """When the lines that were in the file at first have waited long enough."""

    def add(self, data: bytes, now: float) -> None:
        """Add the next bytes of the file."""
        whole, end, rest = (self.partial + data).rpartition(b"\n")
        self.partial = rest
        if end:
            for text in whole.split(b"\n"):
                line = _moved((text[:STAMP], text + b"\n", len(text) + 1, now), self.shift)
                self.may_be_late |= line[0] < max(self.last, self.lines[-1][0] if self.lines else b"")
                self.lines.append(line)
                self.size += len(text) + 1

    def begin_anew(self) -> None:
        """The stream continues in another file: no waiting line has an offset in it."""
        self.lines = [(stamp, line, 0, came) for stamp, line, _, came in self.lines]
        self.size, self.partial = 0, b""

    def due(
        self, now: float, shift: float | None = None, *, live: bool = False
    ) -> tuple[list[tuple[bytes, bytes]], int]:
        """Return the (timestamp, line) pairs that have waited, in order, and the number of bytes of dropped lines.
        `shift`: seconds by which the sender's clock was set back according to its heartbeats. None: it sends none.
        `live`: new lines are from now.
        """
        self.awaited += min(max(0.0, now - self.asked_at), _ASKED) if self.may_be_late else -self.awaited
        self.asked_at = now
        if self.lines and self.lines[0][3] == inf:
            since = min(now, *(line[3] for line in self.lines))  # restored lines came before all later ones
            self.lines = [(*line[:3], since if line[3] == inf else line[3]) for line in self.lines]
        if not self.lines or (now - self.lines[0][3] < HOLD and self.size < self.most):
            return [], 0
        first = self._first_held(now, shift, live=live)
        lines, held = self.lines[:first], self.lines[first:]
        if not lines:
            return [], 0
        waited = [line[0] for line in lines if now - line[3] >= HOLD]
        ready = max(waited or [line[0] for line in lines[: len(lines) // 2 + 1]])
        found = sorted((line for line in lines if line[0] <= ready), key=lambda line: line[0])
        self.lines = [line for line in lines if line[0] > ready] + held
        self.size -= sum(line[2] for line in found)
        return self._released(found, ready)

    def _released(
        self, found: list[tuple[bytes, bytes, int, float]], ready: bytes
    ) -> tuple[list[tuple[bytes, bytes]], int]:
        """Return the result of `due` for these lines, without late ones and repetitions. `ready`: their last stamp."""
        due, left_out, known = list[tuple[bytes, bytes]](), 0, self.let_go
        for stamp, line, size, _ in found:
            if stamp < self.last or line in known:
                left_out += size
                self.again += stamp >= self.last
                self.late += stamp < self.last
            else:
                due.append((stamp, line))
                known.add(line)
        if found and found[-1][0] >= self.last:
            self.last_came = found[-1][3]
        self.last = max(ready, self.last)
        self.let_go = {line for line in known if line.startswith(self.last)}
        return due, left_out

    def _first_held(self, now: float, shift: float | None, *, live: bool) -> int:
        """Return the index of the first late line while it is unknown whether the sender's clock was set back. Once it
        is known, shift the late lines and those after them, and hold none.
        """
        lines, many, back = self.lines, len(self.lines), (shift or 0.0) - self.shift
        newest, newest_came, first = self.last, self.last_came, many
        for place, line in enumerate(lines if self.may_be_late else ()):
            if line[0] < newest:
                first = place
                break
            newest, newest_came = line[0], line[3]
        self.may_be_late, held = first < many, many
        if not self.may_be_late:
            self.shift += ceil(back) if live and back > 0.0 else 0
        elif back <= 0.0:
            held, back = self._shown_by_lines(first, newest, newest_came, now, shift)
        if self.may_be_late and back > 0.0:
            self.shift += ceil(back)
            lines[first:] = [_moved(line, ceil(back)) for line in lines[first:]]
        return held

    def _shown_by_lines(
        self, first: int, newest: bytes, newest_came: float, now: float, shift: float | None
    ) -> tuple[int, float]:
        """Return (index of the first line to hold, seconds by which the lines show that the clock was set back).

        `first` is the first late line, `newest` the timestamp before it. 0 seconds: the clock was not set, or it is
        unknown yet.
        """
        lines, many, (stamp, _, _, came) = self.lines, len(self.lines), self.lines[first]
        if now == inf or self.size >= self.most:
            return many, 0.0
        began, latest = _seconds(stamp), next((line for line in lines[first:] if line[0] >= newest), None)
        if latest is not None and newest_came < inf:
            back = came - newest_came + _seconds(newest) - began
            return many, back if _is_steady(lines[first], latest, back) else 0.0
        if stamp >= self.last:  # the lines behind it have not been released either
            held = next(place for place, line in enumerate(lines) if line[0] > stamp)
            return many if now - came >= HOLD else held, 0.0
        if shift is not None and self.awaited < _HEARTBEATS:
            return first, 0.0
        if latest is not None:
            return many, 0.0
        if lines[-1][3] - came < _ONLY_LATE or not _is_steady(lines[first], lines[-1]):
            return first if shift is None else many, 0.0
        return many, _seconds(self.last) - began

    def save(self) -> dict[str, Any]:
        """Return the state as plain values. Secrets are masked, as in all saved text."""
        lines = [[masked(line.decode("utf-8", "replace")), size] for _, line, size, _ in self.lines]
        let_go = [masked(line.decode("utf-8", "replace")) for line in self.let_go]
        return {"lines": lines, "last": self.last.decode("ascii", "replace"), "let_go": let_go, "shift": self.shift}

    def restore(self, saved: dict[str, Any]) -> None:
        """Continue where `save` was called: waiting lines wait again from the next call of `due` on."""
        texts = [(str(text).encode(), int(size)) for text, size in saved["lines"]]
        self.lines = [(text[:STAMP], text, size, inf) for text, size in texts]
        self.size, self.last = sum(size for _, size in texts), str(saved["last"]).encode()
        self.let_go, self.shift = {str(text).encode() for text in saved["let_go"]}, saved["shift"]


def share_memory(streams: Collection[Ordered]) -> None:
    """Bound the lines of these streams that wait, if they take too much memory together."""
    memory = sum(one.size + _LINE_MEMORY * len(one.lines) for one in streams)
    for one in streams:
        one.most = _MAX_BYTES if memory <= _MAX_MEMORY else min(_MAX_BYTES, _MAX_MEMORY // len(streams) // 8)


def _is_steady(
    first: tuple[bytes, bytes, int, float], later: tuple[bytes, bytes, int, float], back: float = inf
) -> bool:
    """Return True if the timestamps are as far apart as the arrivals, compared with the time `back` that is to be
    explained: then both lines come from one clock.
    """
    return abs(_seconds(later[0]) - _seconds(first[0]) - later[3] + first[3]) <= min(_ONLY_LATE, back) / 2.0


def _moved(line: tuple[bytes, bytes, int, float], seconds: int) -> tuple[bytes, bytes, int, float]:
    if not seconds:
        return line
    stamp = _later(line[0][:19], seconds) + line[0][19:]
    return (stamp, stamp + line[1][STAMP:], *line[2:])


@lru_cache(4096)
def _later(second: bytes, seconds: int) -> bytes:
    """Return the time `2026-05-01T12:00:00` so many seconds later, or other text unchanged."""
    with suppress(ValueError, OverflowError):
        return (datetime.fromisoformat(second.decode()) + timedelta(seconds=seconds)).isoformat().encode()
    return second


def _seconds(stamp: bytes) -> float:
    return log_clock(stamp[:-1].decode("ascii", "replace")) or 0.0
