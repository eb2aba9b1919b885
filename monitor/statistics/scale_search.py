"""Whether a dynamic loss scale has found its level.

A loss scaler starts far too high (2^16 to 2^32) and halves at each step until one succeeds. That search is normal at
the start of a run, and after a restart that did not load the scaler's state.
"""

from msgspec import Struct

_CLEAN = 20  # iterations in a row without an overflow: the search has ended
_LONGEST = 60  # iterations of a launch in which a search may last: from 2^32 to 1 with hysteresis it takes 33


class ScaleSearch(Struct):
    """The search of one launch."""

    last_overflow: int = 0
    """Iterations that the launch had finished then."""
    over: bool = False

    def going_on(self, finished: int, first_line: bool, overflow: bool) -> bool:
        """Whether the scaler still searches after `finished` iterations of its launch. `first_line`: it is the launch's
        first report, which may stand for a hundred steps. `overflow`: this report shows one.
        """
        if self.over:
            return False
        if overflow:
            self.last_overflow = finished
        if not first_line and (finished - self.last_overflow >= _CLEAN or finished > _LONGEST):
            self.over = True
        return not self.over
