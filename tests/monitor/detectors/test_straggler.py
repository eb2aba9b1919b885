"""Stragglers: the rank that Megatron's reports name again and again; nothing that differs by construction."""

from collections.abc import Iterator

import pytest

from tests.monitor.playing import fault, play
from tests.simulated import printed

SIZES: dict[str, object] = {
    "format": "megatron-lm", "seconds_per_iteration": 2.0, "save_interval": 0, "global_batch_size": 256, "layers": 24,
    "hidden": 2048, "heads": 16, "seed": 5, "world_size": 16, "tp": 1,
}  # fmt: skip


def test_a_slower_iteration_is_the_slowdowns() -> None:
    """The slowdown names the rank."""
    played = fault("slow_rank", 100, iterations=180, **(SIZES | {"pp": 1, "inner": printed("ranks")}))
    assert played.firing("slowdown").evidence["cause_rank"] == 5


ITERATION = (
    " [2026-01-01 00:00:{0:02d}.000000] iteration {0:8d}/     900 | consumed samples: {1:12d} | elapsed time per "
    "iteration (ms): 2000.0 | learning rate: 1.0E-04 | global batch size:    32 | lm loss: 3.1E+00 | loss scale: 1.0 | "
    "grad norm: 1.0 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)
REPORT = (
    " 0: INFO:megatron.core.utils:[2026-01-01 00:00:{0:02d}] | MnRtt/Rnk: 1990.08ms/8 | MxRtt/Rnk: 2001.20ms/0 | "
    "MnEtpt/Rnk: {1:.2f}TF/{2} | MxEtpt/Rnk: 297.32TF/9\n"
)


NVRX = (
    "GPU relative performance:\n Worst performing 1/32 ranks:\n  Rank={2} Node=node04 Score={1:.2f}\n"
    " Best performing 1/32 ranks:\n  Rank=9 Node=node02 Score=1.00\n\n"
)


def reports(
    pp: int, slow: float, rank: int | None, report: str = REPORT, usual: float = 290.0
) -> Iterator[tuple[float, str]]:
    """Iteration lines with a straggler report behind each: `slow` from the twentieth on, a rank or any."""
    sizes = f"data-parallel-size: {32 // pp}, tensor-model-parallel size: 1, pipeline-model-parallel size: {pp}"
    yield 0.0, f"using world size: 32, {sizes} \n"
    for number in range(1, 60):
        least = usual * (1 if number < 20 else 1 - slow)
        lowest = rank if rank is not None else number % 32
        yield 2.0 * number, ITERATION.format(number, 32 * number) + report.format(number, least, lowest)


@pytest.mark.parametrize(("pp", "slow", "rank"), [(1, 0.0, 11), (1, 0.06, None), (4, 0.0, 31)])
def test_reports_of_no_straggler(pp: int, slow: float, rank: int | None) -> None:
    """A usual difference, another rank each time, and the last stage of four, which has more to do."""
    assert play(reports(pp, slow, rank)).of("straggler", display_only=True) == []


@pytest.mark.parametrize(("pp", "slow"), [(1, 0.06), (4, 0.12)])
def test_a_rank_that_lags_is_named_with_the_gpus_that_wait_for_it(pp: int, slow: float) -> None:
    """After eight reports in a row; of a pipeline by what has grown."""
    reported = play(reports(pp, slow, 31)).of("straggler", display_only=True)
    assert (reported[0].evidence["rank"], reported[0].evidence["gpus_waiting"]) == (31, 31)
    assert "rank 31 computes" in reported[0].summary


def test_reports_of_nvrx_name_a_rank() -> None:
    """Their scores are shares of the fastest rank's speed."""
    (reported, *_) = play(reports(1, 0.08, 31, NVRX, 0.99)).of("straggler", display_only=True)
    assert reported.evidence["rank"] == 31
    assert "rank 31 computes 5.4 % longer" in reported.summary  # the scores are rounded
