"""Bounded medians: exact while everything fits, near afterwards, the same after a restart."""

import random
import statistics

from hypothesis import given
from hypothesis import strategies as st

from megatron_monitor.run.steps.pace import SampledValues, Steady


@given(st.lists(st.floats(0.01, 1e4), min_size=1, max_size=500))
def test_exact_while_all_fit(values: list[float]) -> None:
    """Up to 512 values the median is the median."""
    sample = SampledValues()
    for value in values:
        sample.add(value)
    assert sample.median is not None
    assert abs(sample.median - statistics.median(values)) <= 1e-9 * max(values)


def test_bounded_and_near_afterwards() -> None:
    """A hundred thousand noisy iterations: 512 kept at most, the median within a tenth of the noise."""
    rng = random.Random(3)
    values = [100 * (1 + rng.gauss(0, 0.004)) for _ in range(100_000)]
    sample = SampledValues()
    for value in values:
        sample.add(value)
        assert len(sample.values) <= 512
    assert sample.seen == 100_000
    assert sample.median is not None
    assert abs(sample.median - statistics.median(values)) < 0.1
    kept = set(values[:: sample.stride])
    assert set(sample.values) <= kept
    assert len(sample.values) > 256 - 1


def test_the_planned_batch_size_stands_for_the_run() -> None:
    """The newest four sizes are kept; the planned one is chosen where it was reached, else the last."""
    steady = Steady()
    for size in (32, 64, 96, 128, 160):
        steady.add(size, float(size), None)
    assert list(steady.sizes) == [64, 96, 128, 160]
    chosen = steady.chosen(128)
    assert chosen is not None
    assert (chosen[0], chosen[1].seconds.median) == (128, 128.0)
    last = steady.chosen(2048)
    assert last is not None
    assert last[0] == 160
    unknown = Steady()
    unknown.add(None, 1.5, 20.0)
    reported = unknown.chosen(None)
    assert reported is not None
    assert (reported[0], reported[1].seconds.median, reported[1].tflops.median) == (None, 1.5, 20.0)
    assert Steady().chosen(1) is None
