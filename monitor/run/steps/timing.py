"""How long the iterations of one report took, whoever tells it: the one theory of time. Pure.

A report stands for some iterations. Their time is told by the line (printed per iteration, or as a rate), else by the
stamps of two reports, else by when they arrived. Evaluations and saves may lie inside it: `pure` takes them out, or
says that it cannot. The daemon, `replay` and `report` all come through here; for finished logs the instants are those
that monitor/source_clock/ has proved.
"""

from dataclasses import dataclass, field
from math import sqrt
from typing import NamedTuple

_COARSE = 20.0  # seconds that stamps of whole seconds must be apart: then they are off by 5 % at the most
_FINE = 0.02  # and those of milliseconds
_FEW = 3  # iterations whose mean bounds what one takes: the first of an attempt alone is no measure


@dataclass(slots=True)
class Stopwatch:
    """The time of an iteration where its line does not print it: differences of the line's stamp, or of the time since
    the start that it prints.

    Stamps of whole seconds say little of one fast iteration: the watch runs on until what it measures is long beside
    what they round off, over evaluations and saves, which it leaves out. Residual risk: a clock that is put on by an
    hour looks like one slow iteration.
    """

    iteration: int | None = None
    moment: float | None = None
    coarse: bool = True
    """No fraction of a second was seen so far."""
    paused: bool = False
    """An evaluation goes on that began with the last lap."""
    first: tuple[int, float] | None = None
    """The first report (iteration, moment),"""
    last: tuple[int, float] | None = None
    """and the last one."""
    parts: tuple[int, int, float] = (0, 0, 0.0)
    """Stretches of this lap that ended at an evaluation or a save: how many, their iterations and seconds."""

    @property
    def most(self) -> float | None:
        """Seconds per iteration since the first report, with all that lies between: one takes no more; None while too
        few are known.
        """
        if self.first is None or self.last is None or self.last[0] - self.first[0] < _FEW:
            return None
        return (self.last[1] - self.first[1] + 1.0) / (self.last[0] - self.first[0])

    def lap(
        self, iteration: int, moment: float | None, *, disturbed: bool, single: bool, stamped: bool
    ) -> tuple[float, int] | None:
        """(seconds per iteration, iterations) since the last lap; None while too little time went by.

        `disturbed`: an evaluation or a save lies between; `alone`: no other line of an iteration does;
        `stamped`: the moment is a stamp.
        """
        if moment is None:
            return None
        if stamped and moment % 1.0:
            self.coarse = False  # what a program prints of its time since the start may be rounded to any unit
        self.paused = False
        begun, since, before = self.iteration, self.moment, self.last
        self.last = iteration, moment
        if begun is None or since is None or before is None or iteration <= begun or moment < since:
            self.first, self.parts = self.last, (0, 0, 0.0)
            self.iteration, self.moment = iteration, moment
            return None
        many, steps, seconds = self.parts
        if disturbed and not (single and not many):
            if before[0] > begun:
                self.parts = many + 1, steps + before[0] - begun, seconds + before[1] - since
            self.iteration, self.moment = iteration, moment
            return None
        steps, seconds = steps + iteration - begun, seconds + moment - since
        if seconds < (_COARSE if self.coarse else _FINE) * sqrt(many + 1):  # each stretch has two ends that are rounded
            return None
        self.iteration, self.moment, self.parts = iteration, moment, (0, 0, 0.0)
        return seconds / steps, steps

    def begin(self, moment: float | None) -> None:
        """A training begins, of which the first line may tell how many iterations it stands for."""
        if self.iteration is None and moment is not None:
            self.iteration, self.moment = 0, moment
            self.first = self.last = 0, moment

    def pause(self, moment: float | None) -> None:
        """An evaluation begins, or goes on. Only one that began with the last lap can be left out: of another nobody
        knows how many iterations lie before it.
        """
        if moment is not None and self.moment is not None and 0 <= moment - self.moment < _FINE:
            self.paused = True

    def resume(self, moment: float | None) -> bool:
        """It is over: whether it is left out, so that what is measured next is iterations alone."""
        if moment is None or self.moment is None or not self.paused or moment < self.moment:
            return False
        self.moment, self.paused = moment, False
        return True

    def stop(self) -> None:
        """An attempt has ended."""
        self.iteration = self.moment = self.first = self.last = None
        self.paused, self.parts = False, (0, 0, 0.0)


_LEAST = 20.0  # seconds of a lap: looks at a file are half a second apart, and up to a twentieth of its silence
_TIMES = 20.0  # a lap over what arrivals vary by: it is off by 5 % at the most
_SINGLE = 16  # lines that must come one by one before arrivals are believed again, and whose gaps tell how they vary


@dataclass(slots=True)
class Arrivals:
    """The time of an iteration whose line prints no time at all: by when lines arrive, one by one.

    A line arrives later than it was written: after a look at the file, a flush of a buffer, a file system's cache. So a
    lap is long beside what arrivals vary by, and lines that came together, or soon after others that did, are no
    stamps. Residual risk: a cache that begins to hold single lines back by less than a step, and always by as much
    more, looks like iterations that are slower by that.
    """

    iteration: int | None = None
    moment: float = 0.0
    last_iteration: int = 0
    last_moment: float = 0.0
    gaps: list[float] = field(default_factory=list)
    """Seconds per iteration between the last single lines."""
    together: int = 0
    """Single lines that must come before arrivals are believed: some came together."""

    def lap(self, iteration: int, moment: float | None, *, disturbed: bool) -> tuple[float, int] | None:
        """(seconds per iteration, iterations) of a lap that ends; None while it goes on. `moment`: when the line came
        alone, None where that says nothing. `disturbed`: an evaluation or a save lies between it and the last one.
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
        if duration < max(_LEAST, _TIMES * (max(self.gaps) - min(self.gaps))):
            return None
        self.iteration, self.moment = iteration, moment
        return duration / (iteration - since), iteration - since


_LEAST_SHARE = 0.1  # of the time that a line tells: lines that were written out together leave next to nothing of it
_LONG = 100.0  # seconds between lines beside which the follower's delay is lost


class Interval(NamedTuple):
    """What one report says of the time since the report before, in which an evaluation or save lies."""

    iterations: int
    """It stands for so many."""
    seconds: float
    """Per iteration, as the line prints or as was measured."""
    arrived: tuple[float, float] | None
    """Seconds from the report before to the end of that interruption, and to this report, by arrival; None where that
    says nothing: a backlog, an attempt's first report.
    """
    behind: int
    """Of the iterations, those after the interruption; all where nothing tells."""
    timer_seconds: float
    """Seconds that timers tell of it."""


class NetTime(NamedTuple):
    """What the iterations alone took."""

    seconds: float | None
    """Per iteration; None where the interruption is in it and cannot be measured."""
    exact: bool
    """To be learned from as a step: nothing lies in it, or it is long beside what an interruption is measured to."""
    interruption: float | None = None
    """Seconds that the evaluation or save took, where that was worked out."""


def net_time(interval: Interval, usual: float | None) -> NetTime:
    """The interval without what lies inside it. `usual`: seconds that an iteration should take at most."""
    printed, count = interval.seconds, interval.iterations
    overhead, within = interval.timer_seconds, False
    if interval.arrived is not None:
        interrupted_until, gap = interval.arrived
        overhead = max(overhead, _interruption(interval, interrupted_until))
        # A loop that stops its timer prints less than the time from line to line. One iteration tells by itself.
        within = count > 1 and gap - printed * count < 0.5 * overhead
    least = 0.5 * usual if usual is not None else _LEAST_SHARE * printed
    believable = overhead > 0 and printed * count - overhead >= least * count
    if usual is not None and printed <= 1.05 * usual and not (within and believable):
        return NetTime(
            printed, printed * count >= _LONG
        )  # the loop stopped its timer, or the overhead is lost in the noise
    if believable:
        seconds = (printed * count - overhead) / count
        return NetTime(seconds, seconds * interval.behind >= _LONG, overhead)
    return NetTime(None, False, None if usual is None else (printed - usual) * count)


def _interruption(interval: Interval, interrupted_until: float) -> float:
    """Seconds of the evaluation or save. Where it did not come right after the report before, the iterations behind it
    tell what one takes: the rest of the line's time is theirs alone.
    """
    count, behind = interval.iterations, interval.behind
    if behind == count:
        return interrupted_until
    whole = interval.seconds * count
    return max(0.0, whole - (whole - interrupted_until) / behind * count)


@dataclass(slots=True)
class StepTimer:
    """The time since an attempt's last report of a step, and what lies in it. Instants as the fold has them."""

    at: float | None = None
    """When the last report was written."""
    interrupted: bool = False
    """An evaluation or save came since then, and may be in the time that the next report tells."""
    interrupted_until: float | None = None
    """When the last one ended."""
    iteration: int | None = None
    """After which iteration it came, where its line tells."""
    timer_seconds: float = 0.0
    """Seconds of evaluation and saving that timers told since then."""
    stamps: Stopwatch = field(default_factory=Stopwatch)
    arrivals: Arrivals = field(default_factory=Arrivals)

    def interrupt(self, at: float, iteration: int | None = None) -> None:
        """An evaluation or save went on until now, after `iteration` where its line tells."""
        self.interrupted, self.interrupted_until = True, at
        if iteration is not None:
            self.iteration = iteration

    def interval(self, iterations: int, seconds: float, last: int | None, at: float | None) -> Interval:
        """Of a report that comes now, where something is inside. `last`: the iteration of the one before; `at` is None
        where the instant says nothing.
        """
        behind = last - self.iteration if last is not None and self.iteration is not None else iterations
        arrived = None
        if self.at is not None and self.interrupted_until is not None and at is not None:
            arrived = self.interrupted_until - self.at, at - self.at
        within = behind if behind in range(1, iterations) else iterations
        return Interval(iterations, seconds, arrived, within, self.timer_seconds)

    def restart(self, at: float) -> None:
        """A report has come."""
        self.at, self.interrupted, self.timer_seconds = at, False, 0.0
        self.interrupted_until = self.iteration = None
