"""The arithmetic of reports, against the tables behind it."""

import pytest

from megatron_monitor.reports import columns, formulas
from megatron_monitor.reports.rows import Row


@pytest.mark.parametrize(
    ("iterations", "seconds", "days"),
    [(362000, 1, 4.1898), (362000, 10, 41.8981), (362000, 14.5, 60.7523), (362000, 162.5, 680.8449),
     (362000, 210.0, 879.8611), (95365, 769.99, 849.89)],
)  # fmt: skip
def test_days(iterations: int, seconds: float, days: float) -> None:
    """Seed 003's days, untruncated, and seed 004's."""
    assert formulas.days(iterations, None, seconds, None, None) == pytest.approx(days, abs=6e-3)
    tokens = iterations * 2048 * 2048
    assert formulas.days(None, tokens, seconds, 2048, 2048) == pytest.approx(days, abs=6e-3)


@pytest.mark.parametrize(
    ("tflops", "nodes", "petaflops"),
    [(0.99, 1, 0.00097), (1.10, 1, 0.00107), (0.90, 4, 0.00352), (0.86, 64, 0.05375), (0.59, 1024, 0.59),
     (0.86, 4, 0.00336), (0.84, 64, 0.0525), (0.76, 4, 0.00297)],
)  # fmt: skip
def test_aggregate_petaflops(tflops: float, nodes: int, petaflops: float) -> None:
    """Seed 003's rule: / 1024, a node being the unit there."""
    assert columns.petaflops(Row("cpu", "ok", tflops=tflops, gpus=nodes)) == pytest.approx(petaflops, abs=6e-6)


def test_bubble_and_scaling() -> None:
    """The shares at four micro-batches; doubling GPUs for 1.964 times the rate keeps 98.2 %."""
    shares = [round(100 * formulas.bubble(stages, 4)) for stages in (4, 8, 16, 32, 64)]
    assert shares == [43, 64, 79, 89, 94]
    base, twice = Row("a", "ok", samples_per_second=2.424, gpus=80), Row("b", "ok", samples_per_second=4.760, gpus=160)
    assert columns.efficiency(twice, base) == pytest.approx(0.982, abs=5e-4)
