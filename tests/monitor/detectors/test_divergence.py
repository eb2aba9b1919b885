"""Divergence without a spike (docs/development/incident-record.md, L12), and slow movements that must not fire."""

import math

from tests.monitor.detectors.training_log import TrainingLog, bloom, saved, trainer


def long_run() -> TrainingLog:
    """500 flat lines at 1 % noise."""
    log = TrainingLog(11)
    log.feed(saved(400))
    log.lines(bloom(iteration, log.around(2.5, 0.01), log.around(0.2, 0.15)) for iteration in range(1, 501))
    return log


def test_a_loss_that_rises_slowly() -> None:
    """One per cent in 50 iterations, no line of it abnormal: told within 250, grows critical, names the way back."""
    log = long_run()
    for step in range(1, 800):
        log.feed(bloom(500 + step, log.around(2.5 * (1 + 0.0002 * step), 0.01), log.around(0.2, 0.15)))
    assert log.incidents == {"divergence"}
    reported = log.firings("divergence")
    assert (reported[0].iteration or 0) <= 750
    assert [item.severity for item in reported] == ["warning", "critical"]
    assert reported[0].evidence["rollback_iteration"] == 400
    assert 375 <= (reported[0].onset_iteration or 0) <= 550


def test_it_resolves_when_the_loss_is_back() -> None:
    """A rise that turns round is over when half of it has gone."""
    log = long_run()
    log.lines(bloom(500 + step, log.around(2.5 * (1 + 0.0002 * step), 0.01)) for step in range(1, 301))
    log.lines(bloom(800 + step, log.around(2.5, 0.01)) for step in range(1, 100))
    log.feed("", 300.0)
    assert len(log.resolved("divergence")) == 1


def test_between_half_of_the_threshold_and_all_of_it_a_rise_stands() -> None:
    """What hovers about the threshold is one divergence, not one after the other."""
    log = long_run()
    log.lines(bloom(500 + step, log.around(2.5 * (1 + 0.0002 * step), 0.01)) for step in range(1, 301))
    (reported,) = log.firings("divergence")
    bar = reported.evidence["threshold_ratio"]
    base = reported.evidence["lowest_median_lm_loss"]
    log.lines(bloom(800 + step, log.around(base * (1 + 0.75 * bar), 0.01)) for step in range(1, 201))
    assert log.resolved("divergence") == []
    log.lines(bloom(1000 + step, log.around(base * (1 + 0.25 * bar), 0.01)) for step in range(1, 101))
    log.feed("", 300.0)
    assert len(log.resolved("divergence")) == 1


def test_a_wander_and_a_new_level_are_none() -> None:
    """Near misses: a slow wave of 1 %, then other data whose loss is 4 % higher at once and stays there."""
    log = long_run()
    for step in range(2000):
        log.feed(bloom(501 + step, log.around(2.5 * (1 + 0.01 * math.sin(step / 150)), 0.01), log.around(0.2, 0.15)))
    log.lines(bloom(2501 + step, log.around(2.6, 0.01), log.around(0.2, 0.15)) for step in range(500))
    assert log.incidents == set()


def test_of_hf_trainer_too() -> None:
    """Its loss comes in dicts of its own."""
    log = TrainingLog(12)
    log.feed("***** Running training *****\n  Total optimization steps = 1000\n")
    log.lines(trainer(step, round(log.around(1.5, 0.005), 4), 0.9) for step in range(1, 301))
    for step in range(301, 701):
        log.feed(trainer(step, round(log.around(1.5 * (1 + 0.0004 * (step - 300)), 0.005), 4), 0.9))
    assert log.incidents == {"divergence"}
