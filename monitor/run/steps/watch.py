"""How long the iterations of one report took, whoever tells it: the one theory of time. Pure.

A report stands for some iterations. Their time is told by the line (printed per iteration, or as a rate), else by the
stamps of two reports, else by when they arrived. Evaluations and saves may lie inside it: `pure` takes them out, or
says that it cannot. The daemon, `replay` and `report` all come through here; for finished logs the instants are those
that monitor/source_clock/ has proved.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from monitor.run.steps.arrivals import Arrivals
from monitor.run.steps.stopwatch import Stopwatch

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
    says nothing: a backlog, a launch's first report.
    """
    behind: int
    """Of the iterations, those after the interruption; all where nothing tells."""
    timed: float
    """Seconds that timers tell of it."""


class Pure(NamedTuple):
    """What the iterations alone took."""

    seconds: float | None
    """Per iteration; None where the interruption is in it and cannot be measured."""
    exact: bool
    """To be learned from as a step: nothing lies in it, or it is long beside what an interruption is measured to."""
    interruption: float | None = None
    """Seconds that the evaluation or save took, where that was worked out."""


def pure(interval: Interval, usual: float | None) -> Pure:
    """The interval without what lies inside it. `usual`: seconds that an iteration should take at most."""
    told, count = interval.seconds, interval.iterations
    overhead, within = interval.timed, False
    if interval.arrived is not None:
        until, gap = interval.arrived
        overhead = max(overhead, _interruption(interval, until))
        # A loop that stops its timer prints less than the time from line to line. One iteration tells by itself.
        within = count > 1 and gap - told * count < 0.5 * overhead
    least = 0.5 * usual if usual is not None else _LEAST_SHARE * told
    believable = overhead > 0 and told * count - overhead >= least * count
    if usual is not None and told <= 1.05 * usual and not (within and believable):
        return Pure(told, told * count >= _LONG)  # the loop stopped its timer, or the overhead is lost in the noise
    if believable:
        seconds = (told * count - overhead) / count
        return Pure(seconds, seconds * interval.behind >= _LONG, overhead)
    return Pure(None, False, None if usual is None else (told - usual) * count)


def _interruption(interval: Interval, until: float) -> float:
    """Seconds of the evaluation or save. Where it did not come right after the report before, the iterations behind it
    tell what one takes: the rest of the line's time is theirs alone.
    """
    count, behind = interval.iterations, interval.behind
    if behind == count:
        return until
    whole = interval.seconds * count
    return max(0.0, whole - (whole - until) / behind * count)


@dataclass(slots=True)
class Watch:
    """The time since a launch's last report of a step, and what lies in it. Instants as the fold has them."""

    at: float | None = None
    """When the last report was written."""
    inside: bool = False
    """An evaluation or save came since then, and may be in the time that the next report tells."""
    until: float | None = None
    """When the last one ended."""
    iteration: int | None = None
    """After which iteration it came, where its line tells."""
    timed: float = 0.0
    """Seconds of evaluation and saving that timers told since then."""
    stamps: Stopwatch = field(default_factory=Stopwatch)
    arrivals: Arrivals = field(default_factory=Arrivals)

    def interrupt(self, at: float, iteration: int | None = None) -> None:
        """An evaluation or save went on until now, after `iteration` where its line tells."""
        self.inside, self.until = True, at
        if iteration is not None:
            self.iteration = iteration

    def interval(self, iterations: int, seconds: float, last: int | None, at: float | None) -> Interval:
        """Of a report that comes now, where something is inside. `last`: the iteration of the one before; `at` is None
        where the instant says nothing.
        """
        behind = last - self.iteration if last is not None and self.iteration is not None else iterations
        arrived = None
        if self.at is not None and self.until is not None and at is not None:
            arrived = self.until - self.at, at - self.at
        within = behind if behind in range(1, iterations) else iterations
        return Interval(iterations, seconds, arrived, within, self.timed)

    def restart(self, at: float) -> None:
        """A report has come."""
        self.at, self.inside, self.until, self.iteration, self.timed = at, False, None, None, 0.0
