"""`backfill`: the text is strict OpenMetrics, dated right, and what a scrape would have seen."""

from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest
from click.testing import Result
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from megatron_monitor.metrics import CATALOGUE
from megatron_monitor.simulate import Fault, Scenario, timeline
from tests.commands import command, log_of

START = 1_767_225_600.0  # the scenario's own
LINE = " iteration {:8d}/     100 | elapsed time per iteration (ms): 30000.0 | lm loss: {:.6E} | \n"


class Point(NamedTuple):
    at: float
    value: float
    labels: dict[str, str]


def invoke(*arguments: str, code: int = 0) -> Result:
    """Run the command."""
    return command("backfill", *arguments, code=code)


HISTOGRAMS = tuple(row.name for row in CATALOGUE if row.kind == "histogram")


def points_of(text: str) -> dict[str, list[Point]]:
    """Samples by name, by the library's strict parser: a family or a label set that is interleaved is an error there.

    Without the histograms: the library takes their second point's buckets for repeats of the first's.
    """
    assert text.endswith("# EOF\n")
    found: dict[str, list[Point]] = {}
    plain = "".join(line for line in text.splitlines(keepends=True) if not any(name in line for name in HISTOGRAMS))
    for family in text_string_to_metric_families(plain):
        for sample in family.samples:
            assert sample.timestamp is not None
            point = Point(float(sample.timestamp), sample.value, dict(sample.labels))
            found.setdefault(sample.name, []).append(point)
    return found


def simulated(path: Path, **change: object) -> Path:
    """A log of Megatron-LM, which prints the time of each iteration."""
    scenario = Scenario(dialect="megatron-lm", iterations=40, noise=0.0, save_interval=1000, **change)  # type: ignore[arg-type]
    return log_of(path, scenario)


def test_values_stand_at_the_logs_times(tmp_path: Path) -> None:
    """Each scrape shows the iteration that was the last one by then, as the scenario's own truth has it."""
    log = simulated(tmp_path / "a.log")
    truth = [
        (START + emission.at, emission.truth["iteration"], emission.truth["loss"])
        for emission in timeline(Scenario(dialect="megatron-lm", iterations=40, noise=0.0, save_interval=1000))
        if emission.truth and "loss" in emission.truth
    ]
    points = points_of(invoke(str(log), "--step", "50s").stdout)
    seen = points["megatron_iteration"]
    assert len(seen) > 70
    assert {point.labels["run"] for point in seen} == {"a"}
    for point in seen:
        assert point.value == max(iteration for at, iteration, _ in truth if at <= point.at + 1e-3)
    losses = {iteration: loss for _, iteration, loss in truth}
    by_time = {point.at: point.value for point in seen}
    for point in points["megatron_lm_loss"]:
        assert point.value == pytest.approx(losses[int(by_time[point.at])], rel=1e-6)
    steps = {round(b.at - a.at, 3) for a, b in pairwise(seen[:-1])}
    assert steps == {50.0}
    assert points["megatron_iterations_total"][-1].value == 40


def test_an_incident_fires_when_the_daemon_would_have_told_it(tmp_path: Path) -> None:
    """A silence of an hour: the hang stands in the history, and is over when the log goes on."""
    log = simulated(tmp_path / "a.log", faults=(Fault("hang_then_resume", 20, seconds=3600.0),))
    points = points_of(invoke(str(log), "--step", "30s").stdout)
    hang = [point for point in points["megatron_incident"] if point.labels["incident"] == "hang"]
    critical = [point for point in hang if point.labels["severity"] == "critical"]
    fired = [point.at for point in critical if point.value == 1.0]
    silent = START + next(
        emission.at
        for emission in timeline(Scenario(dialect="megatron-lm", iterations=40, noise=0.0, save_interval=1000))
        if emission.truth and emission.truth.get("iteration") == 19
    )
    assert silent + 200 < min(fired) < silent + 700
    assert critical[-1].value == 0.0


def test_a_history_has_no_deadlines(tmp_path: Path) -> None:
    """Rules compare them with the present: one of a log that ends just before now would be reported as a hang."""
    found = points_of(invoke(str(simulated(tmp_path / "run.log")), "--step", "2m").stdout)
    assert "megatron_last_progress_timestamp_seconds" in found
    assert "megatron_hang_deadline_timestamp_seconds" not in found


def test_the_zone_of_the_log(tmp_path: Path) -> None:
    """Times are read in --timezone; instants among the values move with them."""
    log = simulated(tmp_path / "a.log")
    utc = points_of(invoke(str(log), "--step", "2m").stdout)
    paris = points_of(invoke(str(log), "--step", "2m", "--timezone", "Europe/Paris").stdout)
    for name in ("megatron_iteration", "megatron_last_progress_timestamp_seconds"):
        moved = [b.at - a.at for a, b in zip(utc[name], paris[name], strict=True)]
        assert set(moved) == {-3600.0}
    name = "megatron_last_progress_timestamp_seconds"
    assert {b.value - a.value for a, b in zip(utc[name], paris[name], strict=True)} == {-3600.0}
    invoke(str(log), "--timezone", "Atlantis/Poseidon", code=2)


def test_a_log_without_times_needs_a_start(tmp_path: Path) -> None:
    """Then its first line is at the start, and iterations are added up."""
    log = tmp_path / "old.log"
    log.write_text("".join(LINE.format(number, 3.0) for number in range(1, 11)))
    refused = invoke(str(log), code=1)
    assert "give --start" in refused.stderr
    found = invoke(str(log), "--start", "2022-03-11T11:42:00", "--timezone", "Europe/Paris", "--step", "30s")
    points = points_of(found.stdout)["megatron_iteration"]
    begin = datetime(2022, 3, 11, 11, 42, tzinfo=ZoneInfo("Europe/Paris")).timestamp()
    assert [point.at - begin for point in points] == [30.0 * number for number in range(1, 11)]
    assert [point.value for point in points] == list(range(1, 11))


def test_iterations_before_the_first_dated_line_are_dated_backwards(tmp_path: Path) -> None:
    """BigScience's logs print a time only now and then: what stands before it is counted back from it."""
    log = tmp_path / "part.log"
    lines = [LINE.format(number, 3.0) for number in range(1, 11)]
    log.write_text("".join(lines) + "[exiting program at iteration 10] datetime: 2022-03-11 12:00:00 \n")
    points = points_of(invoke(str(log), "--step", "30s").stdout)["megatron_iteration"]
    end = datetime(2022, 3, 11, 12, 0, tzinfo=UTC).timestamp()
    assert (points[0].value, points[0].at) == (1.0, end - 270.0)
    assert (points[-1].value, points[-1].at) == (10.0, end)


def test_labels_and_what_is_refused(tmp_path: Path) -> None:
    """A label more stands on every series; a bad one and a file of no training are told."""
    log = simulated(tmp_path / "a.log")
    points = points_of(invoke(str(log), "--step", "2m", "--label", 'job=mega"tron').stdout)
    assert all(point.labels["job"] == 'mega"tron' for found in points.values() for point in found)
    invoke(str(log), "--label", "run=x", code=2)
    invoke(str(log), "--label", "9=x", code=2)
    noise = tmp_path / "noise.log"
    noise.write_text("2022-03-11 12:00:00 nothing to see\n")
    invoke(str(noise), code=1)


def test_each_point_of_the_histogram_is_whole(tmp_path: Path) -> None:
    """Buckets, count and sum of one instant stand together, cumulative, and grow with time."""
    text = invoke(str(simulated(tmp_path / "a.log"))).stdout
    groups: dict[str, list[tuple[str, float]]] = {}
    for line in text.splitlines():
        if line.startswith(HISTOGRAMS[0]):
            series, value, at = line.rsplit(" ", 2)
            groups.setdefault(at, []).append((series.removeprefix(HISTOGRAMS[0]), float(value)))
    counts = []
    for lines in groups.values():
        names = [name for name, _ in lines]
        assert [name.partition("{")[0] for name in names] == ["_bucket"] * (len(lines) - 2) + ["_count", "_sum"]
        assert 'le="+Inf"' in names[-3]
        buckets = [value for _, value in lines[:-2]]
        assert buckets == sorted(buckets)
        assert buckets[-1] == lines[-2][1]
        counts.append(buckets[-1])
    assert counts == sorted(counts)
    assert counts[-1] == 39


def test_standard_input(tmp_path: Path) -> None:
    """A pipe is read once and kept meanwhile, since a history is read twice."""
    text = simulated(tmp_path / "a.log").read_bytes()
    result = command("backfill", "-", "--step", "2m", stdin=text)
    assert {point.labels["run"] for point in points_of(result.stdout)["megatron_iteration"]} == {"stdin"}


def test_points_wait_on_the_disk(tmp_path: Path) -> None:
    """Many scrapes of one run keep their order and lose none."""
    log = simulated(tmp_path / "a.log")
    text = invoke(str(log), "--step", "6s").stdout
    times = [float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("megatron_iteration{")]
    assert len(times) > 650
    assert times == sorted(set(times))
