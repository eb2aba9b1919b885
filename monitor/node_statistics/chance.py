"""How likely chance alone makes it: exact tails of small counts. Pure.

Counts here are small (a node fails a few times a year), so that no normal approximation holds; each tail is summed.
"""

import math
from collections.abc import Iterable, Sequence

_PRECISION = 60  # halvings: beyond a double's digits


def binomials_tail(chances: Iterable[float], least: int) -> float:
    """P(at least `least` of independent events happen), each with its own chance (Poisson binomial)."""
    if least <= 0:
        return 1.0
    below = [1.0] + [0.0] * (least - 1)  # P(exactly k), k < least
    tail = 0.0  # summed up where it leaves the table: 1 - sum would lose what is smaller than 1e-16
    for chance in chances:
        tail += below[-1] * chance
        for k in range(least - 1, 0, -1):
            below[k] = below[k] * (1 - chance) + below[k - 1] * chance
        below[0] *= 1 - chance
    return min(1.0, tail)


def strata_tail(strata: Sequence[tuple[int, int, int]], least: int) -> float:
    """P(at least `least` marked were drawn) over tables (total, of which marked, drawn): Fisher's test, one-sided."""
    sums = [1.0]
    for total, marked, drawn in strata:
        every = math.comb(total, drawn)
        low, high = max(0, drawn + marked - total), min(marked, drawn)
        here = {k: math.comb(marked, k) * math.comb(total - marked, drawn - k) / every for k in range(low, high + 1)}
        found = [0.0] * (len(sums) + high)
        for k, chance in here.items():
            for at, before in enumerate(sums):
                found[at + k] += before * chance
        sums = found
    return min(1.0, math.fsum(sums[least:]))


def rate_interval(seen: int, expected: float, share: float = 0.95) -> tuple[float, float, float]:
    """(mean, low, high) of how many times as often as its peers: the posterior of a rate of which `seen` came where
    `expected` were due. The prior, Gamma(1, 1), says that a node is like its peers with the weight of one failure: it
    draws the rate of a node of which little is known towards 1.
    """
    shape, weight = seen + 1, expected + 1.0
    outside = (1 - share) / 2
    return shape / weight, _gamma_quantile(shape, outside) / weight, _gamma_quantile(shape, 1 - outside) / weight


def _gamma_quantile(shape: int, below: float) -> float:
    """X of a Gamma(shape, 1) with P(X <= x) = below. For a whole shape it is a sum of Poisson terms."""
    low, high = 0.0, shape + 20.0 * math.sqrt(shape) + 20.0
    for _ in range(_PRECISION):
        middle = (low + high) / 2
        term = above = math.exp(-middle)
        for k in range(1, shape):
            term *= middle / k
            above += term
        low, high = (middle, high) if 1 - above < below else (low, middle)
    return (low + high) / 2
