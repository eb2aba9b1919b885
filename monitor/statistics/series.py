"""A long series of readings in little room, its slope by Theil and Sen; whether a dynamic loss scale has found its
level. Pure, bounded, plain values.
"""

from msgspec import Struct, field

from megatron_monitor.statistics.median import deviation, median

_MOST = 256  # points kept; neighbours are averaged two by two when there are more
_EVERY = 16  # points between two looks: the slope takes about a millisecond


class Series(Struct):
    """Points (time, value), each the mean of `stride` readings."""

    times: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    stride: int = 1
    count: int = 0
    """Readings."""
    open_count: int = 0
    open_time: float = 0.0
    open_value: float = 0.0
    last: float | None = None

    def add(self, time: float, value: float) -> bool:
        """One reading; True where it is worth looking at the slope again."""
        self.count += 1
        self.last = value
        self.open_count += 1
        self.open_time += time
        self.open_value += value
        if self.open_count < self.stride:
            return False
        self.times.append(self.open_time / self.open_count)
        self.values.append(self.open_value / self.open_count)
        self.open_count, self.open_time, self.open_value = 0, 0.0, 0.0
        if len(self.times) >= _MOST:
            for name in ("times", "values"):
                points = getattr(self, name)
                setattr(self, name, [(one + two) / 2 for one, two in zip(points[::2], points[1::2], strict=True)])
            self.stride *= 2
        return len(self.times) % _EVERY == 0

    def slope(self, begin: int = 0, end: int | None = None) -> float:
        """Median over pairs half a length apart: of all pairs those show most of the slope, and they are few."""
        times, values = self.times[begin:end], self.values[begin:end]
        half = len(times) // 2
        slopes = [
            (values[at + half] - values[at]) / (times[at + half] - times[at])
            for at in range(len(times) - half)
            if times[at + half] > times[at]
        ]
        return median(slopes) if slopes and half else 0.0

    def spread(self) -> float:
        """How far points lie from the line, as a robust standard deviation."""
        slope = self.slope()
        rest = [value - slope * time for time, value in zip(self.times, self.values, strict=True)]
        return deviation(rest, median(rest))


_CLEAN = 20  # iterations in a row without an overflow: the search has ended
_LONGEST = 60  # iterations of an attempt in which a search may last: from 2^32 to 1 with hysteresis it takes 33


class ScaleSearch(Struct):
    """The search of one attempt: a loss scaler starts far too high (2^16 to 2^32) and halves at each step until one
    succeeds. That is normal at the start of a run, and after a restart that did not load the scaler's state.
    """

    last_overflow: int = 0
    """Iterations that the attempt had finished then."""
    over: bool = False

    def is_searching(self, finished: int, first_line: bool, overflow: bool) -> bool:
        """Whether the scaler still searches after `finished` iterations of its attempt. `first_line`: it is the
        attempt's first report, which may stand for a hundred steps. `overflow`: this report shows one.
        """
        if self.over:
            return False
        if overflow:
            self.last_overflow = finished
        if not first_line and (finished - self.last_overflow >= _CLEAN or finished > _LONGEST):
            self.over = True
        return not self.over
