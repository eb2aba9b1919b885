"""The ramp-up planner: BigScience's schedules and rules (seed 000, seed 004), and Megatron's own counting."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_monitor.reports.planner import Ramp, largest, layouts, problem
from megatron_monitor.simulate import Scenario


@pytest.mark.parametrize(
    ("batch", "mbs", "tp", "pp", "per_node", "replicas", "gpus", "nodes"),
    [
        (32, 1, 1, 1, 4, 32, 32, 8),
        (64, 1, 1, 1, 4, 64, 64, 16),
        (128, 1, 1, 1, 4, 128, 128, 32),
        (32, 4, 1, 2, 4, 8, 16, 4),
        (32, 2, 1, 2, 4, 16, 32, 8),
        (32, 1, 1, 2, 4, 32, 64, 16),
        (64, 2, 1, 2, 4, 32, 64, 16),
        (128, 4, 1, 2, 4, 32, 64, 16),
        (256, 4, 1, 2, 4, 64, 128, 32),
        (512, 4, 1, 2, 4, 128, 256, 64),
    ],
)
def test_most_that_a_batch_size_feeds(
    batch: int, mbs: int, tp: int, pp: int, per_node: int, replicas: int, gpus: int, nodes: int
) -> None:
    """The eight schedule rows and the two statements of seed 000."""
    fit = largest(batch, mbs, tp, pp, per_node)
    assert fit is not None
    assert (fit["replicas"], fit["gpus"], fit["nodes"]) == (replicas, gpus, nodes)
    assert largest(batch, 3, tp, pp, per_node) is None  # BS / MBS is exact division


@pytest.mark.parametrize(
    ("dp", "mbs", "gbs", "wrong"),
    [
        (4, 8, 2048, None),
        (8, 4, 2048, None),
        (4, 2, 2048, None),
        (8, 8, 2048, "batch size 32 % (MBS 8 x DP 8 = 64) = 32"),
        (8, 6, 2016, "batch size 32 % (MBS 6 x DP 8 = 48) = 32"),
        (12, 1, 2016, "batch size 32 % (MBS 1 x DP 12 = 12) = 8"),
    ],
)
def test_layouts_of_seed_004_that_can_and_cannot_ramp(dp: int, mbs: int, gbs: int, wrong: str | None) -> None:
    """Start = increment = 32: MBS x DP must divide 32; the message names the first batch size that fails."""
    assert problem(Ramp(gbs, 32, 32, 10_000_000), mbs, dp) == wrong


def test_the_rules_filter_keeps_four_rows_of_the_topology_table() -> None:
    """Seed 004, T4 -> T5: of nine only those with DP % 4 == 0 and GBS % 32 == 0 stay: PP 6, 10, 11, 12.

    Steps of 32 never reach the batch sizes of the others but one: Megatron itself refuses such a ramp.
    """
    table = [(4, 12, 2040), (5, 9, 2043), (6, 8, 2048), (7, 6, 2046), (8, 6, 2046), (9, 5, 2045), (10, 4, 2048),
             (11, 4, 2048), (12, 4, 2048)]  # fmt: skip
    kept = []
    for pp, dp, gbs in table:
        if gbs % 32:
            with pytest.raises(ValueError, match="no multiple of the increment 32"):
                Ramp(gbs, 32, 32, 10_000_000)
        elif problem(Ramp(gbs, 32, 32, 10_000_000), 1, dp) is None:
            kept.append(pp)
    assert kept == [6, 10, 11, 12]


def test_the_batch_size_follows_megatrons_counting() -> None:
    """num_incr = (gbs - start)/incr; current = start + int(consumed / (samples / num_incr)) * incr; then gbs."""
    simulated = Scenario(rampup=(32, 32, 9_765_625))
    assert [simulated.batch_size_at(n) for n in (0, 155_009, 155_010, 9_765_625, 9_765_626)] == [32, 32, 64, 2048, 2048]
    assert Scenario(global_batch_size=512).batch_size_at(0) == 512


def test_stages_are_what_counting_iteration_by_iteration_gives() -> None:
    """The closed form against a walk."""
    ramp, simulated = Ramp(256, 64, 32, 5000), Scenario(global_batch_size=256, rampup=(64, 32, 5000))
    walked: dict[int, int] = {}
    consumed = 0
    while (size := simulated.batch_size_at(consumed)) < ramp.batch:
        walked[size] = walked.get(size, 0) + 1
        consumed += size
    assert {stage["batch_size"]: stage["iterations"] for stage in ramp.stages()} == walked
    assert sum(stage["samples"] for stage in ramp.stages()) == consumed


@given(st.integers(1, 64), st.integers(1, 64), st.integers(0, 40), st.integers(1, 16), st.integers(1, 16))
def test_a_layout_is_valid_exactly_where_every_batch_size_divides(
    start: int, increment: int, steps: int, mbs: int, dp: int
) -> None:
    """The gcd rule is the rule size by size, and the planner lists exactly the valid ones."""
    ramp = Ramp(start + steps * increment, start, increment, 1000)
    valid = all(size % (mbs * dp) == 0 for size in ramp.sizes())
    assert (problem(ramp, mbs, dp) is None) == valid
    listed = {(layout["data_parallel"], layout["micro_batch"]) for layout in layouts(ramp, 1, 1, 8)}
    assert ((dp, mbs) in listed) == valid


def test_layouts_keep_to_the_gpus_at_hand() -> None:
    """Most GPUs first; what is left over is shown."""
    found = layouts(Ramp(2048, 32, 32, 1000), 8, 12, 8, gpus=400)
    names = ("data_parallel", "micro_batch", "gpus", "idle_gpus")
    assert tuple(found[0][name] for name in names) == (4, 8, 384, 16)
    assert all(layout["gpus"] <= 400 for layout in found)
