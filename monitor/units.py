"""Durations and ratios of the configuration: `90s` becomes 90.0 seconds, `2%` becomes 0.02.

A reader takes a scalar as YAML decodes it and returns a finite float. It raises ValueError with what is expected.
A settings class names the reader by its annotation (`Seconds`, `Ratio`).
"""

import math
import re
from typing import Annotated, Final

import msgspec

from megatron_monitor.parsers.patterns import lazy

LONGEST_SECONDS: Final = 10 * 366 * 86400.0
"""Ten years. A longer duration is a mistake in the unit, and the system's own waits overflow not far above it."""

_SECONDS_PER: Final = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
# 1h30m, 90s, 0.5s, 500ms: each unit once, the largest first
_DURATION = lazy("".join(rf"(?:(\d{{1,9}}(?:\.\d{{1,9}})?){unit})?" for unit in _SECONDS_PER), re.ASCII)
# 2%, 0.5 %
_PERCENT = lazy(r"(?P<percent>\d{1,9}(?:\.\d{1,9})?) ?%", re.ASCII)


def seconds_of(raw: object) -> float:
    """Return the seconds of a text with units, or of a plain number of seconds. Never negative."""
    value = _number(raw)
    if isinstance(raw, str) and raw and (match := _DURATION.fullmatch(raw)):
        parts = zip(match.groups(), _SECONDS_PER.values(), strict=True)
        value = sum(float(number) * seconds for number, seconds in parts if number is not None)
    if value is None or value < 0.0:
        raise ValueError("expected a duration such as 90s, 5m or 500ms, or a number of seconds")
    if value > LONGEST_SECONDS:
        raise ValueError("expected a duration of ten years at most")
    return value


def positive_seconds_of(raw: object) -> float:
    """Return the seconds as `seconds_of` does, but refuse 0."""
    value = seconds_of(raw)
    if value == 0.0:
        raise ValueError("expected a duration above 0")
    return value


def ratio_of(raw: object) -> float:
    """Return the ratio as a fraction of one. A plain number above 1 is refused: 2 might mean 2 % or 200 %."""
    if isinstance(raw, str) and (match := _PERCENT.fullmatch(raw)):
        return float(match["percent"]) / 100.0
    value = _number(raw)
    if value is None or value < 0.0:
        raise ValueError("expected a ratio such as 2% or 0.02")
    if value > 1.0:
        raise ValueError("expected a ratio of 1 at most, or a percentage with its sign")
    return value


def _number(raw: object) -> float | None:
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        return None
    try:
        return float(raw) if math.isfinite(raw) else None
    except OverflowError:
        return None


Seconds = Annotated[float, msgspec.Meta(extra={"read": seconds_of})]
"""A duration, 0 or more."""
PositiveSeconds = Annotated[float, msgspec.Meta(extra={"read": positive_seconds_of})]
"""A duration above 0."""
Ratio = Annotated[float, msgspec.Meta(extra={"read": ratio_of})]
"""A fraction of one."""
Factor = Annotated[float, msgspec.Meta(gt=0)]
"""A multiple of a learned value."""
