"""The last values of a series, and robust figures of a few values. All plain lists, so that it can be saved."""

from __future__ import annotations

from dataclasses import dataclass, field

_NORMAL_IQR = 1.349  # interquartile range of a normal series in standard deviations


@dataclass(slots=True)
class Trace:
    """Values in the order in which they came, and at which iteration each came."""

    values: list[float] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)

    def keep(self, size: int) -> None:
        """Let the oldest go. Called now and then: values are appended plainly, which is what a million steps pay."""
        del self.values[:-size], self.stamps[:-size]

    def before(self, stamp: int) -> None:
        """Forget what came at `stamp` or later: a restart went back behind it."""
        self.values = [value for value, at in zip(self.values, self.stamps, strict=True) if at < stamp]
        self.stamps = [at for at in self.stamps if at < stamp]


def median(values: list[float]) -> float:
    """Of a few values, at least one; the upper one of an even number."""
    return sorted(values)[len(values) // 2]


def spread(values: list[float]) -> float:
    """The interquartile range in standard deviations of a normal series: a quarter of wild values on each side does not
    move it. 0 for fewer than four values.
    """
    ordered = sorted(values)
    count = len(ordered)
    return (ordered[(3 * count) // 4] - ordered[count // 4]) / _NORMAL_IQR if count >= 4 else 0.0
