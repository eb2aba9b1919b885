"""The times of a run's steady iterations in bounded memory, for the medians of a report.

Times are pure as in pace.py, but of the whole run and not of the last window. They are kept by global batch size,
because a ramp-up cannot be compared with what follows. The first iteration of an attempt, and one with an evaluation or
save that cannot be subtracted, are not added.
"""

import math
from dataclasses import dataclass, field

from megatron_monitor.statistics.median import median

_KEEP = 512  # maximum stored values: all of them up to this number, then evenly spaced ones
_SIZES = 4  # stored batch sizes: the newest, the last of which is the run's final one


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
    """By global batch size (0: unknown), the newest last."""

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
