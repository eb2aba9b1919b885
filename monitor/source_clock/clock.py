"""Each entry of one file at its time."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from megatron_monitor.parsers import events
from megatron_monitor.parsers.events import Event, LogEvent
from megatron_monitor.run.phases import EVALUATION, SAVE, SETUP, STEP
from megatron_monitor.source_clock.stamps import StampScale
from megatron_monitor.source_clock.steps import ENDS, OF_ATTEMPTS, StepCounter, number_of, seconds_of

# What undated lines say of their time, and how the time that no line explains is shared among them.

_ATTEMPT = 1800.0  # seconds from an attempt's first lines to its first dated one, at the most (hang.starting)
_BEGINNINGS: frozenset[type[Event]] = frozenset({events.CheckpointSaveStarted, events.CheckpointLoadStarted})
_OPEN: frozenset[type[Event]] = ((SETUP | EVALUATION | SAVE) - {events.MemoryReported}) - STEP
"""Progress of which nobody knows when it was, if the line does not say it;"""
_TIMELESS = _OPEN | (STEP - {events.TrainerProgressed, events.TrainerLogged})
"""and steps without a time."""


class UndatedSpan(NamedTuple):
    """What an undated line says of its time."""

    seconds: float
    known: bool
    """It says how long it took, or that it took no time."""
    open: bool
    """It is progress, and does not say when."""
    begins: bool
    """It begins what a later line ends: it comes at once."""
    attempt: bool
    after_end: bool
    """The first line of an attempt, after something had ended the one before."""
    duration: float
    step: bool
    """It is a step that took time."""


_NOTHING = UndatedSpan(
    0.0, known=False, open=False, begins=False, attempt=False, after_end=False, duration=0.0, step=False
)
_TELLING = _TIMELESS | _BEGINNINGS | OF_ATTEMPTS | STEP
"""The others say nothing of their time."""


def spans_of(
    steps: StepCounter, waiting: list[LogEvent], end: LogEvent | None, position: float, dated: bool
) -> list[UndatedSpan]:
    """What each of the undated entries says of its time. `position` is the time before them, `end` the dated entry
    behind them; `dated`: some line before has printed a time.
    """
    spans: list[UndatedSpan] = []
    for entry, following in zip(waiting, _following(waiting, end), strict=True):
        event = entry.event
        kind = type(event)
        if kind not in _TELLING:
            spans.append(_NOTHING)
            continue
        attempt, ended = steps.note(event), steps.ended
        if attempt:
            steps.begin()
        first = not steps.stepped
        loose = _is_loose(steps, event)
        says = steps.says(event, following, position, dated)
        known, seconds = says is not None, says or 0.0
        position += seconds
        is_open = loose or (not known and (kind in _TIMELESS or (kind is events.TrainerLogged and not steps.bars)))
        duration = seconds if first and steps.stepped else 0.0
        step = kind is events.IterationLogged or kind is events.EngineStepLogged
        spans.append(
            UndatedSpan(
                seconds, known, is_open, kind in _BEGINNINGS, attempt, attempt and ended, duration, step and seconds > 0
            )
        )
    _into_steps(steps, spans)
    return spans


def _is_loose(steps: StepCounter, event: Event) -> bool:
    """A bar is drawn as it begins; one whose beginning is not there may have begun at any time."""
    return isinstance(event, events.TrainerProgressed) and bool(event.elapsed_seconds) and steps.is_new_bar(event)


def _following(waiting: list[LogEvent], end: LogEvent | None) -> list[int | None]:
    """Of each entry the next other iteration that is reported behind it, up to the dated one."""
    found: list[int | None] = []
    number = number_of(end.event) if end is not None else None
    other: int | None = None  # the one behind that which is not `number`
    for entry in reversed(waiting):
        own = number_of(entry.event)
        found.append(other if own == number else number)
        if own is not None and own != number:
            number, other = own, number
    found.reverse()
    return found


def _into_steps(steps: StepCounter, spans: list[UndatedSpan]) -> None:
    """An evaluation or save between two steps took what the second says more than the one before it: it is in its
    time.
    """
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
    """Of the seconds that no line explains, those before each line."""
    shares = [0.0] * len(spans)
    if slack <= 0:
        return shares
    free = [index for index, span in enumerate(spans) if span.after_end]  # between two attempts any time may pass
    if not free:
        launched = next((index for index, span in enumerate(spans) if span.attempt), None)
        if launched is not None:  # the attempt before ended in silence
            shares[launched] = max(0.0, slack - _ATTEMPT)
            slack -= shares[launched]
        begin = 0 if launched is None else launched + 1
        free = [index for index in range(begin, len(spans)) if spans[index].open]
        free = [index for index in free if not spans[index].begins] or free
    for index in free:
        shares[index] = slack / len(free)
    return shares


Proof = Literal["proved", "lawful", "unknown", "beside"]
"""Of the silence right before a line: the lines prove it; they leave it open, within what its phase may need; it means
nothing at all; or the file tells of no step (a job's `.err`), so that it proves nothing by itself."""


class TimedEvent(LogEvent, gc=False):
    """A line's event at its time: seconds, Unix time where the source is dated."""

    at: float = 0.0
    source: str = ""
    proof: Proof = "proved"
    dated: bool = True
    """The line shows its time."""
    duration: float = 0.0
    """Seconds that the first iteration of an attempt says it took, with those before it for which it stands."""

    @classmethod
    def of(
        cls, at: float, entry: LogEvent, source: str, proof: Proof = "proved", dated: bool = True, duration: float = 0.0
    ) -> "TimedEvent":
        """The entry at its time."""
        return cls(entry.line, entry.rule, entry.event, entry.raw, at, source, proof, dated, duration)


class SourceClock:
    """Places the lines of one file: see the package's words. `written`, `latest`: as of Scale."""

    def __init__(self, written: float | None = None, latest: float = float("inf")) -> None:
        self.steps = StepCounter()
        self.scale = StampScale(written, latest, self.steps)
        self.first_seconds = 0.0
        """Of an attempt's first step, as a line behind it says."""
        self._carried = 0
        """Lines of unknown time that were given away before a stamp came."""

    def place(
        self, waiting: list[LogEvent], dated: LogEvent | None, source: str, raw: float | None = None
    ) -> list[TimedEvent]:
        """The undated entries, and the dated one that ends their silence, with its stamp (`moment`): None where the
        source, or patience, has ended.
        """
        begin, scale = self.scale.now, self.scale
        if not waiting and dated is not None and raw is not None:
            at = scale.place(dated.event, raw)
            return [self._dated(dated, at, source, "unknown" if scale.unsure else "proved")]
        spans = spans_of(self.steps, waiting, dated, begin or 0.0, scale.dated)
        if dated is None or raw is None:
            return list(self._forward(waiting, spans, source))
        printed = sum([span.seconds for span in spans])
        at = scale.place(dated.event, raw, printed)
        if begin is None:
            found = list(self._backward(waiting, spans, at, source))
        else:
            found = list(self._between(waiting, spans, begin, at, dated, source))
        carried, self._carried = self._carried, 0
        loose = any(span.open for span in spans)
        unknown = scale.unsure or (carried and not loose)
        found.append(self._dated(dated, at, source, "unknown" if unknown else "lawful" if loose else "proved"))
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
        """No stamp follows: each at the earliest. What stands before the first one that tells a time gets that time."""
        if self.scale.now is None and not any(span.known for span in spans):
            for entry in waiting:
                yield TimedEvent.of(float("inf"), entry, source, "proved", False)
            return
        at = self.scale.now
        if at is None:
            first = next(span for span in spans if span.known)
            at = first.seconds
            index = spans.index(first)
            spans[index] = first._replace(seconds=0.0)
        for entry, span in zip(waiting, spans, strict=True):
            at += span.seconds
            self._carried += span.open
            yield TimedEvent.of(at, entry, source, "lawful" if span.open else "proved", False, span.duration)
        self.scale.now = at

    def _backward(
        self, waiting: list[LogEvent], spans: list[UndatedSpan], end: float, source: str
    ) -> Iterator[TimedEvent]:
        """Before the first stamp: as long before it as they say they took."""
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
        """Between two stamps: by what they say, and what is left over where a line leaves it open."""
        at, slack = begin, self._slack(spans, end - begin, dated.event)
        if self._carried:
            share = slack * self._carried / (self._carried + sum(span.open for span in spans))
            at, slack = begin + share, slack - share
        shares = shares_of(spans, slack)
        counting = self.steps.counting  # a job's `.err` does not: its ends are at its end
        ends = [] if counting else [index for index, entry in enumerate(waiting) if type(entry.event) in ENDS]
        if slack > 0 and ends and not any(shares):
            shares[ends[0]] = slack
        jumped = at > begin
        for index, (entry, span, share) in enumerate(zip(waiting, spans, shares, strict=True)):
            at = min(at + span.seconds + share, end)
            proof: Proof = "lawful" if span.open and not span.attempt else "proved"
            if jumped or span.after_end:
                proof = "unknown"
            elif index in ends:
                proof = "beside"
            jumped = False
            yield TimedEvent.of(at, entry, source, proof, False, span.duration)

    def _slack(self, spans: list[UndatedSpan], passed: float, dated: Event) -> float:
        """The seconds of those that `passed` which no line explains."""
        printed = sum(span.seconds for span in spans)
        number, last = number_of(dated), 0.0
        if number is not None and number != self.steps.counted:  # no copy of one that has come
            last = (seconds_of(dated) or 0.0) * self.steps.peek(dated)
        slack = passed - printed - last
        return slack if slack >= 0 else max(0.0, passed - printed)
