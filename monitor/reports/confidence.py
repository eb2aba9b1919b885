"""How sure a difference of two medians is. Pure.

Times of consecutive iterations resemble each other, so they are no independent samples: each run is cut into
consecutive blocks, and the spread of the blocks' medians gives the error of the run's own median.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

_BLOCKS = 16
_LEAST = 12  # fewer values give no answer
_Z = 1.959964  # 95 %, two sides


@dataclass(frozen=True, slots=True)
class Difference:
    """`ratio` is b over a less 1; it lies within `low` to `high` with 95 % confidence, estimated from these runs."""

    ratio: float
    low: float
    high: float

    @property
    def sure(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.low > 0 or self.high < 0


def difference(a: Sequence[float], b: Sequence[float]) -> Difference | None:
    """Of the medians of two series in the order of time; None of fewer than a dozen values each."""
    if len(a) < _LEAST or len(b) < _LEAST:
        return None
    one, other = statistics.median(a), statistics.median(b)
    if one <= 0 or other <= 0:
        return None
    (error_a, blocks_a), (error_b, blocks_b) = _error(a, one), _error(b, other)
    # medians are compared on a logarithmic scale, where their relative errors add up
    squares = error_a**2, error_b**2
    total = math.sqrt(sum(squares))
    freedom = (
        sum(squares) ** 2 / (squares[0] ** 2 / (blocks_a - 1) + squares[1] ** 2 / (blocks_b - 1)) if total else 1e9
    )
    reach = student(freedom) * total
    ratio = other / one
    return Difference(ratio - 1, ratio * math.exp(-reach) - 1, ratio * math.exp(reach) - 1)


def _error(values: Sequence[float], median: float) -> tuple[float, int]:
    """(relative standard error of the median, blocks)."""
    count = min(_BLOCKS, len(values) // 3)
    edges = [len(values) * place // count for place in range(count + 1)]
    medians = [statistics.median(values[low:high]) for low, high in pairwise(edges)]
    return statistics.stdev(medians) / math.sqrt(count) / median, count


def student(freedom: float) -> float:
    """The 97.5 % point of Student's distribution (Cornish and Fisher's expansion, within 1 % from 3 degrees on)."""
    z = _Z
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )
