"""Assigns timers to iteration lines, in seconds per iteration.

Megatron prints its timers after the iteration line, averaged over the log interval. DeepSpeed's engine prints its
timers before Megatron's line, those of each step, or sums over the steps since its last report. Timers printed with
each tenth line belong to that line only. Lines without timers have no account.
"""

from dataclasses import dataclass, field
from typing import Literal

from msgspec import Struct
from msgspec import field as member

from megatron_monitor.parsers.events import TimersReported
from megatron_monitor.parsers.timers import BETWEEN_STEPS, IGNORED, timer

_NAMES = 60  # maximum timers of a line; programs have up to 25
_RANKS = 1024  # ranks with stored times, if the log prints each rank's
_SUMMED = 1.5  # timers of DeepSpeed above this multiple of an iteration are sums over the interval

Across = Literal["one", "range", "maximum"]


class TimerLine(Struct, gc=False):
    """The timers of one iteration line."""

    iteration: int
    seconds: float | None
    """Seconds per iteration without evaluation and saving. None: unknown."""
    timers: dict[str, tuple[float, float]]
    """Name -> minimum and maximum over the ranks, in seconds per iteration."""
    across: Across = "one"
    ranks: dict[int, float] = member(default_factory=dict)
    """Rank -> seconds of its compute timers, if the log prints each rank's."""


@dataclass(slots=True)
class TimerReports:
    """The timers since the last iteration line, as JSON values."""

    printed: bool = False
    """True: the log prints timers."""
    behind: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Timers after the last iteration line."""
    ahead: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Sums of the timers before the line of their iteration."""
    reports: dict[str, int] = field(default_factory=dict)
    """Number of reports of each timer."""
    summed: dict[str, int] = field(default_factory=dict)
    """Number of reports in the last line that had sums."""
    own: dict[str, tuple[float, float]] = field(default_factory=dict)
    """All parts of the next line's iteration, if that line prints them itself."""
    across: Across = "one"
    ranks: dict[int, float] = field(default_factory=dict)
    last: TimerLine | None = None
    """Timers of the last closed line. None: it had none."""
    shown: TimerLine | None = None
    """The last timers of any line."""

    def take(self, event: TimersReported, loop_counts: bool) -> None:
        """Process a report of timers. `loop_counts`: the training loop's own line counts the iterations."""
        self.printed = True
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
        """Close the last line, because the next one came. `iteration`, `seconds` and `interval` are the last line's."""
        behind, self.last = self.behind, None
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
        """Complete the last closed line at once, because it has printed its own parts."""
        self.last = self.shown = TimerLine(iteration, seconds, self.own)
        self.own = {}


def _of_one(
    timers: dict[str, tuple[float, float]], reports: dict[str, int], seconds: float | None, interval: int
) -> dict[str, tuple[float, float]]:
    """Return DeepSpeed's timers per iteration: a mean of its reports, or a part of a sum over the interval."""
    out = timers
    if max(reports.values()) > 1:  # otherwise each report is one step's
        out = {name: (low / (n := reports.get(name, 1)), high / n) for name, (low, high) in timers.items()}
    if interval > 1 and seconds:
        once = [name for name in out if reports.get(name) == 1]
        tops = [name for name in once if not any(parent in out for parent in timer(name).parent)]
        if sum(out[name][1] for name in tops) > _SUMMED * seconds:
            out = out | {name: (out[name][0] / interval, out[name][1] / interval) for name in once}
    return out


def has_step_timers(event: TimersReported) -> bool:
    """Return True if a report has timers of an iteration or of the time between two."""
    names = event.timers.keys()
    return not names <= IGNORED or not BETWEEN_STEPS.isdisjoint(names)
