"""Sums over what a log prints. Pure.

Each number of a log is bounded (parsers/engine/fields.py), a sum of many is not: beyond 64 bits the state could not be
saved. No training counts as far as the bound, so a total that stands there is known to be wrong.
"""

from collections.abc import Iterable
from typing import Final

MOST: Final = 10**18


def plus(total: int, more: int) -> int:
    """The total with more, at most MOST and at least -MOST."""
    total += more
    return total if -MOST <= total <= MOST else MOST if total > 0 else -MOST


def summed(numbers: Iterable[int]) -> int:
    """All of them, at most MOST."""
    return plus(sum(numbers), 0)
