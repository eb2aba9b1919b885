"""What a report draws and asks of a run beyond its state: bounded traces over iterations, and the log's last instants.

An onlooker of the fold (monitor/once.py) feeds it; nothing here is kept by the daemon.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from monitor.run.fold import log_clock
from monitor.run.state import RunState
from parsers.events import ArgumentsDumped, EngineStepLogged, IterationLogged, LogEvent, TrainerLogged

_POINTS = 600  # buckets of a trace: about one a pixel column of a plot


@dataclass(slots=True)
class Trace:
    """Lowest and highest value by bucket of iterations; buckets double when they are too many: no spike is lost."""

    buckets: list[tuple[int, float, float]] = field(default_factory=list)
    """(first iteration, lowest, highest)."""
    width: int = 1
    _filled: int = 0

    def add(self, iteration: int, value: float | None) -> None:
        """One more value; none and infinities are not drawn."""
        if value is None or not math.isfinite(value):
            return
        if self._filled and self._filled < self.width:
            first, low, high = self.buckets[-1]
            self.buckets[-1] = (first, min(low, value), max(high, value))
            self._filled += 1
        else:
            self.buckets.append((iteration, value, value))
            self._filled = 1
        if self._filled == self.width and len(self.buckets) >= _POINTS and len(self.buckets) % 2 == 0:
            pairs = zip(self.buckets[::2], self.buckets[1::2], strict=True)
            self.buckets = [(a[0], min(a[1], b[1]), max(a[2], b[2])) for a, b in pairs]
            self.width *= 2
            self._filled = self.width


@dataclass(slots=True)
class Tally:
    """Of one run: what to draw, and when its last iteration was written by the log's own clock (Unix seconds)."""

    seconds: Trace = field(default_factory=Trace)
    loss: Trace = field(default_factory=Trace)
    iterations_seen: int = 0
    last_iteration_clock: float | None = None
    arguments: dict[str, str] = field(default_factory=dict)
    """The last arguments dump."""


class Tallies:
    """By run name."""

    def __init__(self) -> None:
        self.of: dict[str, Tally] = {}

    def look(self, state: RunState, entry: LogEvent, _at: float) -> None:
        """See an event that was just folded."""
        event = entry.event
        if isinstance(event, ArgumentsDumped):
            self.of.setdefault(state.name, Tally()).arguments.update(event.values)
        if not isinstance(event, IterationLogged | EngineStepLogged | TrainerLogged):
            return
        tally = self.of.setdefault(state.name, Tally())
        if event.logged_at is not None:
            tally.last_iteration_clock = log_clock(event.logged_at)
        if state.iterations_total == tally.iterations_seen or state.latest.iteration is None:
            return
        tally.iterations_seen = state.iterations_total
        tally.seconds.add(state.latest.iteration, state.step_seconds)
        tally.loss.add(state.latest.iteration, state.latest.lm_loss)
