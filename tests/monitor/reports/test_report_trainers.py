"""Reports of trainers that are read as data: logs of ours in their formats, with what real ones print between steps."""

from __future__ import annotations

import json

import pytest

from monitor.run.stopwatch import Stopwatch
from tests.monitor.playing import play
from tests.monitor.reports.test_report_cases import Report, report  # noqa: F401


def mllog(at: float, key: str, value: object, **metadata: object) -> str:
    """One line, as mlperf_logging prints it."""
    head = {"namespace": "", "time_ms": round(at * 1000), "event_type": "POINT_IN_TIME", "key": key}
    return ":::MLLOG " + json.dumps({**head, "value": value, "metadata": metadata}) + "\n"


def submission(seconds: float = 3.75, evaluation: float = 30.0, blocks: int = 4) -> list[tuple[float, str]]:
    """A submission that tells its steps at evaluations alone, 48 apart; the first comes after 192."""
    now = 1_755_477_365.5
    out = [(now, mllog(now, "global_batch_size", 8)), (now, mllog(now, "run_start", None))]
    count = 0
    for block in range(blocks):
        steps = 192 if block == 0 else 48
        count += 8 * steps
        now += seconds * steps
        out += [
            (now, mllog(now, "tracked_stats", {"throughput": 8 / seconds}, step=count)),
            (now, mllog(now, "block_stop", None, samples_count=count)),
            (now, mllog(now, "eval_start", None, samples_count=count)),
        ]
        now += evaluation
        out += [
            (now, mllog(now, "eval_accuracy", 0.94 - block / 100, samples_count=count)),
            (now, mllog(now, "eval_stop", None, samples_count=count)),
        ]
    return [*out, (now, mllog(now, "run_stop", None, samples_count=count, status="success"))]


def test_steps_told_at_evaluations_alone(report: Report) -> None:  # noqa: F811
    """AMD's and others' MLPerf logs: from evaluation to evaluation by the stamps, without the evaluation."""
    text = "".join(line for _, line in submission())
    row = report(text)
    assert (row["iterations"], row["global_batch_size"]) == (336, 8)
    assert row["seconds_per_iteration"] == pytest.approx(3.75, rel=1e-3)
    assert row["samples_per_second"] == pytest.approx(8 / 3.75, rel=1e-3)
    played = play(submission())
    assert played.kinds() == set()  # a mean of the first 192 steps is no budget for one
    assert played.state.productive_seconds == pytest.approx(336 * 3.75, rel=1e-3)


def test_an_evaluation_in_the_middle_is_not_left_out() -> None:
    """Where steps lie before the evaluation, its end is not where the next ones begin."""
    watch = Stopwatch()
    usual = {"disturbed": False, "alone": True, "stamped": True}
    assert watch.lap(48, 100.5, **usual) is None
    watch.pause(145.5)
    assert not watch.go_on(175.5)
    assert watch.lap(96, 310.5, **usual) == (210.0 / 48, 48)
    watch.pause(310.5)
    assert watch.go_on(340.5)
    assert watch.lap(144, 520.5, **usual) == (180.0 / 48, 48)
