"""The timers of each iteration line: which line they belong to, and seconds of one iteration.

Megatron prints its timers behind the iteration line, averaged over the log interval. DeepSpeed's engine prints its own
before Megatron's line, each step's by itself, or summed over the steps since its last report. What a log prints on
every tenth line only belongs to that line; lines without timers have no account.
"""

from dataclasses import dataclass, field
from typing import Literal

from msgspec import Struct
from msgspec import field as member

from megatron_monitor.parsers.events import TimersReported
from megatron_monitor.parsers.timers import BETWEEN_STEPS, IGNORED, timer

_NAMES = 60  # timers of a line; programs have up to 25
_RANKS = 1024  # ranks whose time is kept, where the log prints each
_SUMMED = 1.5  # timers of DeepSpeed that make more iterations than one line's time are those of the whole interval

Across = Literal["one", "range", "maximum"]


class TimerLine(Struct, gc=False):
    """One iteration line's timers."""

    iteration: int
    seconds: float | None
    """Seconds per iteration, evaluation and saving taken out; None where they are unknown."""
    timers: dict[str, tuple[float, float]]
    """Name -> least and most over the ranks, seconds of one iteration."""
    across: Across = "one"
    ranks: dict[int, float] = member(default_factory=dict)
    """Rank -> seconds of its compute timers, where the log prints each rank's."""


@dataclass(slots=True)
class TimerReports:
    """What timers have told since the last iteration line. Everything here can be written as JSON."""

    active: bool = False
    """The log prints timers."""
    behind: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Timers of the last iteration line."""
    ahead: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Timers that stand before the line of their iteration, summed,"""
    reports: dict[str, int] = field(default_factory=dict)
    """and how often each was reported; of those of the last line, where any was summed,"""
    summed: dict[str, int] = field(default_factory=dict)
    """how often."""
    own: dict[str, tuple[float, float]] = field(default_factory=dict)
    """All parts of the iteration whose line comes next, where that line prints them itself."""
    across: Across = "one"
    ranks: dict[int, float] = field(default_factory=dict)
    last: TimerLine | None = None
    """The timers of the line that was closed last; None where it had none."""
    shown: TimerLine | None = None
    """The last ones of any line."""

    def take(self, event: TimersReported, loop_counts: bool) -> None:
        """A report of timers. `loop_counts`: the training loop's own line counts the iterations."""
        self.active = True
        if event.of_next:
            self.own = event.timers
            return
        if event.speaker == "deepspeed":
            into, reports = (self.ahead, self.reports) if loop_counts else (self.behind, self.summed)
            for name, duration in event.timers.items():
                known = into.get(name)
                if known is not None:
                    into[name] = known[0] + duration[0], known[1] + duration[1]
                    reports[name] = reports.get(name, 1) + 1
                elif len(into) < _NAMES:
                    into[name] = duration
                    reports[name] = 1
            return
        self.across = event.across
        behind = self.behind
        if len(behind) < _NAMES:
            behind.update(event.timers)
        if event.ranks:
            self._take_ranks(event)

    def _take_ranks(self, event: TimersReported) -> None:
        row = timer(next(iter(event.timers)))
        if row.category != "compute" or row.mixed:
            return
        ranks = self.ranks
        for rank, seconds in event.ranks.items():
            if rank in ranks or len(ranks) < _RANKS:
                ranks[rank] = ranks.get(rank, 0.0) + seconds

    def close(self, iteration: int | None, seconds: float | None, interval: int) -> None:
        """The next iteration line has come: `iteration`, its `seconds` and `interval` are those of the last one."""
        behind = self.behind
        self.last = None
        if behind and iteration is not None:
            timers = behind
            if not IGNORED.isdisjoint(behind):
                timers = {name: duration for name, duration in behind.items() if name not in IGNORED}
            if self.summed:
                timers = _of_one(timers, self.summed, seconds, interval)
            if timers:
                self.last = self.shown = TimerLine(iteration, seconds, timers, self.across, self.ranks)
        self.behind, self.summed = self.ahead, self.reports
        self.ahead, self.reports, self.ranks = {}, {}, {}
        if self.summed:
            self.across = "one"

    def settle(self, iteration: int, seconds: float | None) -> None:
        """The line that was closed last has printed its own parts: they are whole at once."""
        self.last = self.shown = TimerLine(iteration, seconds, self.own)
        self.own = {}


def _of_one(
    timers: dict[str, tuple[float, float]], reports: dict[str, int], seconds: float | None, interval: int
) -> dict[str, tuple[float, float]]:
    """DeepSpeed's timers as those of one iteration: a mean of its reports, or a part of a sum over the interval."""
    out = timers
    if max(reports.values()) > 1:  # else each step tells of itself
        out = {name: (low / (n := reports.get(name, 1)), high / n) for name, (low, high) in timers.items()}
    if interval > 1 and seconds:
        once = [name for name in out if reports.get(name) == 1]
        tops = [name for name in once if not any(parent in out for parent in timer(name).parent)]
        if sum(out[name][1] for name in tops) > _SUMMED * seconds:
            out = out | {name: (out[name][0] / interval, out[name][1] / interval) for name in once}
    return out


def has_step_timers(event: TimersReported) -> bool:
    """Whether a report of timers names any that is part of an iteration, or lies between two."""
    names = event.timers.keys()
    return not names <= IGNORED or not BETWEEN_STEPS.isdisjoint(names)
