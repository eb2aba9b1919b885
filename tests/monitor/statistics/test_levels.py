"""Levels: one outlier, however large, moves a sum by its clipped size."""

import pytest

from megatron_monitor.statistics.levels import level_of


@pytest.mark.parametrize("sign", [1, -1])
def test_an_outlier_of_any_size_is_clipped(sign: int) -> None:
    """Six steps of three scales add 1.5 each to one sum; a thousand scales the other way take 4 and the slack of it."""
    level = level_of([0.0] * 16, 0.01, None)
    for iteration in range(6):
        level.add(sign * 0.03, iteration)
    level.add(-sign * 10.0, 6)
    assert (level.up, level.down) == pytest.approx((3.5, 2.5) if sign > 0 else (2.5, 3.5))
