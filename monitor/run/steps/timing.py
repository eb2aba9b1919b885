"""Measures how long the iterations of one report took. Pure.

A report covers some iterations. Their time is printed (per iteration, or as a rate); else it is measured by the stamps
of two reports, else by their arrival. Evaluations and saves may lie in it: `net_time` takes them out, or returns None.
The daemon, `replay` and `report` all use this module; for finished logs the times come from monitor/source_clock/.
"""

from dataclasses import dataclass, field
from math import sqrt
from typing import NamedTuple

_MIN_COARSE = 20.0  # seconds that stamps of whole seconds must be apart, so that the error is 5 % at most
_MIN_FINE = 0.02  # the same for stamps of milliseconds
_MIN_ITERATIONS = 3  # iterations that give an upper bound for one: the first of an attempt alone is no measure


@dataclass(slots=True)
class Stopwatch:
    """Measures iterations without a printed time: by the stamps of their lines, or by the time since the start that the
    lines print.

    Stamps of whole seconds are too coarse for one fast iteration: a lap lasts until it is long compared with the
    rounding. Evaluations and saves are left out. Residual risk: a clock that is set forward by an hour looks like one
    slow iteration.
    """

    iteration: int | None = None
    """The iteration at which the lap began."""
    moment: float | None = None
    """When the lap began, seconds."""
    coarse: bool = True
    """No fraction of a second was seen so far."""
    paused: bool = False
    """An evaluation is in progress that began with the lap."""
    first: tuple[int, float] | None = None
    """The first report: (iteration, moment)."""
    last: tuple[int, float] | None = None
    """The last report: (iteration, moment)."""
    parts: tuple[int, int, float] = (0, 0, 0.0)
    """Parts of this lap that ended at an evaluation or a save: how many, their iterations and seconds."""

    @property
    def most(self) -> float | None:
        """Seconds per iteration since the first report, an upper bound for one; None while too few are known."""
        if self.first is None or self.last is None or self.last[0] - self.first[0] < _MIN_ITERATIONS:
            return None
        return (self.last[1] - self.first[1] + 1.0) / (self.last[0] - self.first[0])

    def lap(
        self, iteration: int, moment: float | None, *, disturbed: bool, single: bool, stamped: bool
    ) -> tuple[float, int] | None:
        """Add a report. Return (seconds per iteration, iterations) of a lap that ends, else None.

        `disturbed`: an evaluation or a save lies between. `single`: no other step line does. `stamped`: the moment is a
        stamp, not a printed time since the start, which may be rounded to any unit.
        """
        if moment is None:
            return None
        if stamped and moment % 1.0:
            self.coarse = False
        self.paused = False
        begun, since, before = self.iteration, self.moment, self.last
        self.last = iteration, moment
        if begun is None or since is None or before is None or iteration <= begun or moment < since:
            self.first, self.parts = self.last, (0, 0, 0.0)
            self.iteration, self.moment = iteration, moment
            return None
        count, steps, seconds = self.parts
        if disturbed and not (single and not count):
            if before[0] > begun:
                self.parts = count + 1, steps + before[0] - begun, seconds + before[1] - since
            self.iteration, self.moment = iteration, moment
            return None
        steps, seconds = steps + iteration - begun, seconds + moment - since
        if seconds < (_MIN_COARSE if self.coarse else _MIN_FINE) * sqrt(count + 1):  # both ends of a part are rounded
            return None
        self.iteration, self.moment, self.parts = iteration, moment, (0, 0, 0.0)
        return seconds / steps, steps

    def begin(self, moment: float | None) -> None:
        """Start at iteration 0 with a training whose first line says how many iterations it covers."""
        if self.iteration is None and moment is not None:
            self.iteration, self.moment = 0, moment
            self.first = self.last = 0, moment

    def pause(self, moment: float | None) -> None:
        """Note an evaluation. It can be left out only if it began with the lap."""
        if moment is not None and self.moment is not None and 0 <= moment - self.moment < _MIN_FINE:
            self.paused = True

    def resume(self, moment: float | None) -> bool:
        """Note the end of the evaluation. Return True if it is left out of the lap."""
        if moment is None or self.moment is None or not self.paused or moment < self.moment:
            return False
        self.moment, self.paused = moment, False
        return True

    def stop(self) -> None:
        """Forget all reports at the end of an attempt."""
        self.iteration = self.moment = self.first = self.last = None
        self.paused, self.parts = False, (0, 0, 0.0)


_MIN_LAP = 20.0  # seconds: polls of a file are half a second apart, and up to a twentieth of its silence
_LAP_OVER_JITTER = 20.0  # a lap over the jitter of arrivals: the error is 5 % at most
_SINGLE = 16  # lines that must arrive one by one before arrivals count again; their gaps show the jitter


@dataclass(slots=True)
class Arrivals:
    """Measures iterations without any time in their lines: by the arrival of lines that come one by one.

    A line arrives later than it was written: after a poll of the file, a flush of a buffer, a file system's cache. So a
    lap is long compared with the jitter of arrivals. Lines that come together, or soon after others that did, do not
    count. Residual risk: a cache that begins to delay single lines by less than a step, and ever more, looks like
    slower iterations.
    """

    iteration: int | None = None
    moment: float = 0.0
    last_iteration: int = 0
    last_moment: float = 0.0
    gaps: list[float] = field(default_factory=list)
    """Seconds per iteration between the last single lines."""
    together: int = 0
    """Single lines that must still come before arrivals count, as some lines came together."""

    def lap(self, iteration: int, moment: float | None, *, disturbed: bool) -> tuple[float, int] | None:
        """Add a report. Return (seconds per iteration, iterations) of a lap that ends, else None. `moment`: when the
        line arrived alone; None if its arrival means nothing. `disturbed`: an evaluation or a save lies between.
        """
        if moment is None:
            self.iteration, self.together = None, _SINGLE
            return None
        since, began = self.iteration, self.moment
        steps, passed = iteration - self.last_iteration, moment - self.last_moment
        self.last_iteration, self.last_moment = iteration, moment
        self.together = max(0, self.together - 1)
        if since is None or disturbed or steps <= 0 or passed <= 0 or self.together:
            self.iteration, self.moment = iteration, moment
            return None
        self.gaps.append(passed / steps)
        del self.gaps[:-_SINGLE]
        duration = moment - began
        if duration < max(_MIN_LAP, _LAP_OVER_JITTER * (max(self.gaps) - min(self.gaps))):
            return None
        self.iteration, self.moment = iteration, moment
        return duration / (iteration - since), iteration - since


_MIN_SHARE = 0.1  # of the printed time that must be left: lines that were written together leave next to nothing
_MIN_EXACT = 100.0  # seconds between lines compared with which the follower's delay is negligible


class Interval(NamedTuple):
    """The time since the report before, in which an evaluation or a save (the interruption) lies."""

    iterations: int
    seconds: float
    """Per iteration, printed or measured."""
    arrived: tuple[float, float] | None
    """Seconds from the arrival of the report before to the end of the interruption, and to the arrival of this report;
    None if arrivals mean nothing: in a backlog, at an attempt's first report.
    """
    behind: int
    """Iterations after the interruption; all iterations if unknown."""
    timer_seconds: float
    """Seconds of the interruption by the log's timers."""


class NetTime(NamedTuple):
    """The time of the iterations without the interruption."""

    seconds: float | None
    """Per iteration; None if the interruption is in it and cannot be measured."""
    exact: bool
    """The seconds are exact enough to be learned from."""
    interruption: float | None = None
    """Seconds of the interruption, as far as they are known."""


def net_time(interval: Interval, usual: float | None) -> NetTime:
    """Take the interruption out of an interval. `usual`: the seconds that an iteration should take at most."""
    printed, count, behind = interval.seconds, interval.iterations, interval.behind
    overhead, within = interval.timer_seconds, False
    if interval.arrived is not None:
        interruption, gap = interval.arrived
        if behind != count:  # the iterations after the interruption give the time of one: the rest is the interruption
            interruption = max(0.0, printed * count - (printed * count - interruption) / behind * count)
        overhead = max(overhead, interruption)
        # A loop that stops its timer prints less than the time from line to line. One iteration shows it by itself.
        within = count > 1 and gap - printed * count < 0.5 * overhead
    least = 0.5 * usual if usual is not None else _MIN_SHARE * printed
    plausible = overhead > 0 and printed * count - overhead >= least * count
    if usual is not None and printed <= 1.05 * usual and not (within and plausible):
        return NetTime(printed, printed * count >= _MIN_EXACT)  # the loop stopped its timer, or the overhead is noise
    if plausible:
        seconds = (printed * count - overhead) / count
        return NetTime(seconds, seconds * behind >= _MIN_EXACT, overhead)
    return NetTime(None, False, None if usual is None else (printed - usual) * count)


@dataclass(slots=True)
class StepTimer:
    """Times the interval since an attempt's last report of a step. Instants are those of the fold."""

    at: float | None = None
    """When the last report was written."""
    interrupted: bool = False
    """An evaluation or save came since then, and may be in the seconds of the next report."""
    interrupted_until: float | None = None
    """When the last interruption ended."""
    iteration: int | None = None
    """The iteration before the interruption, if its line reports it."""
    timer_seconds: float = 0.0
    """Seconds of evaluations and saves since then, by the log's timers."""
    stamps: Stopwatch = field(default_factory=Stopwatch)
    arrivals: Arrivals = field(default_factory=Arrivals)

    def interrupt(self, at: float, iteration: int | None = None) -> None:
        """Note an evaluation or save that ends now, after `iteration` if its line reports it."""
        self.interrupted, self.interrupted_until = True, at
        if iteration is not None:
            self.iteration = iteration

    def interval(self, iterations: int, seconds: float, last: int | None, at: float | None) -> Interval:
        """Return the interrupted interval of a report. `last`: the iteration of the report before. `at`: None if its
        arrival means nothing.
        """
        behind = last - self.iteration if last is not None and self.iteration is not None else iterations
        arrived = None
        if self.at is not None and self.interrupted_until is not None and at is not None:
            arrived = self.interrupted_until - self.at, at - self.at
        within = behind if behind in range(1, iterations) else iterations
        return Interval(iterations, seconds, arrived, within, self.timer_seconds)

    def restart(self, at: float) -> None:
        """Start the interval after a report."""
        self.at, self.interrupted, self.timer_seconds = at, False, 0.0
        self.interrupted_until = self.iteration = None
