"""Lines of which only the time is read: status lines of a site, notes of libraries. Proof that time has passed.

Asked by readers of finished logs alone (`replay`): in the daemon a line's time is when it came.
"""

from collections.abc import Iterator
from typing import Any

from megatron_monitor.parsers.declared.targets import date_of, iso_of
from megatron_monitor.parsers.engine.prefixes import iso_time
from megatron_monitor.parsers.engine.scan import Line, Rule
from megatron_monitor.parsers.engine.spans import Spanned
from megatron_monitor.parsers.events import TimeShown
from megatron_monitor.parsers.patterns import lazy

# `[2022-03-21 15:14:01] PULSE: ...` is a prefix already; `2023-07-16 10:54:50.217374: I tensorflow/core/...`,
# `2024-05-01 12:00:00,123 - root - INFO - ...`, `[NeMo I 2025-03-01 10:00:00 nemo_logging:381] ...`
_DATE = r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?"
_FIRST = lazy(rf"[ ]{{0,4}}\[?(?:[A-Za-z]\w{{1,20}}\]?[ ](?:[A-Z][ ])?)?({_DATE})[\],:; ]")
# `07/15/2023 06:08:24 - INFO - trainer - Saving model checkpoint ...`: the form that HF's scripts give to logging
_HF = lazy(r"[ ]{0,4}(\d\d/\d\d/\d{4} \d\d:\d\d:\d\d) - [A-Z]{4,8} - ")


def read_time(line: Line) -> Iterator[Spanned]:
    """A stamp that begins the line."""
    origin = stamped(line)
    if "logged_at" in origin:
        yield Spanned(TimeShown, origin)


def stamped(line: Line) -> dict[str, Any]:
    """The line's `origin_spans`, with the stamp that begins its text where no prefix has one."""
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


# Anchors are looked for in the line's shape, in which every digit is 0.
RULES: tuple[Rule, ...] = (Rule("stamps.time", (b" 00:00:00", b"T00:00:00"), read_time, by_shape=True),)
