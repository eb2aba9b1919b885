"""Open incidents and crashes as short texts: where, what to do, and no series that changes with every scrape."""

from typing import get_args

from megatron_monitor.breakdown.attribution import Cause
from megatron_monitor.breakdown.messages import ADVICE, advice_for
from megatron_monitor.causes import cause_of, causes, failure_of
from megatron_monitor.detectors import RULES
from megatron_monitor.incidents import Transition
from megatron_monitor.metrics import _LABELS, RunView, samples_of
from megatron_monitor.parsers.events import Failure
from megatron_monitor.simulate import Fault, Scenario
from megatron_monitor.snapshot import MetricSample
from tests.monitor.playing import Playing, play, texts

_ECC = "[rank17]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"


def player_after(scenario: Scenario, seconds: float) -> Playing:
    """The run so many seconds after its last line."""
    player = Playing()
    player.feed(texts(scenario))
    player.wait(player.at + seconds)
    return player


def test_a_hang_says_what_and_what_to_do_and_stays_as_it_was_told() -> None:
    """The page's text counts the silence; the series does not, or each scrape would be a new one."""
    player = player_after(Scenario(iterations=200, seconds_per_iteration=5.0, faults=(Fault("hang", 100),)), 600.0)
    (first,) = causes(player.run.book)
    assert (first.incident, first.severity, first.phase) == ("hang", "critical", "training")
    assert first.advice == advice_for("hang")
    assert "iteration" in first.line
    player.wait(player.at + 4200.0)
    player.judge.judge(player.run, player.at + 4200.0)
    assert tuple(causes(player.run.book)) == (first,)
    assert player.run.book.open["hang"].summary != first.summary
    view = RunView(player.run.state, player.run.book, "training", None, None)
    (sample,) = samples_of(view)["megatron_incident_info"]  # type: ignore[misc]
    assert isinstance(sample, MetricSample)
    names = _LABELS["megatron_incident_info"]
    assert sample.labels == tuple(getattr(first, name)[:200] for name in names)


def test_a_crash_names_its_rank_and_the_advice_of_its_failure() -> None:
    """Also the failure alone, which a run has that was dead when it was first seen."""
    lines = [(at, text) for at, text in texts(Scenario(iterations=20, seconds_per_iteration=5.0))]
    lines = [(at, text) for at, text in lines if "iteration       15/" not in text][: len(lines) // 2]
    played = play([*lines, (lines[-1][0] + 1.0, _ECC)], after=60.0)
    failure = failure_of(played.state)
    assert failure is not None
    assert (failure.cause, failure.rank, failure.advice) == ("ecc", "17", ADVICE["crash", "ecc"])
    assert failure_of(play(lines).state) is None


def test_sighup_is_a_closed_terminal() -> None:
    """A kill by another signal may be the OOM killer's."""
    failed = 'Traceback (most recent call last):\n  File "/opt/bin/torchrun", line 8, in <module>\n'
    signal = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 12 got signal: 1\n"
    lines = [*texts(Scenario(iterations=20, seconds_per_iteration=5.0))][:-8]
    played = play([*lines, (lines[-1][0] + 1.0, failed + signal)], after=60.0)
    failure = failure_of(played.state)
    assert failure is not None
    assert (failure.cause, failure.advice) == ("killed", ADVICE["crash", "hangup"])


def test_a_slowdowns_advice_is_that_of_its_cause() -> None:
    """As its message says."""
    for severity, evidence, advice in (
        ("warning", {"cause": "data"}, "file system of the training data"),
        ("warning", {"cause": "no such"}, "the slow GPU or node"),
        ("critical", {}, "the slow GPU or node"),
    ):
        reported = Transition("slowdown", severity, "x", evidence=evidence, run="r", status="firing", time=0.0)  # type: ignore[arg-type]
        assert advice in cause_of(reported).advice


def test_every_kind_has_an_advice_that_fits_a_cell() -> None:
    """One sentence, no full stop."""
    assert {incident for incident, of in ADVICE if not of} == set(RULES)
    assert {of for incident, of in ADVICE if incident == "slowdown" and of} == {*get_args(Cause)}
    assert {of for incident, of in ADVICE if incident == "crash" and of} == {*get_args(Failure), "hangup"}
    for kind, text in ADVICE.items():
        assert 20 < len(text) < 140, kind
        assert not text.endswith("."), kind
