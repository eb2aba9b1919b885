"""Stragglers: one rank that stands out of its peers and stays so; nothing that differs by construction."""

from collections.abc import Iterator

import pytest

from tests.conftest import spread
from tests.monitor.playing import fault, healthy, play

SIZES: dict[str, object] = {
    "dialect": "megatron-lm", "seconds_per_iteration": 2.0, "save_interval": 0, "global_batch_size": 256, "layers": 24,
    "hidden": 2048, "heads": 16, "seed": 5, "world_size": 16, "tp": 1,
}  # fmt: skip


@pytest.mark.parametrize(("form", "pp"), spread([("ranks", 2), ("ranks", 1), ("range", 1), ("range", 4)], 2))
def test_a_rank_that_stands_out_is_told_before_iterations_are_slower(form: str, pp: int) -> None:
    """With the GPUs that wait for it; by name where each rank's time is printed."""
    more = SIZES | {"pp": pp, "timers": form}
    played = fault("straggler", 100, iterations=160, factor=1.06 if form == "ranks" else 1.12, **more)
    assert played.kinds() == {"straggler"}
    told = played.firing("straggler")
    assert told.severity in ("info", "warning")
    assert told.iteration in range(100, 126)
    assert told.evidence["gpus_waiting"] == 15
    assert told.evidence.get("rank") == (5 if form == "ranks" else None)
    assert ("rank 5 computes" in told.summary) == (form == "ranks")


@pytest.mark.parametrize(("form", "pp"), spread([("ranks", 1), ("ranks", 2), ("range", 4), ("range", 1)], 2))
def test_ranks_and_stages_that_differ_are_none(form: str, pp: int) -> None:
    """GPUs differ by their silicon, pipeline stages by what they hold."""
    assert healthy(300, **(SIZES | {"pp": pp, "timers": form})).of("straggler", quiet=True) == []


def test_a_slower_iteration_is_the_slowdowns() -> None:
    """One message for one trouble: the slowdown names the rank."""
    played = fault("slow_rank", 100, iterations=180, **(SIZES | {"pp": 1, "timers": "ranks"}))
    assert played.firing("slowdown").evidence["cause_rank"] == 5
    assert all(item.quiet or item.status == "resolved" for item in played.of("straggler", quiet=True))


ITERATION = (
    " [2026-01-01 00:00:{0:02d}.000000] iteration {0:8d}/     900 | consumed samples: {1:12d} | elapsed time per "
    "iteration (ms): 2000.0 | learning rate: 1.0E-04 | global batch size:    32 | lm loss: 3.1E+00 | loss scale: 1.0 | "
    "grad norm: 1.0 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)
REPORT = (
    " 0: INFO:megatron.core.utils:[2026-01-01 00:00:{0:02d}] | MnRtt/Rnk: 1990.08ms/8 | MxRtt/Rnk: 2001.20ms/0 | "
    "MnEtpt/Rnk: {1:.2f}TF/{2} | MxEtpt/Rnk: 297.32TF/9\n"
)


def reports(pp: int, slow: float, rank: int | None) -> Iterator[tuple[float, str]]:
    """Iteration lines with Megatron's straggler report behind each: `slow` from the twentieth on, a rank or any."""
    sizes = f"data-parallel-size: {32 // pp}, tensor-model-parallel size: 1, pipeline-model-parallel size: {pp}"
    yield 0.0, f"using world size: 32, {sizes} \n"
    for number in range(1, 60):
        least = 290.0 * (1 if number < 20 else 1 - slow)
        lowest = rank if rank is not None else number % 32
        yield 2.0 * number, ITERATION.format(number, 32 * number) + REPORT.format(number, least, lowest)


@pytest.mark.parametrize(("pp", "slow", "rank"), [(1, 0.0, 11), (1, 0.06, None), (4, 0.0, 31)])
def test_reports_of_no_straggler(pp: int, slow: float, rank: int | None) -> None:
    """A usual difference, another rank each time, and the last stage of four, which has more to do."""
    assert play(reports(pp, slow, rank)).of("straggler", quiet=True) == []
