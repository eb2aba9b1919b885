"""What steady iterations of a run took, kept in bounded memory for medians: the figures of a report.

Pure time only, as pace.py has it, but over the whole run and not the last window; by global batch size, since a ramp-up
is not comparable with what follows it. The first iteration of an attempt, and one whose evaluation or save cannot be
taken out, never come here.
"""

import math
from dataclasses import dataclass, field

_KEEP = 512  # values kept at most: all of them up to so many, then evenly spaced ones
_SIZES = 4  # batch sizes kept: the newest, of which the last is the one that the run was made for


@dataclass(slots=True)
class SampledValues:
    """Values, thinned to every `stride`-th so that they stay bounded; which are kept depends on their number alone."""

    values: list[float] = field(default_factory=list)
    stride: int = 1
    seen: int = 0

    def add(self, value: float) -> None:
        """One more value; not a number is none."""
        if not math.isfinite(value):
            return
        if self.seen % self.stride == 0:
            self.values.append(value)
            if len(self.values) > _KEEP:
                del self.values[1::2]
                self.stride *= 2
        self.seen += 1

    def quantile(self, share: float) -> float | None:
        """The value below which `share` of the values lie, interpolated; 0.5 is the median. None of nothing."""
        if not self.values:
            return None
        ordered = sorted(self.values)
        place = share * (len(ordered) - 1)
        low = math.floor(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

    @property
    def median(self) -> float | None:
        """The middle value."""
        return self.quantile(0.5)


@dataclass(slots=True)
class AtSize:
    """At one global batch size: seconds per iteration without evaluation and saving, and TFLOPs as printed there."""

    seconds: SampledValues = field(default_factory=SampledValues)
    tflops: SampledValues = field(default_factory=SampledValues)


@dataclass(slots=True)
class Steady:
    """By global batch size (0 where the log tells none), the newest last."""

    sizes: dict[int, AtSize] = field(default_factory=dict)

    def add(self, batch_size: int | None, seconds: float, tflops: float | None) -> None:
        """A steady iteration; `tflops` only where it was printed for this very time."""
        sizes, key = self.sizes, batch_size or 0
        at = sizes.pop(key) if key in sizes else AtSize()
        sizes[key] = at  # the newest stands last
        while len(sizes) > _SIZES:
            del sizes[next(iter(sizes))]
        at.seconds.add(seconds)
        if tflops is not None:
            at.tflops.add(tflops)

    def chosen(self, planned: int | None) -> tuple[int | None, AtSize] | None:
        """The batch size that stands for the run: the planned one if it was reached, else the one seen last."""
        if not self.sizes:
            return None
        key = planned if planned in self.sizes else next(reversed(self.sizes))
        return key or None, self.sizes[key or 0]
