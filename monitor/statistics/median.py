"""The middle of some values and how far they spread.

As the standard library's `statistics` defines them, whose import takes 8 ms of every start (fractions, random numbers).
"""

from collections.abc import Iterable

NORMAL_DEVIATIONS = 1.4826  # the median deviation of a normal series times this is its standard deviation
_NORMAL_QUARTILES = 1.349  # its interquartile range in standard deviations


def median(values: Iterable[float]) -> float:
    """The middle value, or the mean of the two in the middle. There must be one value at least."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def median_high(values: Iterable[float]) -> float:
    """The middle value, the upper one of two. There must be one value at least."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def deviation(values: Iterable[float], middle: float) -> float:
    """Standard deviation of a normal series, by the median distance from `middle`: few wild values do not move it."""
    return NORMAL_DEVIATIONS * median_high([abs(value - middle) for value in values])


def spread(values: Iterable[float]) -> float:
    """Standard deviation of a normal series, by its quartiles: a quarter of wild values on each side does not move it.
    0 for fewer than four values.
    """
    ordered = sorted(values)
    count = len(ordered)
    return (ordered[(3 * count) // 4] - ordered[count // 4]) / _NORMAL_QUARTILES if count >= 4 else 0.0
