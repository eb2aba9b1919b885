"""The middle of some values, as `statistics` gives it, which brings fractions and random numbers to every start."""

from __future__ import annotations

from collections.abc import Iterable


def median(values: Iterable[float]) -> float:
    """The middle value, or the mean of the two in the middle. There must be one value at least."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def median_high(values: Iterable[float]) -> float:
    """The middle value, the upper one of two. There must be one value at least."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
