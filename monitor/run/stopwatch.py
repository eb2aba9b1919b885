"""The time of an iteration where its line does not print it: differences of the line's stamp, or of the time since the
start that it prints. Pure.

Stamps of whole seconds say little of one fast iteration: the watch runs on until what it measures is long beside what
they round off. Residual risk: a clock that is put on by an hour looks like one slow iteration.
"""

from __future__ import annotations

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

    def stop(self) -> None:
        """A launch has ended."""
        self.iteration = self.moment = None
