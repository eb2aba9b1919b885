"""What undated lines say of their time, and how the time that no line explains is shared among them."""

from typing import NamedTuple

from monitor.run.phases import EVALUATION, SAVE, SETUP, STEP
from monitor.source_clock.steps import Steps, number_of
from parsers import events
from parsers.events import Event, LogEvent

_LAUNCH = 1800.0  # seconds from a launch's first lines to its first dated one, at the most (hang.starting)
_BEGINNINGS: frozenset[type[Event]] = frozenset({events.CheckpointSaveStarted, events.CheckpointLoadStarted})
_OPEN: frozenset[type[Event]] = ((SETUP | EVALUATION | SAVE) - {events.MemoryReported}) - STEP
"""Progress of which nobody knows when it was, if the line does not say it;"""
_TIMELESS = _OPEN | (STEP - {events.TrainerProgressed, events.TrainerLogged})
"""and steps without a time."""


class Span(NamedTuple):
    """What an undated line says of its time."""

    seconds: float
    known: bool
    """It says how long it took, or that it took no time."""
    open: bool
    """It is progress, and does not say when."""
    begins: bool
    """It begins what a later line ends: it comes at once."""
    launch: bool
    after_end: bool
    """The first line of a launch, after something had ended the one before."""
    took: float
    step: bool
    """It is a step that took time."""


def spans_of(steps: Steps, waiting: list[LogEvent], end: LogEvent | None, position: float, dated: bool) -> list[Span]:
    """What each of the undated entries says of its time. `position` is the time before them, `end` the dated entry
    behind them; `dated`: some line before has printed a time.
    """
    spans: list[Span] = []
    for entry, following in zip(waiting, _following(waiting, end), strict=True):
        event = entry.event
        kind = type(event)
        launch, ended = steps.note(event), steps.ended
        if launch:
            steps.begin()
        first = not steps.stepped
        # tqdm draws a bar as it begins; one whose beginning is not there may have begun at any time
        loose = isinstance(event, events.TrainerProgressed) and bool(event.elapsed_seconds) and steps.is_new_bar(event)
        says = steps.says(event, following, position, dated)
        known, seconds = says is not None, says or 0.0
        position += seconds
        is_open = loose or (not known and (kind in _TIMELESS or (kind is events.TrainerLogged and not steps.bars)))
        took = seconds if first and steps.stepped else 0.0
        step = kind is events.IterationLogged or kind is events.EngineStepLogged
        spans.append(
            Span(seconds, known, is_open, kind in _BEGINNINGS, launch, launch and ended, took, step and seconds > 0)
        )
    _into_steps(steps, spans)
    return spans


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


def _into_steps(steps: Steps, spans: list[Span]) -> None:
    """An evaluation or save between two steps took what the second says more than the one before it: it is in its
    time.
    """
    usual = steps.usual
    between: list[int] = []
    for index, span in enumerate(spans):
        if span.launch:
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


def shares_of(spans: list[Span], slack: float) -> list[float]:
    """Of the seconds that no line explains, those before each line."""
    shares = [0.0] * len(spans)
    if slack <= 0:
        return shares
    free = [index for index, span in enumerate(spans) if span.after_end]  # between two launches any time may pass
    if not free:
        launched = next((index for index, span in enumerate(spans) if span.launch), None)
        if launched is not None:  # the launch before ended in silence
            shares[launched] = max(0.0, slack - _LAUNCH)
            slack -= shares[launched]
        begin = 0 if launched is None else launched + 1
        free = [index for index in range(begin, len(spans)) if spans[index].open]
        free = [index for index in free if not spans[index].begins] or free
    for index in free:
        shares[index] = slack / len(free)
    return shares
