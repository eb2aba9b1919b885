"""Loss-scale collapse and overflow storms of real trainings, and the scaler's healthy life."""

from itertools import pairwise

import pytest

from tests.monitor.detectors.training_log import TrainingLog, bloom, fp16, overflow


def steady(first: int, last: int, scale: float = 1048576.0, norm: float = 464000.0, loss: float = 2.67) -> TrainingLog:
    """A run whose scale has found its level."""
    log = TrainingLog(21)
    for iteration in range(first, last):
        log.feed(fp16(iteration, log.around(loss, 0.005), scale, log.around(norm, 0.1)))
    assert log.incidents == set()
    return log


def test_the_104b_with_embedding_norm() -> None:
    """L7: overflows one after the other, the norm frozen bit for bit: told at the third overflow."""
    log = steady(16900, 17062)
    scales = (1048576.0, 524288.0, 262144.0, 131072.0, 65536.0, 32768.0)
    found: list[int] = []
    for number, (scale, new) in enumerate(pairwise(scales), 1):
        log.feed(overflow(scale, new))
        found += [number] if log.incidents else []
        log.feed(fp16(17061 + number, 2.67 + 0.3 * number, new, 464441.887))
    assert found[0] == 3
    log.feed(fp16(17068, None, 32768.0, 464441.887))
    assert log.first("nan_loss")[0] == 17068
    assert log.firings("overflow_storm")[0].onset_iteration == 17061


def test_the_same_without_overflow_lines() -> None:
    """They may stand in another file: the falling scale tells it, one line later at most."""
    log = steady(16900, 17062)
    log.feed(fp16(17062, 2.68, 1048576.0, 464441.887))
    for number, scale in enumerate((524288.0, 262144.0, 131072.0), 1):
        log.feed(fp16(17062 + number, 2.7, scale, 464441.887))
    assert (log.first("overflow_storm")[0] or 0) <= 17065


_FAIRSEQ = (
    "2023-06-28 {:02d}:{:02d}:00 | INFO | train_inner | epoch 001: {:6d} / 102400000 loss={:.3f}, wps=38824, ups=0.07, "
    "wpb=524123, bsz=256, num_updates={}, lr=0.0005, gnorm=0.{}, loss_scale={:g}, train_wall=212, wall=73059"
)


def _fairseq(iteration: int, scale: float, norm: int = 40) -> str:
    return _FAIRSEQ.format(iteration // 60 % 24, iteration % 60, iteration, 5.0, iteration, norm, scale) + "\n"


def test_a_scaler_that_goes_below_one() -> None:
    """Fairseq's goes to 0.0001: one halving to 2, 1 and 0.5, far apart, is health."""
    log = TrainingLog()
    for iteration in range(1, 1200):
        log.feed(_fairseq(iteration, 16 / 2 ** (iteration // 200), 300 + iteration % 7))
    assert [one for one in log.firings("overflow_storm") if one.severity == "critical"] == []


def test_overflows_that_name_the_new_scale_only() -> None:
    """Fairseq tells of each: the third within ten iterations is a storm."""
    log = TrainingLog()
    for iteration in range(1, 200):
        log.feed(_fairseq(iteration, 128, 300 + iteration % 7))
    reported = "2023-06-28 03:20:0{} | INFO | fairseq.trainer | NOTE: gradient overflow detected, ignoring gradient, "
    for number in (1, 2, 3):
        assert "overflow_storm" not in log.incidents
        log.feed(reported.format(number) + f"setting loss scale to: {128 / 2**number}\n")
    assert "overflow_storm" in log.incidents


def test_glm_falls_thirty_iterations_before_its_loss() -> None:
    """L8: the scale reduces drastically around 33710, the loss explodes at 33740: a warning 20 iterations ahead."""
    log = steady(33500, 33706, scale=65536.0, norm=900.0)
    scale, loss = 65536.0, 2.67
    for iteration in range(33706, 33760):
        if iteration >= 33708 and iteration % 3 == 0 and scale > 8:
            log.feed(overflow(scale, scale / 2))
            scale /= 2
        loss = 2.67 if iteration < 33740 else loss * 1.15
        log.feed(fp16(iteration, log.around(loss, 0.005), scale, log.around(900.0, 0.1)))
    iteration, severity = log.first("overflow_storm")
    assert (iteration or 0) <= 33720
    assert severity == "warning"
    assert (log.first("loss_spike")[0] or 0) >= 33740


def test_a_slow_decline() -> None:
    """L3: the scale sinks over 2,300 iterations; told before the loss breaks at 7000. Up and down by two: silent."""
    log = TrainingLog()
    for iteration in range(2300, 4700):
        scale = 32768.0 * (1, 2, 4, 2)[(iteration // 400) % 4]
        log.feed(fp16(iteration, 3.0, scale, log.around(5e4, 0.1)))
    assert log.incidents == set()
    for iteration in range(4700, 7000):
        log.feed(fp16(iteration, 3.0, 32768.0 / 2 ** ((iteration - 4700) // 380), log.around(5e4, 0.1)))
    assert log.incidents == {"overflow_storm"}
    reported = log.firings("overflow_storm")[0]
    assert reported.evidence["reason"] == "declining"
    assert (reported.iteration or 0) < 7000


@pytest.mark.parametrize(
    ("loss", "norm", "severity"),
    [(-1e-4, 1.0, "info"), (0.0, 1.0, "warning"), (-1e-4, 2.0, "warning"), (-1e-4, None, "warning")],
)
def test_a_decline_in_a_healthy_run_is_no_warning(loss: float, norm: float | None, severity: str) -> None:
    """The loss falls and the gradients do not grow. `loss`: change per iteration. `norm`: times the norm before, if
    it is printed.
    """
    log = TrainingLog()
    for iteration in range(7000):
        scale, norms = (1024.0, norm and 1.0) if iteration < 3500 else (1024.0 / 2 ** ((iteration - 3500) // 600), norm)
        log.feed(fp16(iteration, 5.0 + loss * iteration, scale, norms and log.around(norms, 0.1)))
    assert [item.severity for item in log.firings("overflow_storm")] == [severity]


@pytest.mark.parametrize(("at_end", "severity"), [(1.5, "info"), (4.5, "warning")])
def test_gradients_that_grew_early_in_a_pretraining(at_end: float, severity: str) -> None:
    """The norm triples as the loss begins to fall, and is on its way back, or not, as the scale has sunk 8-fold."""
    log = TrainingLog()
    for iteration in range(7000):
        norm = 1.0 if iteration < 1000 else 3.0 if iteration < 4500 else at_end
        scale = 1024.0 / 2 ** (max(0, iteration - 1000) // 1200)
        log.feed(fp16(iteration, 5.0 - 1e-4 * iteration, scale, log.around(norm, 0.02)))
    assert [item.severity for item in log.firings("overflow_storm")] == [severity]


def test_at_the_minimum_it_is_critical_at_once() -> None:
    """L10: the scale has reached its floor."""
    log = steady(100, 300, scale=64.0)
    for iteration, scale in ((300, 64.0), (340, 32.0), (380, 16.0), (420, 8.0), (460, 4.0)):
        log.feed(fp16(iteration, 2.67, scale, 1000.0 + iteration))
    assert all(item.severity == "warning" for item in log.firings("overflow_storm"))
    log.feed(fp16(500, 2.67, 2.0, 1500.0))
    assert log.firings("overflow_storm")[-1].severity == "critical"


def test_the_program_gives_up() -> None:
    """L11: DeepSpeed's last word."""
    log = steady(100, 200)
    log.feed("Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.\n")
    log.feed("", 600.0)
    assert log.firings("crash")[0].evidence["message"] == "the loss scale is at its minimum"


def test_a_storm_grows_critical_and_ends() -> None:
    """Ten of ten steps skipped is standing still; fifty clean ones end it."""
    log = steady(100, 200)
    for iteration in range(200, 215):
        log.feed(overflow(1048576.0, 1048576.0) + fp16(iteration, 2.67, 1048576.0, 470000.125))
    assert [item.severity for item in log.firings("overflow_storm")] == ["warning", "critical"]
    log.lines(fp16(iteration, 2.67, 1048576.0, log.around(464000.0, 0.1)) for iteration in range(215, 266))
    log.feed("", 300.0)
    assert len(log.resolved("overflow_storm")) == 1


@pytest.mark.parametrize(("scale", "norm"), [(-1.0, 0.0), (1.0, 1.0)])
def test_what_is_no_scale(scale: float, norm: float) -> None:
    """DeepSpeed's pipeline owns the scale, and Megatron prints -1.0. A run whose scale was always 1 (bf16) has none."""
    log = TrainingLog()
    log.lines(fp16(iteration, log.around(3.0, 0.005), scale, log.around(norm, 0.1)) for iteration in range(1, 100))
    assert log.incidents == set()


def test_two_engines_with_scales_of_their_own() -> None:
    """Near miss: DeepSpeed-Chat's actor and critic overflow in turn; between their scales lies no fall."""
    log = TrainingLog()
    log.lines(bloom(iteration, log.around(3.0, 0.005)) for iteration in range(1, 100))
    log.feed(overflow(65536.0, 32768.0) + overflow(1024.0, 512.0))
    log.lines(bloom(iteration, log.around(3.0, 0.005)) for iteration in range(100, 200))
    assert log.incidents == set()
