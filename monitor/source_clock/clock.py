"""Places each event of one file at its time. See the package for the rules."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from megatron_monitor.parsers import events
from megatron_monitor.parsers.events import Event, LogEvent, TimeShown
from megatron_monitor.run.phases import EVALUATION, SAVE, SETUP, STEP
from megatron_monitor.source_clock.stamps import SKEW, StampScale
from megatron_monitor.source_clock.steps import ENDS, OF_ATTEMPTS, StepCounter, number_of, seconds_of

_BEGINNINGS: frozenset[type[Event]] = frozenset({events.CheckpointSaveStarted, events.CheckpointLoadStarted})
_OPEN: frozenset[type[Event]] = ((SETUP | EVALUATION | SAVE) - {events.MemoryReported}) - STEP
"""Progress at an unknown time, unless the line reports it."""
_TIMELESS = _OPEN | (STEP - {events.TrainerProgressed, events.TrainerLogged})
_MAX_WAITING = 10_000  # undated lines that wait for a dated one
_WITH_SPAN = _TIMELESS | _BEGINNINGS | OF_ATTEMPTS | STEP


@dataclass(slots=True)
class Undated:
    """An undated line and the time that it covers."""

    entry: LogEvent
    seconds: float = 0.0
    known: bool = False
    """The line reports how long it took, or took no time."""
    open: bool = False
    """The line is progress at an unknown time."""
    attempt: bool = False
    """The line is the first one of an attempt."""
    after_end: bool = False
    """An earlier line had ended the attempt before this one."""
    duration: float = 0.0
    """Seconds of the attempt's first step."""


def undated(
    steps: StepCounter, waiting: list[LogEvent], end: LogEvent | None, position: float, dated: bool
) -> list[Undated]:
    """Return the lines with the time that each covers. `position`: the time before them. `end`: the dated event after
    them. `dated`: an earlier line has printed a time.
    """
    found = [Undated(entry) for entry in waiting]
    for one, following in zip(found, _following(waiting, end), strict=True):
        event, kind = one.entry.event, type(one.entry.event)
        if kind not in _WITH_SPAN:
            continue
        one.attempt = steps.note(event)
        one.after_end = one.attempt and steps.ended
        if one.attempt:
            steps.begin()
        first = not steps.stepped
        # a bar without its first drawing may have begun at any time
        loose = isinstance(event, events.TrainerProgressed) and bool(event.elapsed_seconds) and steps.is_new_bar(event)
        reported = steps.count_seconds(event, following, position, dated)
        one.known, one.seconds = reported is not None, reported or 0.0
        position += one.seconds
        one.open = loose or (not one.known and (kind in _TIMELESS or (kind is events.TrainerLogged and not steps.bars)))
        one.duration = one.seconds if first and steps.stepped else 0.0
    _take_interruptions_out(steps, found)
    return found


def _following(waiting: list[LogEvent], end: LogEvent | None) -> list[int | None]:
    """Return, for each event, the next other iteration that is reported after it, the dated event included."""
    following: list[int | None] = []
    number = number_of(end.event) if end is not None else None
    other: int | None = None  # the next iteration that is not `number`
    for entry in reversed(waiting):
        iteration = number_of(entry.event)
        following.append(other if iteration == number else number)
        if iteration is not None and iteration != number:
            number, other = iteration, number
    following.reverse()
    return following


def _take_interruptions_out(steps: StepCounter, lines: list[Undated]) -> None:
    """Give an evaluation or save between two steps the time by which the second step exceeds the first one."""
    usual = steps.usual
    between: list[Undated] = []
    for one in lines:
        if one.attempt:
            usual, between = None, []
        elif one.seconds > 0 and number_of(one.entry.event) is not None:
            more = one.seconds - usual if usual is not None else 0.0
            if between and more > 0:
                for other in between:
                    other.seconds = more / len(between)
                one.seconds -= more
            else:
                usual = one.seconds
            between = []
        elif one.open:
            between.append(one)
    steps.usual = usual


Proof = Literal["proved", "plausible", "unknown", "no_steps"]
"""What the lines say of the silence before a line. `proved`: nothing happened. `plausible`: unlogged work of the
phase may explain it. `unknown`: it means nothing. `no_steps`: the file reports no steps (a job's `.err`)."""


class TimedEvent(LogEvent, gc=False):
    """A line's event with its time in seconds, which is Unix time if the stream is dated."""

    at: float = 0.0
    source: str = ""
    proof: Proof = "proved"
    dated: bool = True
    """The line prints its time."""
    duration: float = 0.0
    """Seconds of the iterations that the first step line of an attempt covers; 0 for other lines."""

    @classmethod
    def of(
        cls, at: float, entry: LogEvent, source: str, proof: Proof = "proved", dated: bool = True, duration: float = 0.0
    ) -> "TimedEvent":
        """Return the event with its time."""
        return cls(entry.line, entry.rule, entry.event, entry.raw, at, source, proof, dated, duration)


class SourceClock:
    """Adds times to the events of one stream. A bare stamp (`TimeShown`) counts if the next stamp agrees."""

    def __init__(self, source: str, written: float | None = None, latest: float = float("inf")) -> None:
        """`written`, `latest`: see StampScale."""
        self.steps = StepCounter()
        self.scale = StampScale(written, latest, self.steps)
        self.first_seconds = 0.0
        """Seconds of an attempt's first step, which a later line reports."""
        self._source = source
        self._waiting: list[LogEvent] = []
        self._shown: LogEvent | None = None
        self._since: list[LogEvent] = []
        self._carried = False
        """Lines of unknown time were returned before a stamp came."""

    def feed(self, entry: LogEvent) -> list[TimedEvent]:
        """Add the next event. Return the events with known times, which may be earlier ones or none."""
        raw = self.scale.moment(entry.event)
        if raw is None:
            waiting = self._waiting if self._shown is None else self._since
            waiting.append(entry)
            return self.flush() if len(self._waiting) + len(self._since) >= _MAX_WAITING else []
        settled = self._settle(raw)
        if type(entry.event) is TimeShown:
            self._shown = entry
            return settled
        return settled + self._place(entry, raw)

    def flush(self) -> list[TimedEvent]:
        """Return the events that still wait for a stamp."""
        return self._settle(None) + self._forward()

    def _settle(self, raw: float | None) -> list[TimedEvent]:
        """Use or drop the bare stamp, now that the next stamp `raw` is known."""
        shown, since = self._shown, self._since
        self._shown, self._since = None, []
        printed = self.scale.moment(shown.event) if shown is not None else None
        placed = list[TimedEvent]()
        if shown is not None and printed is not None and (raw is None or printed <= raw + SKEW):
            placed = self._place(shown, printed)
        self._waiting += since
        return placed

    def _place(self, dated: LogEvent, raw: float) -> list[TimedEvent]:
        """Return the undated events that wait, and the dated one after them, which has the stamp `raw`."""
        begin, scale = self.scale.now, self.scale
        lines = self._take_waiting(dated)
        at = scale.place(dated.event, raw, sum(one.seconds for one in lines))
        found = self._backward(lines, at) if begin is None else self._between(lines, begin, at, dated.event)
        loose = any(one.open for one in lines)
        unknown = scale.unsure or (self._carried and bool(lines) and not loose)
        self._carried = self._carried and not lines
        proof: Proof = "unknown" if unknown else "plausible" if loose else "proved"
        return [*found, self._dated(dated, at, proof)]

    def _take_waiting(self, end: LogEvent | None) -> list[Undated]:
        waiting, self._waiting = self._waiting, []
        return undated(self.steps, waiting, end, self.scale.now or 0.0, self.scale.dated) if waiting else []

    def _dated(self, entry: LogEvent, at: float, proof: Proof) -> TimedEvent:
        event = entry.event
        if self.steps.note(event):
            self.steps.begin()
        first = not self.steps.stepped
        steps = self.steps.count(event, None)
        duration = (seconds_of(event) or self.first_seconds) * steps if first and steps else 0.0
        self.scale.now, self.first_seconds = at, 0.0
        return TimedEvent.of(at, entry, self._source, proof, True, duration)

    def _forward(self) -> list[TimedEvent]:
        """Place the waiting events, with no stamp after them: each as early as possible, the first at the first known
        time.
        """
        at, lines = self.scale.now, self._take_waiting(None)
        if at is None:
            first = next((one for one in lines if one.known), None)
            if first is None:
                return [TimedEvent.of(float("inf"), one.entry, self._source, "proved", False) for one in lines]
            at, first.seconds = first.seconds, 0.0
        found = []
        for one in lines:
            at += one.seconds
            self._carried = self._carried or one.open
            found.append(self._undated(one, at, "plausible" if one.open else "proved"))
        self.scale.now = at
        return found

    def _backward(self, lines: list[Undated], end: float) -> Iterator[TimedEvent]:
        """Place events before the first stamp: as long before it as they report."""
        after = sum(one.seconds for one in lines)
        after -= next((one.seconds for one in lines if one.known), 0.0)
        timed = False
        for one in lines:
            if timed:
                after -= one.seconds
            timed = timed or one.known
            yield self._undated(one, end - max(after, 0.0), "proved")

    def _between(self, lines: list[Undated], begin: float, end: float, dated: Event) -> Iterator[TimedEvent]:
        """Place events between two stamps: by the seconds they report, and open ones in the time that is left."""
        at, slack = begin, self._slack(lines, end - begin, dated)
        # a job's `.err` counts no steps: its ends come last
        ends = [] if self.steps.counting else [one for one in lines if type(one.entry.event) in ENDS]
        # between two attempts any time may pass; what begins a save takes no time itself
        free = [one for one in lines if one.after_end] or [one for one in lines if one.open]
        free = [one for one in free if one.after_end or type(one.entry.event) not in _BEGINNINGS] or free or ends[:1]
        sharing, last = set(map(id, free)), set(map(id, ends))
        for one in lines:
            at = min(at + one.seconds + (slack / len(free) if id(one) in sharing else 0.0), end)
            proof: Proof = "plausible" if one.open and not one.attempt else "proved"
            if one.after_end:
                proof = "unknown"
            elif id(one) in last:
                proof = "no_steps"
            yield self._undated(one, at, proof)

    def _undated(self, one: Undated, at: float, proof: Proof) -> TimedEvent:
        return TimedEvent.of(at, one.entry, self._source, proof, False, one.duration)

    def _slack(self, lines: list[Undated], passed: float, dated: Event) -> float:
        """Return how many of the `passed` seconds no line explains."""
        printed = sum(one.seconds for one in lines)
        number, last = number_of(dated), 0.0
        if number is not None and number != self.steps.counted:  # else a copy
            last = (seconds_of(dated) or 0.0) * self.steps.peek(dated)
        slack = passed - printed - last
        return slack if slack >= 0 else max(0.0, passed - printed)
