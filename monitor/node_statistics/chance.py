"""How likely chance alone makes it: exact tails of small counts. Pure.

Counts here are small (a node fails a few times a year), so that no normal approximation holds; each tail is summed.
"""

import math
from collections.abc import Iterable, Sequence


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
