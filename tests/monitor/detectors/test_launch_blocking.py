"""CUDA_LAUNCH_BLOCKING: its cost where both settings were seen; unknown is not 0."""

import pytest

from megatron_monitor.detectors.slowdown import Segment
from megatron_monitor.simulate import Fault, Scenario
from tests.monitor.playing import play, texts


@pytest.mark.parametrize(
    ("before", "factor", "world_size", "words"),
    [
        (0, 1.063, 384, "hung without it"),
        (0, 1.44, 48, "unset it"),  # on so few GPUs nothing speaks for it
        (0, 1.005, 384, ""),  # within noise, as it was measured at 160 GPUs and more
        (None, 1.063, 384, ""),  # the attempt before did not tell the variable: there is nothing to compare with
    ],
)
def test_its_cost_is_told(before: int | None, factor: float, world_size: int, words: str) -> None:
    """A run that is restarted with the variable set is slower by a factor: it is told once, and is no slowdown."""
    faults = (Fault("launch_blocking", 300, factor=factor),)
    played = play(texts(Scenario(iterations=500, launch_blocking=before, faults=faults, world_size=world_size)))
    told = played.of("launch_blocking")
    assert [item.severity for item in told] == ["warning"] * bool(words)
    for item in told:
        assert words in item.summary
        assert item.evidence["cost_ratio"] == pytest.approx(factor - 1, abs=0.01)
        assert item.evidence["cuda_launch_blocking"] == "1"
        assert played.of("slowdown") == []


def test_advice_in_a_traceback_is_no_setting() -> None:
    """`For debugging consider passing CUDA_LAUNCH_BLOCKING=1` stands in every CUDA traceback."""
    advice = [(0.5, "For debugging consider passing CUDA_LAUNCH_BLOCKING=1.\n")]
    assert play([*advice, *texts(Scenario(iterations=50))]).state.attempt.environment == {}


def test_values() -> None:
    """Only what is on is on."""
    values = (None, "0", "1", "")
    found = [Segment("", 1, 1, 0.0, launch_blocking=value).is_blocking for value in values]
    assert found == [None, False, True, False]
