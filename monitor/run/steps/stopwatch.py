"""The time of an iteration where its line does not print it: differences of the line's stamp, or of the time since the
start that it prints. Pure.

Stamps of whole seconds say little of one fast iteration: the watch runs on until what it measures is long beside what
they round off, over evaluations and saves, which it leaves out. Residual risk: a clock that is put on by an hour looks
like one slow iteration.
"""

from dataclasses import dataclass
from math import sqrt

_COARSE = 20.0  # seconds that stamps of whole seconds must be apart: then they are off by 5 % at the most
_FINE = 0.02  # and those of milliseconds
_FEW = 3  # iterations whose mean bounds what one takes: the first of a launch alone is no measure


@dataclass(slots=True)
class Stopwatch:
    """Since when it runs: an iteration, and its moment in seconds of the log's own scale."""

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
        self, iteration: int, moment: float | None, *, disturbed: bool, alone: bool, stamped: bool
    ) -> tuple[float, int] | None:
        """(seconds per iteration, iterations) since the last lap; None while too little time went by.

        `disturbed`: an evaluation or a save lies between; `alone`: no other line of an iteration does;
        `stamped`: the moment is a stamp.
        """
        if moment is None:
            return None
        if moment % 1.0 and stamped:
            self.coarse = False  # what a program prints of its time since the start may be rounded to any unit
        self.paused = False
        begun, since, before = self.iteration, self.moment, self.last
        self.last = iteration, moment
        if begun is None or since is None or before is None or iteration <= begun or moment < since:
            self.first, self.parts = self.last, (0, 0, 0.0)
            self.iteration, self.moment = iteration, moment
            return None
        many, steps, seconds = self.parts
        if disturbed and not (alone and not many):
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

    def go_on(self, moment: float | None) -> bool:
        """It is over: whether it is left out, so that what is measured next is iterations alone."""
        if moment is None or self.moment is None or not self.paused or moment < self.moment:
            return False
        self.moment, self.paused = moment, False
        return True

    def stop(self) -> None:
        """A launch has ended."""
        self.iteration = self.moment = self.first = self.last = None
        self.paused, self.parts = False, (0, 0, 0.0)
