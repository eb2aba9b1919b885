"""Converts stamps of lines to Unix seconds. Programs print no time zone: stamps are read as UTC, and only differences
are used.

glog prints no year: its stamp is `--05-22T03:45:48`, the form of ISO 8601 without a year.
"""

import math
from datetime import UTC, datetime
from functools import lru_cache

_SECONDS = {f":{second:02d}": float(second) for second in range(60)}


@lru_cache(maxsize=8192)  # the lines of a read: attribution, fold and replay ask for each
def log_clock(text: str | None) -> float | None:
    """Return the seconds of a stamp; None for other text."""
    if text is None:
        return None
    seconds = _SECONDS.get(text[16:])
    if seconds is None and text[16:19] in _SECONDS and text[19:20] == "." and text[20:].isdecimal() and text.isascii():
        seconds = float(text[17:])
    if seconds is not None:  # fast path: most lines have the same minute as the line before
        minute = _minute(text[:16])
        if minute is not None:
            return minute + seconds
    return _moment(text)


@lru_cache(maxsize=4096)
def _minute(text: str) -> float | None:
    """Return the Unix seconds of the minute `2026-03-27T15:42`; None for other forms."""
    return _moment(text) if text[4:8:3] == "--" and text[10:14:3] == "T:" else None


def _moment(text: str) -> float | None:
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def yearless(text: str, near: float, latest: float = math.inf) -> float | None:
    """Return the seconds of a stamp without a year: in the year nearest to `near`, and not after `latest`."""
    year = datetime.fromtimestamp(near, UTC).year
    found = [_moment(f"{year + offset:04d}{text[1:]}") for offset in (-1, 0, 1)]
    return min(
        (moment for moment in found if moment is not None and moment <= latest),
        key=lambda at: abs(at - near),
        default=None,
    )
