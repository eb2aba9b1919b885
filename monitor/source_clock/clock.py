"""Places each event of one file at its time. See the package for the rules."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from megatron_monitor.parsers import events
from megatron_monitor.parsers.events import Event, LogEvent
from megatron_monitor.run.phases import EVALUATION, SAVE, SETUP, STEP
from megatron_monitor.source_clock.stamps import StampScale
from megatron_monitor.source_clock.steps import ENDS, OF_ATTEMPTS, StepCounter, number_of, seconds_of

_BEGINNINGS: frozenset[type[Event]] = frozenset({events.CheckpointSaveStarted, events.CheckpointLoadStarted})
_OPEN: frozenset[type[Event]] = ((SETUP | EVALUATION | SAVE) - {events.MemoryReported}) - STEP
"""Progress at an unknown time, unless the line reports it."""
_TIMELESS = _OPEN | (STEP - {events.TrainerProgressed, events.TrainerLogged})
_WITH_SPAN = _TIMELESS | _BEGINNINGS | OF_ATTEMPTS | STEP


class UndatedSpan(NamedTuple):
    """The time that an undated line covers."""

    seconds: float = 0.0
    known: bool = False
    """The line reports how long it took, or took no time."""
    open: bool = False
    """The line is progress at an unknown time."""
    begins: bool = False
    """The line begins what a later line ends: it takes no time itself."""
    attempt: bool = False
    """The line is the first one of an attempt."""
    after_end: bool = False
    """An earlier line had ended the attempt before this one."""
    duration: float = 0.0
    """Seconds of the attempt's first step."""
    step: bool = False
    """The line is a step that took time."""


def spans_of(
    steps: StepCounter, waiting: list[LogEvent], end: LogEvent | None, position: float, dated: bool
) -> list[UndatedSpan]:
    """Return the span of each undated event. `position`: the time before them. `end`: the dated event after them.
    `dated`: an earlier line has printed a time.
    """
    spans: list[UndatedSpan] = []
    for entry, following in zip(waiting, _following(waiting, end), strict=True):
        event = entry.event
        kind = type(event)
        if kind not in _WITH_SPAN:
            spans.append(UndatedSpan())
            continue
        attempt, ended = steps.note(event), steps.ended
        if attempt:
            steps.begin()
        first = not steps.stepped
        # a bar without its first drawing may have begun at any time
        loose = isinstance(event, events.TrainerProgressed) and bool(event.elapsed_seconds) and steps.is_new_bar(event)
        reported = steps.count_seconds(event, following, position, dated)
        known, seconds = reported is not None, reported or 0.0
        position += seconds
        is_open = loose or (not known and (kind in _TIMELESS or (kind is events.TrainerLogged and not steps.bars)))
        duration = seconds if first and steps.stepped else 0.0
        step = seconds > 0 and kind in (events.IterationLogged, events.EngineStepLogged)
        begins = kind in _BEGINNINGS
        spans.append(UndatedSpan(seconds, known, is_open, begins, attempt, attempt and ended, duration, step))
    _take_interruptions_out(steps, spans)
    return spans


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


def _take_interruptions_out(steps: StepCounter, spans: list[UndatedSpan]) -> None:
    """Give an evaluation or save between two steps the time by which the second step exceeds the first one."""
    usual = steps.usual
    between: list[int] = []
    for index, span in enumerate(spans):
        if span.attempt:
            usual, between = None, []
        elif span.step:
            more = span.seconds - usual if usual is not None else 0.0
            if between and more > 0:
                for other in between:
                    spans[other] = spans[other]._replace(seconds=more / len(between))
                spans[index] = span._replace(seconds=span.seconds - more)
            else:
                usual = span.seconds
            between = []
        elif span.open:
            between.append(index)
    steps.usual = usual


def shares_of(spans: list[UndatedSpan], slack: float) -> list[float]:
    """Return, for each line, the seconds before it from the `slack` that no line explains."""
    shares = [0.0] * len(spans)
    if slack <= 0:
        return shares
    # between two attempts any time may pass; what begins a save takes no time itself
    after_end = [index for index, span in enumerate(spans) if span.after_end]
    open_ones = [index for index, span in enumerate(spans) if span.open]
    free = after_end or [index for index in open_ones if not spans[index].begins] or open_ones
    for index in free:
        shares[index] = slack / len(free)
    return shares


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
    """Places the lines of one file: `written`, `latest`: see StampScale."""

    def __init__(self, written: float | None = None, latest: float = float("inf")) -> None:
        self.steps = StepCounter()
        self.scale = StampScale(written, latest, self.steps)
        self.first_seconds = 0.0
        """Seconds of an attempt's first step, which a later line reports."""
        self._carried = False
        """Lines of unknown time were returned before a stamp came."""

    def place(
        self, waiting: list[LogEvent], dated: LogEvent | None, source: str, raw: float | None = None
    ) -> list[TimedEvent]:
        """Return the undated events and the dated one after them, which has the stamp `raw`. `dated` is None at the end
        of the stream, or when too many events wait.
        """
        begin, scale = self.scale.now, self.scale
        if not waiting and dated is not None and raw is not None:
            at = scale.place(dated.event, raw)
            return [self._dated(dated, at, source, "unknown" if scale.unsure else "proved")]
        spans = spans_of(self.steps, waiting, dated, begin or 0.0, scale.dated)
        if dated is None or raw is None:
            return list(self._forward(waiting, spans, source))
        printed = sum(span.seconds for span in spans)
        at = scale.place(dated.event, raw, printed)
        if begin is None:
            found = list(self._backward(waiting, spans, at, source))
        else:
            found = list(self._between(waiting, spans, begin, at, dated, source))
        carried, self._carried = self._carried, False
        loose = any(span.open for span in spans)
        unknown = scale.unsure or (carried and not loose)
        found.append(self._dated(dated, at, source, "unknown" if unknown else "plausible" if loose else "proved"))
        return found

    def _dated(self, entry: LogEvent, at: float, source: str, proof: Proof) -> TimedEvent:
        event = entry.event
        if self.steps.note(event):
            self.steps.begin()
        first = not self.steps.stepped
        steps = self.steps.count(event, None)
        duration = (seconds_of(event) or self.first_seconds) * steps if first and steps else 0.0
        self.scale.now, self.first_seconds = at, 0.0
        return TimedEvent.of(at, entry, source, proof, True, duration)

    def _forward(self, waiting: list[LogEvent], spans: list[UndatedSpan], source: str) -> Iterator[TimedEvent]:
        """Place events without a stamp after them: each as early as possible, the first at the first known time."""
        if self.scale.now is None and not any(span.known for span in spans):
            for entry in waiting:
                yield TimedEvent.of(float("inf"), entry, source, "proved", False)
            return
        at = self.scale.now
        if at is None:
            index, first = next((index, span) for index, span in enumerate(spans) if span.known)
            at, spans[index] = first.seconds, first._replace(seconds=0.0)
        for entry, span in zip(waiting, spans, strict=True):
            at += span.seconds
            self._carried = self._carried or span.open
            yield TimedEvent.of(at, entry, source, "plausible" if span.open else "proved", False, span.duration)
        self.scale.now = at

    def _backward(
        self, waiting: list[LogEvent], spans: list[UndatedSpan], end: float, source: str
    ) -> Iterator[TimedEvent]:
        """Place events before the first stamp: as long before it as they report."""
        after = sum(span.seconds for span in spans)
        after -= next((span.seconds for span in spans if span.known), 0.0)
        timed = False
        for entry, span in zip(waiting, spans, strict=True):
            if timed:
                after -= span.seconds
            timed = timed or span.known
            yield TimedEvent.of(end - max(after, 0.0), entry, source, "proved", False, span.duration)

    def _between(
        self, waiting: list[LogEvent], spans: list[UndatedSpan], begin: float, end: float, dated: LogEvent, source: str
    ) -> Iterator[TimedEvent]:
        """Place events between two stamps: by the seconds they report, and open ones in the time that is left."""
        at, slack = begin, self._slack(spans, end - begin, dated.event)
        shares = shares_of(spans, slack)
        # a job's `.err` counts no steps: its ends come last
        ends = (
            [] if self.steps.counting else [index for index, entry in enumerate(waiting) if type(entry.event) in ENDS]
        )
        if slack > 0 and ends and not any(shares):
            shares[ends[0]] = slack
        for index, (entry, span, share) in enumerate(zip(waiting, spans, shares, strict=True)):
            at = min(at + span.seconds + share, end)
            proof: Proof = "plausible" if span.open and not span.attempt else "proved"
            if span.after_end:
                proof = "unknown"
            elif index in ends:
                proof = "no_steps"
            yield TimedEvent.of(at, entry, source, proof, False, span.duration)

    def _slack(self, spans: list[UndatedSpan], passed: float, dated: Event) -> float:
        """Return how many of the `passed` seconds no line explains."""
        printed = sum(span.seconds for span in spans)
        number, last = number_of(dated), 0.0
        if number is not None and number != self.steps.counted:  # else a copy
            last = (seconds_of(dated) or 0.0) * self.steps.peek(dated)
        slack = passed - printed - last
        return slack if slack >= 0 else max(0.0, passed - printed)
