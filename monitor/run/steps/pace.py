"""Learns the normal time of a run's iterations and predicts the next one.

Evaluation and saving are subtracted before a time comes here. The time depends on the batch size (a ramp-up is
planned), so that there is one window per global batch size, for the newest sizes only.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass, field

_WINDOW = 64  # remembered iterations per batch size: enough for a stable median, few enough to follow a level shift
_SIZES = 4  # remembered batch sizes: a ramp-up has many, and only the last few predict the next
_INTERVALS = (100, 50, 25, 20, 10, 5, 4, 2, 1)  # usual log intervals
HISTOGRAM_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0)
"""Seconds, from a small model on one node to 200B on a few nodes."""


def likely_interval(iteration: int) -> int:
    """Return the probable number of iterations per line, from the first reported number: programs report multiples."""
    return next(every for every in _INTERVALS if iteration % every == 0)


@dataclass(slots=True)
class Histogram:
    """Durations of a run's iterations."""

    sum_seconds: float = 0.0
    count: int = 0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(HISTOGRAM_BUCKETS) + 1))

    def add(self, seconds: float, iterations: int) -> None:
        """Add `iterations` iterations of `seconds` each."""
        self.sum_seconds += seconds * iterations
        self.count += iterations
        self.buckets[bisect_left(HISTOGRAM_BUCKETS, seconds)] += iterations


@dataclass(slots=True)
class Pace:
    """Windows of seconds per iteration by batch size (key 0: unknown) of one attempt. The next attempt may have other
    nodes.
    """

    windows: dict[int, list[float]] = field(default_factory=dict)
    last_batch_size: int = 0
    ordered: list[float] = field(default_factory=list)
    """The values of the current window in ascending order, for its median at each step."""
    middle: float = 0.0
    """Their median."""

    def add(self, seconds: float, batch_size: int | None) -> None:
        """Add the seconds of an iteration."""
        key = batch_size or 0
        window = self.windows.get(key)
        if window is None or key != self.last_batch_size:
            window = self.windows[key] = self.windows.pop(key, [])  # the newest last
            while len(self.windows) > _SIZES:
                del self.windows[next(iter(self.windows))]
            self.last_batch_size, self.ordered = key, sorted(window)
        window.append(seconds)
        insort(self.ordered, seconds)
        if len(window) > _WINDOW:
            del self.ordered[bisect_left(self.ordered, window.pop(0))]
        count = len(window)
        self.middle = (self.ordered[(count - 1) // 2] + self.ordered[count // 2]) / 2

    @property
    def window(self) -> list[float]:
        """Return the last seconds per iteration at the current batch size, the newest last."""
        return self.windows.get(self.last_batch_size, [])

    @property
    def baseline(self) -> float | None:
        """Return the median seconds per iteration at the current batch size. None before the third, because the first
        is an outlier.
        """
        return self.middle if len(self.ordered) >= 3 else None

    @property
    def band(self) -> tuple[float, float] | None:
        """Return the range of nine in ten iterations at the current batch size, relative to the baseline, such as
        (0.99, 1.02).
        """
        ordered, middle, edge = self.ordered, self.baseline, len(self.ordered) // 20
        return (ordered[edge] / middle, ordered[-1 - edge] / middle) if middle is not None and middle > 0 else None

    def predicted(self) -> float | None:
        """Return the maximum seconds of the next normal iteration: the larger of the median and the last one, so that a
        growing batch size is followed at once.
        """
        window = self.windows.get(self.last_batch_size)
        return max(self.middle, window[-1]) if window else None
