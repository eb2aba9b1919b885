"""What a report asks of a run's events beyond what its state keeps: the whole arguments, the log's last instants.

An onlooker of the fold (monitor/once.py) feeds it; nothing here is kept by the daemon.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from monitor.run.log_clock import log_clock
from monitor.run.state import RunState
from parsers.events import ArgumentsDumped, EngineStepLogged, IterationLogged, LogEvent, TrainerLogged, TrainerSummary


@dataclass(slots=True)
class Tally:
    """Of one run."""

    last_iteration_clock: float | None = None
    """When the last iteration was written by the log's own clock, Unix seconds; None where it prints no times."""
    summary_rate: float | None = None
    """Samples per second by the Trainer's last word."""
    arguments: dict[str, str] = field(default_factory=dict)
    """The last arguments dump."""


class Tallies:
    """By run name."""

    def __init__(self) -> None:
        self.of: dict[str, Tally] = {}

    def look(self, state: RunState, entry: LogEvent, _at: float) -> None:
        """See an event that was just folded."""
        event = entry.event
        if isinstance(event, IterationLogged | EngineStepLogged | TrainerLogged):
            if event.logged_at is not None:
                self._tally(state).last_iteration_clock = log_clock(event.logged_at)
        elif isinstance(event, ArgumentsDumped):
            self._tally(state).arguments.update(event.values)
        elif isinstance(event, TrainerSummary) and event.samples_per_second:
            self._tally(state).summary_rate = event.samples_per_second

    def _tally(self, state: RunState) -> Tally:
        return self.of.setdefault(state.name, Tally())
