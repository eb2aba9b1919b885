"""Trainings of torchtitan, NeMo 2 and verl with faults, played to the judgement."""

import pytest

from tests.monitor.playing import fault, healthy
from tests.simulated import printed

TRAINERS = ("nemo", "torchtitan", "verl")
PACE = {"iterations": 250, "seconds_per_iteration": 20.0}


@pytest.mark.parametrize("format_name", TRAINERS)
def test_hang_slowdown_and_crash(format_name: str) -> None:
    """What is told of Megatron's trainings is told of theirs."""
    pace = {**PACE, "inner": printed("verl")} if format_name == "verl" else PACE
    hang = fault("hang", 200, format=format_name, after=4000.0, **pace).firing("hang")
    phase = "rollout" if format_name == "verl" else "training"  # behind verl's line the next rollout begins
    assert (hang.severity, hang.evidence["phase"]) == ("critical", phase)
    assert hang.evidence["silence_seconds"] < 100.0  # three iterations and a little
    slow = fault("slowdown", 150, factor=1.3, format=format_name, **pace).firing("slowdown")
    assert abs(slow.onset_iteration - 150) <= 3
    crash = fault("crash_oom", 200, format=format_name, after=600.0, **pace).firing("crash")
    assert crash.evidence["failure"] == "cuda_oom"


@pytest.mark.parametrize("format_name", ["nemo", "torchtitan"])
def test_the_loss(format_name: str) -> None:
    """A loss that is printed is watched."""
    assert "loss_spike" in fault("loss_spike_stays", 200, format=format_name, iterations=300).kinds()
    assert "nan_loss" in fault("nan_loss", 200, format=format_name, iterations=300).kinds()


def test_where_a_step_of_reinforcement_learning_goes() -> None:
    """Rollout, scoring, training and handing the weights over, as shares of the step."""
    state = healthy(format="verl", **PACE, inner=printed("verl")).state
    parts = state.attempt.timers.last.timers
    assert set(parts) == {"rollout", "reference", "reward", "train", "sync"}
    assert parts["rollout"][1] == pytest.approx(11.0, rel=0.05)
    assert sum(high for _, high in parts.values()) == pytest.approx(20.0, rel=0.05)
