"""The times that lines print, as Unix seconds. Programs print no zone: it is read as UTC, which has no hour twice, and
only differences are ever used.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache


def log_clock(text: str | None) -> float | None:
    """Of one line; None where it is no time."""
    if text is None:
        return None
    if text[19:20] == ".":  # most lines share their minute with the one before
        seconds = text[17:]
        if seconds.isascii() and seconds[:2].isdigit() and seconds[3:].isdigit():
            minute = _minute(text[:17])
            return minute + float(seconds) if minute is not None and float(seconds) < 60.0 else None
    return _moment(text)


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
