"""What the lines of one file say of their steps: how many iterations a line stands for, how long they took, and where a
attempt begins.
"""

from dataclasses import dataclass, field

from megatron_monitor.parsers.events import (
    ArgumentsDumped,
    CheckpointLoaded,
    CheckpointSaved,
    EngineStepLogged,
    Event,
    FailureSeen,
    IterationLogged,
    MilestoneReached,
    ProcessExited,
    ProcessTerminated,
    ProgramExited,
    TopologyLogged,
    TracebackSeen,
    TrainerProgressed,
    TrainerSummary,
    WatchdogTimedOut,
)
from megatron_monitor.run.attempts import mark_of
from megatron_monitor.run.steps.pace import likely_interval

_LONGEST_INTERVAL = 1000  # iterations between two lines that are believed
_COPY_BEHIND = 2  # iterations by which a rank's copy lags behind
ENDS: frozenset[type[Event]] = frozenset(
    {FailureSeen, ProcessExited, ProcessTerminated, ProgramExited, TrainerSummary, TracebackSeen, WatchdogTimedOut}
)
OF_ATTEMPTS: frozenset[type[Event]] = ENDS | {ArgumentsDumped, CheckpointLoaded, MilestoneReached, TopologyLogged}


@dataclass(slots=True)
class StepCounter:
    """The iterations of one file, counted."""

    interval: int | None = None
    """Iterations that a line stands for; None while unknown."""
    usual: float | None = None
    """Seconds that the last undated line of a step told, with nothing else in them."""
    counted: int | None = None
    """The last iteration of which the time was counted."""
    stepped: bool = False
    """The attempt has counted iterations."""
    counting: bool = False
    """Some attempt has."""
    ended: bool = False
    """Something has ended the attempt."""
    _last: dict[type[Event], int] = field(default_factory=dict)
    """The last iteration that each kind of line reported."""
    _started: int = 0
    """The iteration of the checkpoint that was loaded."""
    bars: dict[int | None, float] = field(default_factory=dict)
    """By a bar's total: when it began,"""
    _drawn: dict[int | None, float] = field(default_factory=dict)
    """and how long it had run when it was drawn last."""
    _elapsed: float = 0.0
    """Since the start of the training, as its last line said."""
    _waited: bool = False
    """A watchdog has told how long it waited."""

    def peek(self, event: Event) -> int:
        """Iterations that the line stands for, if it comes next."""
        number, last = number_of(event), self._last.get(type(event))
        if number is not None and last is not None and 0 < number - last <= _LONGEST_INTERVAL:
            return number - last
        return self._first_steps(number, None) if number is not None and not self.stepped else self.interval or 1

    def count(self, event: Event, following: int | None) -> int:
        """Iterations that are new with this line; `following` is the next one that is reported."""
        number, kind = number_of(event), type(event)
        if number is None:
            return 0
        last = self._last.get(kind)
        delta = number - last if self.stepped and last is not None else 0
        if 0 < -delta <= _COPY_BEHIND:
            return 0
        self._last[kind] = number
        # where the loop's own lines count the engine's do not
        is_second_source = self.stepped and kind is EngineStepLogged and IterationLogged in self._last
        if number < (kind is not IterationLogged) or is_second_source or (number == self.counted and self.stepped):
            return 0
        self.counted = number
        self.stepped, self.ended, self._waited, self.counting = True, False, False, True
        if delta <= 0:
            return self._first_steps(number, following)
        if delta > _LONGEST_INTERVAL:
            return self.interval or 1
        self.interval = delta
        return delta

    def _first_steps(self, number: int, following: int | None) -> int:
        """Iterations that the first line of an attempt stands for."""
        if number <= 0:
            return 1
        every = self.interval
        if every is None and following is not None and 0 < following - number <= _LONGEST_INTERVAL:
            every = following - number
        if every is None:
            every = likely_interval(number) if number <= _LONGEST_INTERVAL else 1
        elif number % every:
            every = 1
        done = number - self._started
        return min(every, done) if done > 0 else every

    def says(self, event: Event, following: int | None, position: float, dated: bool) -> float | None:
        """Seconds that the event took, as it says; None where it does not say."""
        kind = type(event)
        if kind is IterationLogged or kind is EngineStepLogged:
            steps = self.count(event, following)
            seconds = seconds_of(event)
            since_start = event.elapsed_seconds if isinstance(event, IterationLogged) else None
            if seconds is None and since_start is not None:
                before, self._elapsed = self._elapsed, since_start
                return max(0.0, since_start - before)
            return 0.0 if steps == 0 else None if seconds is None else seconds * steps
        if isinstance(event, TrainerProgressed):
            self.counting = True
            return self._bar(event, position, dated)
        if isinstance(event, CheckpointSaved):
            return event.seconds
        if isinstance(event, WatchdogTimedOut) and event.waited_seconds and not self._waited:
            self._waited = True
            return event.waited_seconds
        return None

    def _bar(self, event: TrainerProgressed, position: float, dated: bool) -> float:
        elapsed = event.elapsed_seconds
        if elapsed is None:
            return 0.0
        new = self.is_new_bar(event)
        self._drawn[event.total] = elapsed
        if new:
            first = not self.bars and not dated
            self.bars[event.total] = position if first else position - elapsed
        return max(0.0, self.bars[event.total] + elapsed - position)

    def is_new_bar(self, event: TrainerProgressed) -> bool:
        """Whether a bar is drawn for the first time. One of the same length that has run for less time is another
        attempt's.
        """
        elapsed, last = event.elapsed_seconds, self._drawn.get(event.total)
        return elapsed is not None and (last is None or elapsed < last)

    def note(self, event: Event) -> bool:
        """Remember what the event says of attempts. True for the first line of a new one."""
        kind = type(event)
        if kind not in OF_ATTEMPTS:
            return False
        if kind in ENDS:
            self.ended = True
        elif isinstance(event, CheckpointLoaded):
            self._started = event.iteration or 0
        elif isinstance(event, ArgumentsDumped):
            interval = event.values.get("log_interval") or event.values.get("logging_steps") or ""
            if interval.isdecimal() and len(interval) < 19 and 0 < int(interval) <= _LONGEST_INTERVAL:
                self.interval = int(interval)
        return mark_of(event) is not None and (self.stepped or self.ended)

    def begin(self) -> None:
        """An attempt begins."""
        self.stepped = self.ended = self._waited = False
        self._started, self._elapsed = 0, 0.0
        self.counted = self.usual = None
        self._last.clear()
        self.bars.clear()
        self._drawn.clear()

    def wants_seconds(self, event: Event) -> bool:
        """Whether an attempt's first step has come without the time it took, which another form of it may tell."""
        return not self.stepped and isinstance(event, EngineStepLogged) and event.step > 0 and seconds_of(event) is None


def number_of(event: Event) -> int | None:
    """Of the step that the line reports; None if it reports none by number."""
    if type(event) is IterationLogged:
        return event.iteration
    return event.step if type(event) is EngineStepLogged else None


def seconds_of(event: Event) -> float | None:
    """Per iteration, as the line prints."""
    if type(event) is IterationLogged:
        return event.seconds_per_iteration
    return event.seconds_per_step if type(event) is EngineStepLogged else None
