"""The time of an iteration where its line does not print it: differences of the line's stamp, or of the time since the
start that it prints. Pure.

Stamps of whole seconds say little of one fast iteration: the watch runs on until what it measures is long beside what
they round off. Residual risk: a clock that is put on by an hour looks like one slow iteration.
"""

from dataclasses import dataclass

_COARSE = 20.0  # seconds that stamps of whole seconds must be apart: then they are off by 5 % at the most
_FINE = 0.02  # and those of milliseconds


@dataclass(slots=True)
class Stopwatch:
    """Since when it runs: an iteration, and its moment in seconds of the log's own scale."""

    iteration: int | None = None
    moment: float | None = None
    coarse: bool = True
    """No fraction of a second was seen so far."""
    paused: bool = False
    """An evaluation goes on that began with the last lap."""

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
        last, since = self.iteration, self.moment
        took = None if since is None else moment - since
        steps = 0 if last is None else iteration - last
        if took is None or steps <= 0 or took < 0 or (disturbed and not alone):
            self.iteration, self.moment = iteration, moment
            return None
        if took < (_COARSE if self.coarse else _FINE):
            return None
        self.iteration, self.moment = iteration, moment
        return took / steps, steps

    def begin(self, moment: float | None) -> None:
        """A training begins, of which the first line may tell how many iterations it stands for."""
        if self.iteration is None:
            self.iteration, self.moment = 0, moment

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
        self.iteration = self.moment = None
        self.paused = False
