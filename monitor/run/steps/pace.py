"""What an iteration of this run normally takes, learned from the run, and what the next one should take.

Pure time only: evaluation and saving are taken out before a figure comes here. Time depends on the batch size (a
ramp-up is a legal slowdown), so windows are kept per global batch size and the newest sizes only.
"""

from bisect import bisect_left
from dataclasses import dataclass, field

from megatron_monitor.statistics.median import median

_WINDOW = 64  # iterations remembered per batch size: enough for a steady median, short enough to follow a level shift
_SIZES = 4  # batch sizes remembered: a ramp-up passes through many, only the last few predict the next
_INTERVALS = (100, 50, 25, 20, 10, 5, 4, 2, 1)  # that people take
HISTOGRAM_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0)
"""Seconds: from a small model on one node to 200B on a few."""


def likely_interval(iteration: int) -> int:
    """How many iterations a line stands for, by the first number that was reported: programs report multiples."""
    return next(every for every in _INTERVALS if iteration % every == 0)


@dataclass(slots=True)
class Histogram:
    """How long the iterations of a run took."""

    sum_seconds: float = 0.0
    count: int = 0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(HISTOGRAM_BUCKETS) + 1))

    def add(self, seconds: float, iterations: int) -> None:
        """`iterations` iterations took `seconds` each."""
        self.sum_seconds += seconds * iterations
        self.count += iterations
        self.buckets[bisect_left(HISTOGRAM_BUCKETS, seconds)] += iterations


@dataclass(slots=True)
class Pace:
    """Windows of seconds per iteration by batch size (key 0 where the log tells none), of one attempt: the next may run
    on other nodes.
    """

    windows: dict[int, list[float]] = field(default_factory=dict)
    last_batch_size: int = 0
    middle: float | None = None
    """Median of the current window, once somebody has asked since the last step."""

    def add(self, seconds: float, batch_size: int | None) -> None:
        """An iteration took so long."""
        key = batch_size or 0
        window = self.windows.get(key)
        if window is None or key != self.last_batch_size:
            window = self.windows[key] = self.windows.pop(key, [])  # newest last
            while len(self.windows) > _SIZES:
                del self.windows[next(iter(self.windows))]
            self.last_batch_size = key
        window.append(seconds)
        self.middle = None
        if len(window) > 2 * _WINDOW:
            del window[:-_WINDOW]

    @property
    def window(self) -> list[float]:
        """The last seconds per iteration at the current batch size, the newest last."""
        return self.windows.get(self.last_batch_size, [])[-_WINDOW:]

    @property
    def baseline(self) -> float | None:
        """Median seconds per iteration at the current batch size; None before the third (the first is an outlier)."""
        window = self.windows.get(self.last_batch_size, ())
        return self._median() if len(window) >= 3 else None

    @property
    def band(self) -> tuple[float, float] | None:
        """What nine of ten iterations take at the current batch size, as parts of the baseline: (0.99, 1.02)."""
        ordered = sorted(self.window)
        if len(ordered) < 3:
            return None
        middle, edge = median(ordered), len(ordered) // 20
        return (ordered[edge] / middle, ordered[-1 - edge] / middle) if middle > 0 else None

    def predicted(self) -> float | None:
        """Seconds that the next iteration should take at most on a normal day: the larger of the median and the last,
        so that a batch size that grows step by step is followed at once.
        """
        window = self.windows.get(self.last_batch_size)
        if not window:
            return None
        middle, last = self._median(), window[-1]
        return last if last > middle else middle

    def _median(self) -> float:
        if self.middle is None:
            self.middle = median(self.window)
        return self.middle
