"""The rules by which a level of step times is a slower one, each by itself."""

import pytest

from megatron_monitor.detectors.slowdown.memory import Flap, Memory, SlowdownSettings
from megatron_monitor.detectors.slowdown.shifts import _watch_drift
from megatron_monitor.statistics.levels import Level


@pytest.mark.parametrize(
    ("flaps", "slow_in_ten", "drifted"),
    [(0, 6, True), (1, 6, False), (1, 9, True), (2, 6, False), (2, 9, True)],
)
def test_a_run_that_flaps_has_drifted_when_nearly_all_its_steps_are_slow(
    flaps: int, slow_in_ten: int, drifted: bool
) -> None:
    """More than half of them is enough for one that never did: slow stretches come and go on noisy clusters."""
    values = [0.1 if number % 10 < slow_in_ten else 0.0 for number in range(200)]
    track = Level(values=values, seen=200, value=0.0, scale=0.01, best=0.0)
    memory = Memory(flaps=[Flap(0.1, 20)] * flaps)
    assert _watch_drift(memory, track, 500, 1000.0, SlowdownSettings()) is drifted
    assert (memory.shift is not None and memory.shift.reason == "drift") is drifted
