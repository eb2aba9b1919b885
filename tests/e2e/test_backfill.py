"""History into a real Prometheus: `backfill`, `promtool tsdb create-blocks-from openmetrics`, then PromQL."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from megatron_monitor.simulate import Fault, Scenario, timeline, write
from tests.programs import Prometheus, prometheus_on_blocks, slack

pytestmark = [pytest.mark.e2e, pytest.mark.promtool]

START = 1_767_225_600.0
SCENARIO = Scenario(
    dialect="megatron-lm", iterations=120, save_interval=50, faults=(Fault("crash_and_restart", 70),), seed=5
)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """The simulated log's history in blocks, and a server on them."""
    folder = tmp_path_factory.mktemp("history")
    with (folder / "tuning.log").open("wb") as stream:
        write(SCENARIO, stream)
    command = [
        sys.executable,
        "-m",
        "megatron_monitor",
        "backfill",
        str(folder / "tuning.log"),
        "-o",
        str(folder / "history.om"),
    ]
    subprocess.run(
        [*command, "--step", "30s", "--label", "job=megatron"], check=True, timeout=slack(120), capture_output=True
    )
    with prometheus_on_blocks(folder, folder / "history.om") as server:
        yield server


def truth() -> list[tuple[float, dict[str, Any]]]:
    """(instant, what was printed) of each iteration."""
    return [(START + e.at, e.truth) for e in timeline(SCENARIO) if e.truth and "loss" in e.truth]


def test_every_iteration_is_read_back_at_its_time(prometheus: Prometheus) -> None:
    """A range query over the whole run: at each step the iteration, loss and batch size that were the last ones."""
    told = truth()
    first, last = told[0][0], told[-1][0]
    query = 'megatron_iteration{run="tuning",job="megatron"}'
    (series,) = prometheus.range(query, first, last, 60)
    assert len(series["values"]) > 150
    for at, value in series["values"]:
        # the scrape behind it is up to 30 s old
        newest = [t["iteration"] for when, t in told if at - 31 <= when <= at]
        before = [t["iteration"] for when, t in told if when < at - 30][-1:]
        assert int(float(value)) in newest + before
    (losses,) = prometheus.range('megatron_lm_loss{run="tuning"}', first, last, 60)
    printed = {float(f"{t['loss']:.6E}") for _, t in told}
    assert {float(value) for _, value in losses["values"]} <= printed


def test_counters_count_and_rates_can_be_taken(prometheus: Prometheus) -> None:
    """The 19 iterations that the crash cost are counted again; the rate over an hour is the pace."""
    end = truth()[-1][0] + 1
    assert prometheus.value('megatron_iterations_total{run="tuning"}', end) == len(truth())
    assert prometheus.value('megatron_restarts_total{run="tuning"}', end) == 1
    rate = prometheus.value('rate(megatron_iterations_total{run="tuning"}[1h])', end)
    assert rate == pytest.approx(1 / 105.22, rel=0.05)


def test_the_crash_stands_in_the_history(prometheus: Prometheus) -> None:
    """Before it nothing, after it the failure; the histogram's quantile is the pace."""
    crash = next(START + e.at for e in timeline(SCENARIO) if e.truth and e.truth.get("fault"))
    end = truth()[-1][0] + 1
    query = 'sum(megatron_failures_total{run="tuning"}) or vector(0)'
    assert prometheus.value(query, crash - 60) == 0
    assert prometheus.value(query, end) == 1
    median = prometheus.value(
        'histogram_quantile(0.5, sum by (le) (rate(megatron_iteration_duration_seconds_bucket{run="tuning"}[1h])))', end
    )
    assert median is not None
    assert 100 < median < 250
