"""A loss that is no number, in all its prints; and the lines without a loss that are none."""

import pytest

from megatron_monitor.parsers.reader import SourceReader
from tests.monitor.detectors.training_log import TrainingLog, bloom, fp16, trainer


def test_the_field_is_gone() -> None:
    """L6, the 104B's experiment 12: 9027 has no loss, the same grad norm and half the scale. Told at that line."""
    log = TrainingLog()
    for iteration in range(8900, 9026):
        log.feed(fp16(iteration, log.around(7.1, 0.01), 16384.0, log.around(20000, 0.1)))
    log.feed(fp16(9026, 7.024580, 16384.0, 20609.780))
    assert log.incidents == set()
    log.feed(fp16(9027, None, 8192.0, 20609.780))
    assert log.first("nan_loss") == (9027, "warning")  # the scaler may skip it
    log.lines(fp16(iteration, None, 4096.0, 20609.780) for iteration in (9028, 9029))
    reported = log.firings("nan_loss")
    assert [item.severity for item in reported] == ["warning", "critical"]
    assert reported[1].iteration == 9029
    assert reported[0].evidence["form"] == "gone"
    assert reported[0].evidence["last_finite_iteration"] == 9026
    assert not log.firings("loss_spike")


@pytest.mark.parametrize(
    ("loss", "norm", "form"), [("nan", "nan", "nan"), ("'nan'", "'nan'", "nan"), (0.0, "nan", "grad_norm")]
)
def test_hf_trainer(loss: object, norm: object, form: str) -> None:
    """Its dict says nan, or 0.0 beside a grad norm of nan."""
    log = TrainingLog()
    log.feed("***** Running training *****\n  Total optimization steps = 1000\n")
    log.lines(trainer(step, 1.5, 0.9) for step in range(1, 20))
    assert log.incidents == set()
    log.feed(trainer(20, loss, norm))
    (reported,) = log.firings("nan_loss")
    assert (reported.evidence["form"], reported.evidence["last_finite_iteration"]) == (form, 19)


def test_a_reward_of_hf_trainer() -> None:
    """TRL's, while the loss is finite. A reward that never was a number is not judged."""
    for before, told in ((0.5, {"nan_loss"}), (float("nan"), set())):
        log = TrainingLog()
        for step in range(1, 40):
            reward = before if step <= 20 else float("nan")
            log.feed(f"{{'loss': 0.01, 'grad_norm': 0.3, 'reward': {reward}, 'epoch': {step / 100}}}\n")
        assert log.incidents == told


def test_every_step_skipped_is_no_nan() -> None:
    """Near miss: the interval has no loss because the loss scale was searched for, and the counter says so."""
    log = TrainingLog()
    log.feed(fp16(10, None, 8388608.0, None, skipped=10))
    log.feed(fp16(20, 12.0, 32768.0, None, skipped=8))
    log.lines(fp16(iteration, 8.0, 32768.0, 3.0) for iteration in range(30, 400, 10))
    log.feed(fp16(400, None, 32.0, None, skipped=10))
    assert not log.firings("nan_loss")
    assert log.firings("overflow_storm")  # that is what it is


def test_lines_that_never_carry_a_loss() -> None:
    """Near misses: a fork that prints none, one that prints it now and then, a line that is torn before it."""
    log = TrainingLog()
    log.lines(bloom(iteration, None, "0.220") for iteration in range(1, 50))
    assert log.incidents == set()
    log.lines(bloom(iteration, 2.5 if iteration % 4 == 0 else None, "0.220") for iteration in range(50, 100))
    assert log.incidents == set()
    log = TrainingLog()
    log.lines(bloom(iteration, log.around(2.5, 0.01)) for iteration in range(1, 30))
    log.feed(bloom(30, 2.5)[:140] + "\n")
    log.feed(bloom(31, 2.5))
    assert log.incidents == set()
    log.feed(bloom(32, 2.5)[:140] + "\n")
    log.feed(bloom(33, None))
    assert log.first("nan_loss")[0] == 33


def test_a_copy_without_the_loss_is_not_the_line() -> None:
    """Near miss: an older line that another rank prints late says nothing of now."""
    log = TrainingLog()
    log.lines(bloom(iteration, log.around(2.5, 0.01)) for iteration in range(1, 30))
    for text in (bloom(24, 2.5), bloom(29, None)):
        for entry in SourceReader().feed(text.encode()):
            log.run.state.copies.count("rank0.log", 0).last_iteration = entry.event.iteration - 1  # it is behind
            log.reported += log.judge.take(log.run, [entry], "rank0.log", log.at, True)
    assert log.incidents == set()


def test_finite_losses_with_a_norm_that_is_no_number() -> None:
    """One such line is the scaler's business, five in a row are a finding."""
    log = TrainingLog()
    log.lines(bloom(iteration, log.around(2.5, 0.01)) for iteration in range(1, 30))
    log.feed(bloom(30, 2.5, "inf"))
    log.feed(bloom(31, 2.5))
    assert log.incidents == set()
    log.lines(bloom(iteration, 2.5, "nan") for iteration in range(32, 37))
    assert log.first("nan_loss")[0] == 36


def test_nan_is_the_last_word_on_a_spike() -> None:
    """The loss jumps, then is NaN: the spike is superseded, and nothing more is said of it."""
    log = TrainingLog()
    log.lines(bloom(iteration, log.around(2.5, 0.01), log.around(0.2, 0.1)) for iteration in range(1, 200))
    log.lines(bloom(iteration, 6.0, 50.0) for iteration in range(200, 204))
    log.lines(bloom(iteration, None, "nan") for iteration in range(204, 500))
    assert [(item.incident, item.status, item.iteration) for item in log.reported] == [
        ("loss_spike", "firing", 200),
        ("nan_loss", "firing", 204),
        ("loss_spike", "resolved", 204),
    ]


def test_a_further_loss_counts_beside_a_norm_that_is_no_number() -> None:
    """The norm alone is told at its fifth line, the loss at its first."""
    log = TrainingLog()
    for iteration in range(1, 31):
        other, norm = ("1.1E+00", "0.220") if iteration < 30 else ("nan", "nan")
        log.feed(bloom(iteration, 2.5, norm).replace("grad norm", f"mtp_1 loss: {other} | grad norm"))
    assert log.first("nan_loss")[0] == 30
    assert "mtp_1 loss" in log.firings("nan_loss")[0].summary
