"""The times that lines print, as Unix seconds. Programs print no zone: it is read as UTC, which has no hour twice, and
only differences are ever used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from operator import le

from parsers.stretch import Stretch

_PLAIN = 15  # characters of 08:00:02.420000


@lru_cache(maxsize=16)
def log_clock(text: str | None) -> float | None:
    """Of one line; None where it is no time."""
    if text is None:
        return None
    if len(text) == 26 and text[19] == "." and text.isascii() and text[17:19].isdigit() and text[20:].isdigit():
        minute, second = _minute(text[:17]), float(text[17:])  # most lines share their minute with the one before
        if minute is not None and second < 60.0:
            return minute + second
    return _moment(text)


def log_clocks(stretch: Stretch) -> list[float | None]:
    """Of each row; None where it prints no time."""
    pieces = stretch.date_and_time()
    if pieces is not None:
        date, times = pieces
        minutes = {start: _minute(f"{date}T{start.decode()}") for start in {time[:6] for time in times}}
        if None not in minutes.values():
            try:
                seconds = [float(time[6:]) for time in times]
            except ValueError:  # a time zone
                seconds = []
            if seconds and max(seconds) < 60.0 and {len(time) for time in times} == {_PLAIN}:
                return [minutes[time[:6]] + second for time, second in zip(times, seconds, strict=True)]  # type: ignore[operator]
    texts = stretch.times()
    return [None] * len(stretch) if texts is None else [log_clock(text) for text in texts]


def clocks_of(stretch: Stretch, start: int, stop: int) -> tuple[Callable[[int], float | None], float | None]:
    """(the clock of a row of these rows, the latest of them): without reading each, where they stand in order."""
    pieces = stretch.date_and_time()
    if pieces is not None:
        date, times = pieces[0], pieces[1][start:stop]
        if {len(time) for time in times} == {_PLAIN} and _ordered(times):
            latest = log_clock(f"{date}T{times[-1].decode()}")
            if latest is not None:
                return lambda row: log_clock(f"{date}T{times[row].decode()}"), latest
    clocks = log_clocks(stretch)[start:stop]
    return clocks.__getitem__, max((clock for clock in clocks if clock is not None), default=None)


def _ordered(times: Sequence[bytes]) -> bool:
    return all(map(le, times, times[1:]))


@lru_cache(maxsize=64)
def _minute(text: str) -> float | None:
    """The Unix seconds of `2026-03-27T15:42:`."""
    return _moment(text + "00")


def _moment(text: str) -> float | None:
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
