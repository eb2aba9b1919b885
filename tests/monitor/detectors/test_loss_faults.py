"""The simulator's faults of loss and loss scale: each raises its incident and no other, in every program's format."""

from dataclasses import replace

import pytest

from megatron_monitor.simulate import Fault, Scenario, timeline
from tests.monitor.detectors.training_log import TrainingLog

KINDS = {"loss_spike", "divergence", "nan_loss", "loss_scale_collapse", "overflow_storm"}
# late in a training: the loss falls no more; at least 64 lines before the fault
LATE = Scenario(first_iteration=3001, iterations=3600, fp16=True, seed=3)
BOTH = ("bigscience", "hf-trainer")
EVERY = (*BOTH, "megatron-lm", "megatron-lm-2021", "microsoft", "gpt-neox")


def told(scenario: Scenario) -> TrainingLog:
    """The scenario as the daemon sees it."""
    log = TrainingLog()
    log.lines(emission.text for emission in timeline(scenario))
    return log


@pytest.mark.parametrize(
    ("fault", "dialects", "expected", "severity", "within"),
    [
        ("loss_spike", BOTH, {"loss_spike"}, "info", 5),
        ("loss_spike_stays", ("megatron-lm", "gpt-neox"), {"loss_spike"}, "critical", 0),
        ("resume_bump", ("bigscience", "megatron-lm"), {"loss_spike"}, "info", 10),
        ("divergence", BOTH, {"loss_spike", "divergence"}, "critical", 15),
        ("slow_divergence", ("microsoft", "hf-trainer"), {"divergence"}, "warning", 300),
        ("nan_loss", EVERY, {"nan_loss"}, "critical", 0),
        ("inf_loss", ("megatron-lm",), {"nan_loss"}, "critical", 0),
    ],
)
def test_losses(fault: str, dialects: tuple[str, ...], expected: set[str], severity: str, within: int) -> None:
    """Each in time and with the severity that it reaches."""
    for dialect in dialects:
        judge_losses(replace(LATE, dialect=dialect, faults=(Fault(fault, at=3251),)), expected, severity, within)


def judge_losses(scenario: Scenario, expected: set[str], severity: str, within: int) -> None:
    """One program's log."""
    log, fault = told(scenario), scenario.faults[0].kind
    mine = [item for item in log.said if item.incident in KINDS and item.status == "firing"]
    assert {item.incident for item in mine} == expected
    assert severity in {item.severity for item in mine}
    if fault == "resume_bump":
        assert mine[0].evidence["class"] == "resume_bump"
    else:
        assert 3251 <= (mine[0].iteration or 0) <= 3251 + within
    if severity == "info":
        assert {item.severity for item in mine} == {"info"}
        assert log.resolved("loss_spike")


@pytest.mark.parametrize("dialect", ["bigscience", "microsoft"])
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("overflow_storm", {"overflow_storm", "loss_scale_collapse"}),
        ("loss_scale_collapse", {"overflow_storm", "loss_scale_collapse"}),
        ("frozen_grad_norm", {"overflow_storm"}),
        ("scale_cycle", set()),
        ("scale_search", set()),
        ("", set()),
    ],
)
def test_loss_scales(dialect: str, fault: str, expected: set[str]) -> None:
    """Storms and collapses by the third step; a scaler's healthy life is silent."""
    at = 3001 if fault == "scale_search" else 3251
    log = told(replace(LATE, dialect=dialect, faults=(Fault(fault, at=at),) if fault else ()))
    mine = [item for item in log.said if item.incident in KINDS and item.status == "firing"]
    assert {item.incident for item in mine} == expected
    assert all(3251 <= (item.iteration or 0) <= 3254 for item in mine if item.severity == "warning")


def test_a_scale_that_sinks() -> None:
    """Told within a block after the third halving, though no halving is near another."""
    log = told(replace(LATE, iterations=6000, faults=(Fault("loss_scale_decline", at=4001),)))
    iteration, severity = log.first("loss_scale_collapse")
    assert 5000 < (iteration or 0) <= 5600
    assert severity == "warning"


def test_early_in_a_training() -> None:
    """While the loss still falls by half a per cent a line a spike is found as well, and health is silent."""
    early = Scenario(iterations=400, seed=4, dialect="gpt-neox", fp16=True)
    assert told(early).incidents == set()
    log = told(replace(early, faults=(Fault("loss_spike", at=151),)))
    assert (log.first("loss_spike")[0] or 0) <= 156
