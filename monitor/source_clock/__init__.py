"""The clock of one file: when each of its lines was written, as far as the lines themselves tell.

A line with a stamp is dated. An undated line was written somewhere between the dated ones around it, and is placed by
what it says: an iteration, a save or a watchdog by its own duration, an evaluation or a set-up line in the time that
nothing else explains, a new attempt after the end of the last one. What is left open is said (`Placed.proof`): from a
silence that the lines do not prove nothing may be concluded.

Stamps of several clocks stand in one file: each is read on an offset of its own. Where a clock goes back (the end of
summer time, another zone, a doubled or merged log) its offset changes and time goes on; it never runs backwards.
Law: pure; memory does not grow with the log.
"""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator

from megatron_monitor.parsers.events import Event, LogEvent, TimeShown
from megatron_monitor.run.log_clock import log_clock
from megatron_monitor.run.phases import EVALUATION, SAVE, SETUP, STEP
from megatron_monitor.source_clock.clock import SourceClock, TimedEvent
from megatron_monitor.source_clock.stamps import SKEW
from megatron_monitor.source_clock.steps import number_of, seconds_of

__all__ = ["SilenceMeter", "SourceClock", "TimedEvent", "Timestamper", "first_stamp_and_step", "with_times"]


_LOOK_AHEAD = 100  # events behind a step in which its time is looked for
_MOST_WAITING = 10_000  # undated lines that are kept until a dated one tells more
_PROGRESS = SETUP | EVALUATION | SAVE | STEP


class Timestamper:
    """One source's entries in, the same at their times out. A bare stamp (`TimeShown`) that the next one contradicts is
    none.
    """

    def __init__(self, source: str, clock: SourceClock | None = None) -> None:
        self.clock = clock or SourceClock()
        self._source = source
        self._waiting: list[LogEvent] = []
        self._shown: LogEvent | None = None
        self._since: list[LogEvent] = []

    def feed(self, entry: LogEvent) -> list[TimedEvent]:
        """The next one. What comes out may be earlier ones, or nothing yet."""
        raw = self.clock.scale.moment(entry.event)
        if raw is None:
            waiting = self._waiting if self._shown is None else self._since
            waiting.append(entry)
            return self.flush() if len(self._waiting) + len(self._since) >= _MOST_WAITING else []
        settled = [] if self._shown is None else self._settle(raw)
        if type(entry.event) is TimeShown:
            self._shown = entry
            return settled
        placed = self._place(entry, raw)
        return settled + placed if settled else placed

    def flush(self) -> list[TimedEvent]:
        """What waits for a stamp."""
        settled = [] if self._shown is None else self._settle(None)
        return settled + self._place(None)

    def _settle(self, raw: float | None) -> list[TimedEvent]:
        """The bare stamp, now that the next one is known."""
        shown, since = self._shown, self._since
        self._shown, self._since = None, []
        printed = self.clock.scale.moment(shown.event) if shown is not None else None
        placed = self._place(shown, printed) if printed is not None and (raw is None or printed <= raw + SKEW) else []
        self._waiting += since
        return placed

    def _place(self, entry: LogEvent | None, raw: float | None = None) -> list[TimedEvent]:
        """What waits, and the dated entry behind it."""
        waiting, self._waiting = self._waiting, []
        return self.clock.place(waiting, entry, self._source, raw)


def with_times(entries: Iterable[LogEvent], source: str, clock: SourceClock | None = None) -> Iterator[TimedEvent]:
    """Every entry at its time, in order. A source that never shows one stands at the end of the others (infinity)."""
    dating, rest, seen = Timestamper(source, clock), iter(entries), deque[LogEvent]()
    steps = dating.clock.steps
    while (entry := seen.popleft() if seen else next(rest, None)) is not None:
        if not steps.stepped and steps.wants_seconds(entry.event):
            dating.clock.first_seconds = _seconds_behind(entry.event, rest, seen)
        yield from dating.feed(entry)
    yield from dating.flush()


def _seconds_behind(step: Event, rest: Iterator[LogEvent], seen: deque[LogEvent]) -> float:
    """Of the same step, as a line close behind says; 0 if none does. What was looked at is put behind `seen`."""
    for entry in itertools.islice(rest, _LOOK_AHEAD):
        seen.append(entry)
        number = number_of(entry.event)
        if number is not None:
            return (seconds_of(entry.event) or 0.0) if number == number_of(step) else 0.0
    return 0.0


def first_stamp_and_step(entries: Iterable[LogEvent]) -> tuple[float | None, int | None]:
    """Of the first entries of a source: the first full stamp, and the first step."""
    moments = (log_clock(entry.event.logged_at) for entry in entries)
    steps = (number_of(entry.event) for entry in entries)
    stamp = next((moment for moment in moments if moment is not None), None)
    return stamp, next((step for step in steps if step is not None), None)


class SilenceMeter:
    """Of one source: how long it has shown no progress, as far as its lines prove it."""

    def __init__(self, source: str) -> None:
        self._dating = Timestamper(source)
        self.progress_at: float | None = None
        """The last time at which progress may have been."""
        self.last_at: float | None = None
        """The last time that is known."""

    def see(self, entry: LogEvent) -> None:
        """The source's next entry."""
        for placed in self._dating.feed(entry):
            self._take(placed)

    def close(self) -> None:
        """No more will come."""
        for placed in self._dating.flush():
            self._take(placed)

    def _take(self, placed: TimedEvent) -> None:
        if not self._dating.clock.scale.dated or placed.at == float("inf"):
            return
        self.last_at = placed.at
        if type(placed.event) in _PROGRESS or (placed.dated and placed.proof != "proved"):
            self.progress_at = placed.at
