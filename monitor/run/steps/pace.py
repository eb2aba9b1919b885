"""The times of a run's iterations in bounded memory. `Pace` predicts the next, `Steady` is for reports.

Evaluation and saving are subtracted before a time comes here. The time depends on the batch size (a ramp-up is
planned), so that times are kept by global batch size, for the newest sizes only. The first iteration of an attempt, and
one with an evaluation or save that cannot be subtracted, are not added.
"""

import math
from bisect import bisect_left, insort
from dataclasses import dataclass, field

from megatron_monitor.statistics.median import median

_WINDOW = 64  # remembered iterations per batch size: enough for a stable median, few enough to follow a level shift
_SIZES = 4  # remembered batch sizes: a ramp-up has many, and only the last few predict the next
_KEEP = 512  # values of a sample: all of them up to this number, then evenly spaced ones
_MIN_KNOWN = 3  # iterations after which their median is normal
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
    baseline: float | None = None
    """The same from the third on, because the first one of an attempt is an outlier."""

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
        self.baseline = self.middle if count >= _MIN_KNOWN else None

    @property
    def window(self) -> list[float]:
        """Return the last seconds per iteration at the current batch size, the newest last."""
        return self.windows.get(self.last_batch_size, [])

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


@dataclass(slots=True)
class SampledValues:
    """Values thinned to each `stride`-th. Which ones are stored depends only on their number."""

    values: list[float] = field(default_factory=list)
    stride: int = 1
    seen: int = 0

    def add(self, value: float) -> None:
        """Add a value unless it is NaN."""
        if not math.isfinite(value):
            return
        if self.seen % self.stride == 0:
            self.values.append(value)
            if len(self.values) > _KEEP:
                del self.values[1::2]
                self.stride *= 2
        self.seen += 1

    @property
    def median(self) -> float | None:
        """Return the median. None: no values."""
        return median(self.values) if self.values else None


@dataclass(slots=True)
class AtSize:
    """At one global batch size: seconds per iteration without evaluation and saving, and TFLOPs as printed for them."""

    seconds: SampledValues = field(default_factory=SampledValues)
    tflops: SampledValues = field(default_factory=SampledValues)


@dataclass(slots=True)
class Steady:
    """Times of the whole run by global batch size (0: unknown), the newest last."""

    sizes: dict[int, AtSize] = field(default_factory=dict)

    def add(self, batch_size: int | None, seconds: float, tflops: float | None) -> None:
        """Add a steady iteration. `tflops` only if it was printed for this time."""
        sizes, key = self.sizes, batch_size or 0
        at = sizes.pop(key) if key in sizes else AtSize()
        sizes[key] = at  # the newest is last
        while len(sizes) > _SIZES:
            del sizes[next(iter(sizes))]
        at.seconds.add(seconds)
        if tflops is not None:
            at.tflops.add(tflops)

    def chosen(self, planned: int | None) -> tuple[int | None, AtSize] | None:
        """Return the run's representative batch size: the planned one if it was reached, else the last one."""
        if not self.sizes:
            return None
        key = planned if planned in self.sizes else next(reversed(self.sizes))
        return key or None, self.sizes[key or 0]
