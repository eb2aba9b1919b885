"""Finds out when each line of a finished log was written, from the lines alone.

A line with a stamp is dated. An undated line was written between the dated lines around it. Its place follows from its
content: iterations, saves and watchdogs report their duration, evaluations and set-up lines share the time that no
other line explains, and a new attempt follows the end of the last one. `TimedEvent.proof` says how far the lines prove
the silence before a line: a silence without proof must not count as a hang.

A file may hold stamps of several clocks. Each clock has an offset of its own. If a clock goes back (the end of summer
time, another zone, a merged log), its offset changes, so that the time never goes back.
Pure; memory does not grow with the log.
"""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator

from megatron_monitor.parsers.events import Event, LogEvent
from megatron_monitor.run.log_clock import log_clock
from megatron_monitor.source_clock.clock import SourceClock, TimedEvent
from megatron_monitor.source_clock.steps import number_of, seconds_of

__all__ = ["SourceClock", "TimedEvent", "first_stamp_and_step", "with_times"]

_LOOK_AHEAD = 100  # events after a step that are searched for its duration


def with_times(entries: Iterable[LogEvent], clock: SourceClock) -> Iterator[TimedEvent]:
    """Yield every event at its time, in order. Events of a stream without any stamp come last (at infinity)."""
    rest, seen = iter(entries), deque[LogEvent]()
    while (entry := seen.popleft() if seen else next(rest, None)) is not None:
        if clock.steps.wants_seconds(entry.event):
            clock.first_seconds = _seconds_after(entry.event, rest, seen)
        yield from clock.feed(entry)
    yield from clock.flush()


def _seconds_after(step: Event, rest: Iterator[LogEvent], seen: deque[LogEvent]) -> float:
    """Return the duration of a step from a later line of the same step; 0 if there is none. Append the read events to
    `seen`.
    """
    for entry in itertools.islice(rest, _LOOK_AHEAD):
        seen.append(entry)
        number = number_of(entry.event)
        if number is not None:
            return (seconds_of(entry.event) or 0.0) if number == number_of(step) else 0.0
    return 0.0


def first_stamp_and_step(entries: Iterable[LogEvent]) -> tuple[float | None, int | None]:
    """Return the first full stamp (Unix seconds) and the first step among the first events of a stream."""
    moments = (log_clock(entry.event.logged_at) for entry in entries)
    steps = (number_of(entry.event) for entry in entries)
    stamp = next((moment for moment in moments if moment is not None), None)
    return stamp, next((step for step in steps if step is not None), None)
