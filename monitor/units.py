"""Durations and ratios as people write them: `90s`, `2%` -> floats in seconds and in parts of one.

Comes in: a scalar as YAML decodes it. Goes out: a finite float, or ValueError that says what is expected.
Law: a settings class names its unit in the annotation (`Seconds`, `Ratio`), and whoever decodes it asks the annotation.
"""

import math
import re
from typing import Annotated, Final

import msgspec

from megatron_monitor.parsers.patterns import lazy

LONGEST_SECONDS: Final = 10 * 366 * 86400.0
"""Ten years: anything longer is a slip of the unit, and the system's own waits overflow not far above."""

_SECONDS_PER: Final = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
# 1h30m, 90s, 0.5s, 500ms: each unit once, the largest first
_DURATION = lazy("".join(rf"(?:(\d{{1,9}}(?:\.\d{{1,9}})?){unit})?" for unit in _SECONDS_PER), re.ASCII)

# 2%, 0.5 %
_PERCENT = lazy(r"(?P<percent>\d{1,9}(?:\.\d{1,9})?) ?%", re.ASCII)

DURATION_FORM: Final = "a duration such as 90s, 5m or 500ms, or a number of seconds"
RATIO_FORM: Final = "a ratio such as 2% or 0.02"


def seconds_of(raw: object) -> float:
    """The seconds that `raw` means: text with units, or a plain number of seconds; never negative."""
    value = _number(raw)
    if isinstance(raw, str) and raw and (match := _DURATION.fullmatch(raw)):
        parts = zip(match.groups(), _SECONDS_PER.values(), strict=True)
        value = sum(float(number) * seconds for number, seconds in parts if number is not None)
    if value is None or value < 0.0:
        raise ValueError(f"expected {DURATION_FORM}")
    if value > LONGEST_SECONDS:
        raise ValueError("expected a duration of ten years at most")
    return value


def positive_seconds_of(raw: object) -> float:
    """As `seconds_of`, for what must pass between two looks: never 0."""
    value = seconds_of(raw)
    if value == 0.0:
        raise ValueError("expected a duration above 0")
    return value


def ratio_of(raw: object) -> float:
    """The parts of one that `raw` means. A plain number above 1 is refused: 2 might mean 2 % or 200 %."""
    if isinstance(raw, str) and (match := _PERCENT.fullmatch(raw)):
        return float(match["percent"]) / 100.0
    value = _number(raw)
    if value is None or value < 0.0:
        raise ValueError(f"expected {RATIO_FORM}")
    if value > 1.0:
        raise ValueError("expected a ratio of 1 at most, or a percentage with its sign")
    return value


def _number(raw: object) -> float | None:
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        return None
    try:
        value = float(raw)
    except OverflowError:
        return None
    return value if math.isfinite(value) else None


Seconds = Annotated[float, msgspec.Meta(extra={"read": seconds_of})]
"""A duration, 0 or more."""
PositiveSeconds = Annotated[float, msgspec.Meta(extra={"read": positive_seconds_of})]
"""A duration above 0."""
Ratio = Annotated[float, msgspec.Meta(extra={"read": ratio_of})]
"""Parts of one."""
Factor = Annotated[float, msgspec.Meta(gt=0)]
"""A multiple of something learned."""
