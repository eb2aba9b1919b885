"""Reads only the time of lines such as a site's status lines and libraries' notes. They prove that time has passed.

Used for finished logs (`replay`). In the daemon the time of a line is its arrival.
"""

from collections.abc import Iterator
from typing import Any

from megatron_monitor.parsers.declared.targets import date_of, iso_of
from megatron_monitor.parsers.engine.prefixes import iso_time
from megatron_monitor.parsers.engine.scan import Line, Rule
from megatron_monitor.parsers.engine.spans import Spanned
from megatron_monitor.parsers.events import TimeShown
from megatron_monitor.parsers.patterns import lazy

# `[2022-03-21 15:14:01] PULSE: ...` has a known prefix; these have none: `2023-07-16 10:54:50.217374: I
# tensorflow/core/...`, `2024-05-01 12:00:00,123 - root - INFO - ...`, `[NeMo I 2025-03-01 10:00:00 nemo_logging:381]
# ...`
_DATE = r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?"
_FIRST = lazy(rf"[ ]{{0,4}}\[?(?:[A-Za-z]\w{{1,20}}\]?[ ](?:[A-Z][ ])?)?({_DATE})[\],:; ]")
# `07/15/2023 06:08:24 - INFO - trainer - Saving model checkpoint ...`: the format of HF's scripts
_HF = lazy(r"[ ]{0,4}(\d\d/\d\d/\d{4} \d\d:\d\d:\d\d) - [A-Z]{4,8} - ")


def read_time(line: Line) -> Iterator[Spanned]:
    """Read a timestamp at the beginning of the line."""
    origin = stamped(line)
    if "logged_at" in origin:
        yield Spanned(TimeShown, origin)


def stamped(line: Line) -> dict[str, Any]:
    """Return the line's `origin_spans`, with the timestamp at the beginning of its text if no prefix has one."""
    origin, whole = line.origin_spans, (0, len(line.text))
    if "logged_at" not in origin:
        match = _FIRST.match(line.text)
        span = line.span(match.span(1), iso_time) if match else line.span(whole, _date)
        if span.value is not None:
            origin["logged_at"] = span
    return origin


def _date(text: str) -> str | None:
    match = _HF.match(text)
    return date_of(text) or (iso_of(match[1]) if match else None)


# Anchors are searched in the line's shape, in which each digit is 0.
RULES: tuple[Rule, ...] = (Rule("stamps.time", (b" 00:00:00", b"T00:00:00"), read_time, by_shape=True),)
