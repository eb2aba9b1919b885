"""Median and spread of some values.

The standard library's `statistics` has the same functions, but its import takes 8 ms of every start.
"""

from collections.abc import Iterable

NORMAL_DEVIATIONS = 1.4826  # standard deviation over median deviation of a normal series
_NORMAL_QUARTILES = 1.349  # interquartile range over standard deviation of a normal series


def median(values: Iterable[float]) -> float:
    """Return the middle value, or the mean of the two in the middle. Needs at least one value."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def median_high(values: Iterable[float]) -> float:
    """Return the middle value, the upper one of two. Needs at least one value."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def deviation(values: Iterable[float], middle: float) -> float:
    """Estimate the standard deviation by the median distance from `middle`. Few outliers do not move the estimate."""
    return NORMAL_DEVIATIONS * median_high([abs(value - middle) for value in values])


def spread(values: Iterable[float]) -> float:
    """Estimate the standard deviation by the quartiles. Up to a quarter of outliers on each side does not move the
    estimate. 0 for fewer than four values.
    """
    ordered = sorted(values)
    count = len(ordered)
    return (ordered[(3 * count) // 4] - ordered[count // 4]) / _NORMAL_QUARTILES if count >= 4 else 0.0
