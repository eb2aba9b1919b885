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

from megatron_monitor.parsers.events import Event, LogEvent, TimeShown
from megatron_monitor.run.log_clock import log_clock
from megatron_monitor.source_clock.clock import SourceClock, TimedEvent
from megatron_monitor.source_clock.stamps import SKEW
from megatron_monitor.source_clock.steps import number_of, seconds_of

__all__ = ["SourceClock", "TimedEvent", "Timestamper", "first_stamp_and_step", "with_times"]

_LOOK_AHEAD = 100  # events after a step that are searched for its duration
_MAX_WAITING = 10_000  # undated lines that wait for a dated one


class Timestamper:
    """Adds times to the events of one stream. A bare stamp (`TimeShown`) counts if the next stamp agrees."""

    def __init__(self, source: str, clock: SourceClock | None = None) -> None:
        self.clock = clock or SourceClock()
        self._source = source
        self._waiting: list[LogEvent] = []
        self._shown: LogEvent | None = None
        self._since: list[LogEvent] = []

    def feed(self, entry: LogEvent) -> list[TimedEvent]:
        """Add the next event. Return the events with known times, which may be earlier ones or none."""
        raw = self.clock.scale.moment(entry.event)
        if raw is None:
            waiting = self._waiting if self._shown is None else self._since
            waiting.append(entry)
            return self.flush() if len(self._waiting) + len(self._since) >= _MAX_WAITING else []
        settled = [] if self._shown is None else self._settle(raw)
        if type(entry.event) is TimeShown:
            self._shown = entry
            return settled
        return settled + self._place(entry, raw)

    def flush(self) -> list[TimedEvent]:
        """Return the events that still wait for a stamp."""
        settled = [] if self._shown is None else self._settle(None)
        return settled + self._place(None, None)

    def _settle(self, raw: float | None) -> list[TimedEvent]:
        """Use or drop the bare stamp, now that the next stamp `raw` is known."""
        shown, since = self._shown, self._since
        self._shown, self._since = None, []
        printed = self.clock.scale.moment(shown.event) if shown is not None else None
        placed = self._place(shown, printed) if printed is not None and (raw is None or printed <= raw + SKEW) else []
        self._waiting += since
        return placed

    def _place(self, entry: LogEvent | None, raw: float | None) -> list[TimedEvent]:
        waiting, self._waiting = self._waiting, []
        return self.clock.place(waiting, entry, self._source, raw)


def with_times(entries: Iterable[LogEvent], source: str, clock: SourceClock | None = None) -> Iterator[TimedEvent]:
    """Yield every event at its time, in order. Events of a stream without any stamp come last (at infinity)."""
    timestamper, rest, seen = Timestamper(source, clock), iter(entries), deque[LogEvent]()
    steps = timestamper.clock.steps
    while (entry := seen.popleft() if seen else next(rest, None)) is not None:
        if not steps.stepped and steps.wants_seconds(entry.event):
            timestamper.clock.first_seconds = _seconds_after(entry.event, rest, seen)
        yield from timestamper.feed(entry)
    yield from timestamper.flush()


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
