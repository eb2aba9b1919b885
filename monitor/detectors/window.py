"""The last values of a series with their order: median and spread for the price of two bisections a value.

Spread is the interquartile range in standard deviations of a normal series: like the MAD it ignores a quarter of wild
values on each side, and unlike the MAD it needs no second pass. All plain lists, so that it can be saved.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

_NORMAL_IQR = 1.349  # interquartile range of a normal series in standard deviations


@dataclass(slots=True)
class Window:
    """Values in the order in which they came, the same sorted, and at which iteration each came."""

    values: list[float] = field(default_factory=list)
    ordered: list[float] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)

    def add(self, value: float, stamp: int, size: int) -> None:
        """Take a finite value in; of more than `size` the oldest goes."""
        values, ordered = self.values, self.ordered
        values.append(value)
        self.stamps.append(stamp)
        insort(ordered, value)
        while len(values) > size:
            del ordered[bisect_left(ordered, values.pop(0))]
            del self.stamps[0]

    def before(self, stamp: int) -> None:
        """Forget what came at `stamp` or later: a restart went back behind it."""
        kept = [(value, at) for value, at in zip(self.values, self.stamps, strict=True) if at < stamp]
        self.values = [value for value, _ in kept]
        self.stamps = [at for _, at in kept]
        self.ordered = sorted(self.values)

    @property
    def median(self) -> float:
        """Of a window that is not empty."""
        return self.ordered[len(self.ordered) // 2]

    @property
    def spread(self) -> float:
        """In the values' unit; of a window that is not empty."""
        ordered = self.ordered
        count = len(ordered)
        return (ordered[(3 * count) // 4] - ordered[count // 4]) / _NORMAL_IQR


def median(values: list[float]) -> float:
    """Of a few values, at least one; the upper one of an even number."""
    return sorted(values)[len(values) // 2]
