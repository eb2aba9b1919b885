"""`replay`: finished logs on their own clock give what the daemon would have said, and when."""

import json
from pathlib import Path
from typing import Any

import pytest

from megatron_monitor.parsers.events import IterationLogged, LogEvent, SoftwareSeen
from megatron_monitor.simulate import Fault, Scenario
from megatron_monitor.source_clock import SourceClock, with_times
from tests.commands import command, log_of
from tests.monitor.core.following import arguments

SAID = {
    "run", "incident", "status", "severity", "event", "iteration", "onset_iteration", "time", "phase", "summary",
    "evidence",
}  # fmt: skip


def replayed(*arguments: str | Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(what was said, the one summary) of `replay --json`."""
    result = command("replay", "--json", *arguments)
    records = [json.loads(line) for line in result.stdout.splitlines()]
    (summary,) = [record["summary"] for record in records if set(record) == {"summary"}]
    return [record for record in records if "incident" in record], summary


def test_a_slow_node_is_said_with_all_that_the_interface_names(tmp_path: Path) -> None:
    """One object a transition, its time in ISO 8601 where the log prints times; the summary last."""
    fault = Fault("slowdown_recovered", 300, factor=1.06, length=60)
    log = log_of(tmp_path / "a.log", Scenario(format="megatron-lm", iterations=500, faults=(fault,)))
    said, summary = replayed(log)
    assert [(item["incident"], item["status"]) for item in said] == [("slowdown", "firing"), ("slowdown", "resolved")]
    assert set(said[0]) == SAID
    assert said[0]["time"].startswith("2026-01-01T08:")
    assert summary["run"] == "a"
    assert summary["iterations"] == 500
    assert summary["median_seconds_per_iteration"] == pytest.approx(105.2, rel=0.01)
    assert summary["goodput"] == pytest.approx(0.99, abs=0.02)


def test_without_times_seconds_since_the_first_line_count(tmp_path: Path) -> None:
    """BigScience's lines carry none: the sum of the iterations, evaluation and saving in it."""
    log = log_of(tmp_path / "a.log", Scenario(iterations=500, faults=(Fault("slowdown", 300, factor=1.06),)))
    log.write_text("".join(line for line in log.read_text().splitlines(True) if "datetime" not in line))
    said, _ = replayed(log)
    assert said[0]["time"] == pytest.approx(304 * 106, rel=0.02)


@pytest.mark.parametrize("offset", [0, 1, 1800])
def test_a_deadline_at_the_very_instant_of_a_line_is_kept(offset: int, tmp_path: Path) -> None:
    """An hourly line meets the first iteration's budget of three hours, to the second."""
    pulses = "".join(f"[2026-11-23 {hour:02d}:{offset // 60:02d}:{offset % 60:02d}] PULSE\n" for hour in range(4, 12))
    (tmp_path / "a.log").write_text(
        f"{arguments()}[before the start of training step] datetime: 2026-11-23 04:00:00\n{pulses}"
    )
    (hang,) = replayed(tmp_path / "a.log")[0]
    assert hang["time"][:-1] == "2026-11-23T07:00:0"


def test_no_training_line(tmp_path: Path) -> None:
    """Said, and exit 1."""
    (tmp_path / "a.log").write_text("hello\n")
    result = command("replay", tmp_path / "a.log", code=1)
    assert result.stdout == ""
    assert "no training line" in result.stderr
    assert "failed" not in result.stderr


def test_what_failed_without_any_training_line_is_named(tmp_path: Path) -> None:
    """A program that dies before its first step: nothing shows whose it is, but somebody has asked."""
    failed = 'Traceback (most recent call last):\n  File "/a/tool.py", line 7, in <module>\nValueError: no data\n'
    (tmp_path / "a.log").write_text(failed)
    result = command("replay", tmp_path / "a.log", code=1)
    assert "no training line" in result.stderr
    assert "the last failure in a is python_exception: ValueError: no data" in result.stderr


def test_what_stands_before_the_first_time_gets_it() -> None:
    """Lines without any time before them are placed at the first that has one; a source without times at the end."""
    software = LogEvent(1, "r", SoftwareSeen(name="torch", version="2"), "")
    first = LogEvent(2, "r", IterationLogged(iteration=1, seconds_per_iteration=10.0), "")
    assert [placed.at for placed in with_times([software, first], SourceClock("a"))] == [10.0, 10.0]
    assert [placed.at for placed in with_times([software], SourceClock("a"))] == [float("inf")]


def test_a_clock_never_runs_backwards() -> None:
    """A rank whose clock is behind does not turn time back."""
    stamps = ("2026-01-01T00:00:10", "2026-01-01T00:00:05", "2026-01-01T00:00:12")
    entries = [LogEvent(1, "r", SoftwareSeen(name="x", version="1", logged_at=stamp), "") for stamp in stamps]
    assert [placed.at % 60 for placed in with_times(entries, SourceClock("a"))] == [10, 10, 12]


ILLEGAL = "[rank0]: RuntimeError: CUDA error: an illegal memory access was encountered\n"
OOM = "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.30 GiB.\n"


@pytest.mark.parametrize("name", ["a.err", "a_stderr.txt"])
@pytest.mark.parametrize("failure", [ILLEGAL, OOM])
def test_set_up_that_is_read_behind_an_end_in_another_file_is_of_that_launch(
    failure: str, name: str, tmp_path: Path
) -> None:
    """No line has a time: which of the two was written first is not known. A second set-up is another attempt's."""
    out, err = tmp_path / name.replace("err", "out"), tmp_path / name
    set_up = f"using world size: 16, data-parallel-size: 2 \n{arguments()}training ...\n"
    err.write_text(failure)
    out.write_text(set_up)
    said, summary = replayed(err, out)
    assert (summary["state"], summary["restarts"], [item["incident"] for item in said]) == ("crashed", 0, ["crash"])
    out.write_text(2 * set_up)
    assert replayed(err, out)[1]["restarts"] == (failure == ILLEGAL)
