"""The middle of some values is that of the standard library, to the last bit."""

import statistics
from random import Random

from megatron_monitor.statistics.median import median, median_high


def test_the_middle_is_the_standard_librarys() -> None:
    """Odd and even numbers of them, equal ones, large and small ones."""
    chance = Random(3)
    for count in range(1, 60):
        values = [chance.choice((1.0, 0.1, chance.random(), chance.gauss(1e9, 1.0))) for _ in range(count)]
        before = list(values)
        assert median(values) == statistics.median(values)
        assert median_high(values) == statistics.median_high(values)
        assert values == before
