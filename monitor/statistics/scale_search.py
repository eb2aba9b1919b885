"""The search of a dynamic loss scale for its level. Pure."""

from msgspec import Struct

_SETTLED = 20  # iterations in a row without an overflow after which the search has ended
_MAX_SEARCH = 60  # iterations of an attempt in which a search may last: from 2^32 to 1 with hysteresis it takes 33


class ScaleSearch(Struct):
    """The search of one attempt for its loss scale: it starts far too high (2^16 to 2^32) and halves at each step until
    one succeeds. That is normal at the start of a run and after a restart without its state.
    """

    last_overflow: int = 0
    """Iterations that the attempt had finished at its last overflow."""
    over: bool = False

    def is_searching(self, finished: int, first_line: bool, overflow: bool) -> bool:
        """Return True while the scaler searches. `finished`: iterations of the attempt so far. `first_line`: it is the
        attempt's first report, which may cover a hundred steps. `overflow`: this report shows an overflow.
        """
        if self.over:
            return False
        if overflow:
            self.last_overflow = finished
        if not first_line and (finished - self.last_overflow >= _SETTLED or finished > _MAX_SEARCH):
            self.over = True
        return not self.over
