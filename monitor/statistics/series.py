"""A long series of readings in bounded memory, and the search of a dynamic loss scale for its level. Pure."""

from msgspec import Struct, field

from megatron_monitor.statistics.median import deviation, median

_MAX_POINTS = 256  # points kept; when there are more, each two neighbours become their mean
_POINTS_PER_SLOPE = 16  # points between two computations of the slope, which takes about a millisecond


class Series(Struct):
    """Points (time, value). Each is the mean of `stride` readings; the open point has fewer so far."""

    times: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    stride: int = 1
    count: int = 0
    """Readings added."""
    open_count: int = 0
    open_time: float = 0.0
    open_value: float = 0.0
    last: float | None = None

    def add(self, time: float, value: float) -> bool:
        """Add a reading. Return True when the slope should be computed again."""
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
        if len(self.times) >= _MAX_POINTS:
            self.times, self.values = _means_of_two(self.times), _means_of_two(self.values)
            self.stride *= 2
        return len(self.times) % _POINTS_PER_SLOPE == 0

    def slope(self, begin: int = 0, end: int | None = None) -> float:
        """Return the median slope of the pairs that are half a length apart (Theil and Sen; few pairs suffice)."""
        times, values = self.times[begin:end], self.values[begin:end]
        half = len(times) // 2
        slopes = [
            (values[at + half] - values[at]) / (times[at + half] - times[at])
            for at in range(len(times) - half)
            if times[at + half] > times[at]
        ]
        return median(slopes) if slopes and half else 0.0

    def spread(self) -> float:
        """Return the standard deviation of the points from the line, robustly estimated."""
        slope = self.slope()
        residuals = [value - slope * time for time, value in zip(self.times, self.values, strict=True)]
        return deviation(residuals, median(residuals))


def _means_of_two(points: list[float]) -> list[float]:
    return [(first + second) / 2 for first, second in zip(points[::2], points[1::2], strict=True)]


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
