"""Counts the iterations of one finished log: how many a line covers, how long they took, where an attempt begins."""

from dataclasses import dataclass, field

from megatron_monitor.parsers import events
from megatron_monitor.parsers.events import EngineStepLogged, Event, IterationLogged, TrainerProgressed
from megatron_monitor.run.attempts import mark_of
from megatron_monitor.run.steps.pace import likely_interval

_MAX_INTERVAL = 1000  # plausible iterations between two lines
ENDS: frozenset[type[Event]] = frozenset(
    {events.FailureSeen, events.ProcessExited, events.ProcessTerminated, events.ProgramExited, events.TrainerSummary,
     events.TracebackSeen, events.WatchdogTimedOut}
)  # fmt: skip
OF_ATTEMPTS: frozenset[type[Event]] = ENDS | {
    events.ArgumentsDumped, events.CheckpointLoaded, events.MilestoneReached, events.TopologyLogged
}  # fmt: skip


@dataclass(slots=True)
class StepCounter:
    """The iterations of one file. Times are on the file's clock, in seconds."""

    interval: int | None = None
    """Iterations that a line covers; None while unknown."""
    usual: float | None = None
    """Seconds of the last undated step without an interruption."""
    counted: int | None = None
    """The last iteration with counted time."""
    stepped: bool = False
    """The attempt has counted iterations."""
    counting: bool = False
    """Any attempt of the file has counted iterations."""
    ended: bool = False
    """A line has ended the attempt."""
    _last: dict[type[Event], int] = field(default_factory=dict)
    """The last iteration of each kind of line."""
    _loaded: int = 0
    """The iteration of the loaded checkpoint."""
    bars: dict[int | None, tuple[float, float]] = field(default_factory=dict)
    """Total of a progress bar -> (when it began, how long it had run when it was last drawn)."""
    _elapsed: float = 0.0
    """Printed seconds since the start of the training."""
    _waited: bool = False
    """A watchdog has reported how long it waited."""

    def peek(self, event: Event) -> int:
        """Return the iterations that the line covers if it comes next."""
        number, last = number_of(event), self._last.get(type(event))
        if number is not None and last is not None and 0 < number - last <= _MAX_INTERVAL:
            return number - last
        return self._first_steps(number, None) if number is not None and not self.stepped else self.interval or 1

    def count(self, event: Event, following: int | None) -> int:
        """Count the line's new iterations and return how many they are. `following`: the next reported iteration."""
        number, kind = number_of(event), type(event)
        if number is None:
            return 0
        last = self._last.get(kind)
        delta = number - last if self.stepped and last is not None else 0
        self._last[kind] = number
        # the engine's lines do not count next to the loop's own lines
        is_second_source = self.stepped and kind is EngineStepLogged and IterationLogged in self._last
        if number < (kind is not IterationLogged) or is_second_source or (number == self.counted and self.stepped):
            return 0
        self.counted = number
        self.stepped, self.ended, self._waited, self.counting = True, False, False, True
        if delta <= 0:
            return self._first_steps(number, following)
        if delta > _MAX_INTERVAL:
            return self.interval or 1
        self.interval = delta
        return delta

    def _first_steps(self, number: int, following: int | None) -> int:
        """Return the iterations that the first line of an attempt covers."""
        if number <= 0:
            return 1
        every = self.interval
        if every is None and following is not None and 0 < following - number <= _MAX_INTERVAL:
            every = following - number
        if every is None:
            every = likely_interval(number) if number <= _MAX_INTERVAL else 1
        elif number % every:
            every = 1
        done = number - self._loaded
        return min(every, done) if done > 0 else every

    def count_seconds(self, event: Event, following: int | None, position: float, dated: bool) -> float | None:
        """Count the event and return the seconds that it took; None if it does not report them."""
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
        if isinstance(event, events.CheckpointSaved):
            return event.seconds
        if isinstance(event, events.WatchdogTimedOut) and event.waited_seconds and not self._waited:
            self._waited = True
            return event.waited_seconds
        return None

    def _bar(self, event: TrainerProgressed, position: float, dated: bool) -> float:
        elapsed = event.elapsed_seconds
        if elapsed is None:
            return 0.0
        if self.is_new_bar(event):
            began = position - elapsed if self.bars or dated else position
        else:
            began = self.bars[event.total][0]
        self.bars[event.total] = began, elapsed
        return max(0.0, began + elapsed - position)

    def is_new_bar(self, event: TrainerProgressed) -> bool:
        """Return True for the first drawing of a bar. A bar of the same length with less time is another attempt's."""
        elapsed, last = event.elapsed_seconds, self.bars.get(event.total)
        return elapsed is not None and (last is None or elapsed < last[1])

    def note(self, event: Event) -> bool:
        """Note an end, a loaded checkpoint or arguments. Return True for the first line of a new attempt."""
        kind = type(event)
        if kind not in OF_ATTEMPTS:
            return False
        if kind in ENDS:
            self.ended = True
        elif isinstance(event, events.CheckpointLoaded):
            self._loaded = event.iteration or 0
        elif isinstance(event, events.ArgumentsDumped):
            interval = event.values.get("log_interval") or event.values.get("logging_steps") or ""
            if interval.isdecimal() and len(interval) < 19 and 0 < int(interval) <= _MAX_INTERVAL:
                self.interval = int(interval)
        return mark_of(event) is not None and (self.stepped or self.ended)

    def begin(self) -> None:
        """Start a new attempt."""
        self.stepped = self.ended = self._waited = False
        self._loaded, self._elapsed = 0, 0.0
        self.counted = self.usual = None
        self._last.clear()
        self.bars.clear()

    def wants_seconds(self, event: Event) -> bool:
        """Return True for an attempt's first step without its time, which another line of the step may report."""
        return not self.stepped and isinstance(event, EngineStepLogged) and event.step > 0 and seconds_of(event) is None


def number_of(event: Event) -> int | None:
    """Return the number of the step that the line reports; None if it reports none."""
    if type(event) is IterationLogged:
        return event.iteration
    return event.step if type(event) is EngineStepLogged else None


def seconds_of(event: Event) -> float | None:
    """Return the printed seconds per iteration."""
    if type(event) is IterationLogged:
        return event.seconds_per_iteration
    return event.seconds_per_step if type(event) is EngineStepLogged else None
