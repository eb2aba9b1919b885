"""CUDA_LAUNCH_BLOCKING: its cost where both settings were seen; unknown is not 0."""

import pytest

from megatron_monitor.detectors.slowdown import Segment
from megatron_monitor.simulate import Fault, Scenario
from tests.monitor.playing import Played, play, texts


def restarted(first: int | None, factor: float, world_size: int = 384, **more: int) -> Played:
    """A run that is restarted with the variable set, slower by a factor."""
    faults = (Fault("launch_blocking", 300, factor=factor),)
    scenario = Scenario(iterations=500, launch_blocking=first, faults=faults, world_size=world_size, **more)
    return play(texts(scenario))


def test_its_cost_is_told() -> None:
    """0 before, 1 after, 6.3 % slower from the first iteration of the attempt on."""
    reported = restarted(0, 1.063).firing("launch_blocking")
    assert reported.severity == "warning"
    assert reported.evidence["cost_ratio"] == pytest.approx(0.063, abs=0.01)
    assert reported.evidence["cuda_launch_blocking"] == "1"
    assert "hung without it" in reported.summary


def test_what_the_variable_costs_is_told_once() -> None:
    """It is no slowdown besides."""
    assert restarted(0, 1.44, 48).of("slowdown") == []


def test_small_runs_are_told_to_unset_it() -> None:
    """On 48 GPUs nothing speaks for it."""
    assert "unset it" in restarted(0, 1.063, 48).firing("launch_blocking").summary


def test_a_cost_within_noise_is_not_told() -> None:
    """At 160 GPUs and more it was measured at nothing."""
    assert restarted(0, 1.005).of("launch_blocking") == []


def test_not_seen_is_unknown() -> None:
    """The attempt before did not tell the variable: there is nothing to compare with, whatever the difference."""
    assert restarted(None, 1.063).of("launch_blocking") == []


def test_advice_in_a_traceback_is_no_setting() -> None:
    """`For debugging consider passing CUDA_LAUNCH_BLOCKING=1` stands in every CUDA traceback."""
    advice = [(0.5, "For debugging consider passing CUDA_LAUNCH_BLOCKING=1.\n")]
    assert play([*advice, *texts(Scenario(iterations=50))]).state.attempt.environment == {}


def test_values() -> None:
    """Only what is on is on."""
    values = (None, "0", "1", "")
    found = [Segment("", 1, 1, 0.0, launch_blocking=value).is_blocking for value in values]
    assert found == [None, False, True, False]
