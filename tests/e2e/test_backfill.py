"""History into a real Prometheus: `backfill`, `promtool tsdb create-blocks-from openmetrics`, then PromQL."""

from __future__ import annotations

import json
import select
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from monitor.simulate import Fault, Scenario, timeline, write

pytestmark = [pytest.mark.e2e, pytest.mark.promtool]

START = 1_767_225_600.0
SCENARIO = Scenario(
    dialect="megatron-lm", iterations=120, save_interval=50, faults=(Fault("crash_and_restart", 70),), seed=5
)


class Prometheus:
    """A server over a directory of blocks."""

    def __init__(self, address: str) -> None:
        self.address = address

    def get(self, path: str, **arguments: str) -> Any:
        """The data of an answer of the API."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.loads(answer.read())["data"]

    def value(self, query: str, at: float) -> float | None:
        """The only value of an instant query; None if there is none."""
        found = self.get("query", query=query, time=f"{at:.3f}")["result"]
        assert len(found) <= 1, found
        return float(found[0]["value"][1]) if found else None


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """The simulated log's history in blocks, and a server on them."""
    folder = tmp_path_factory.mktemp("history")
    with (folder / "tuning.log").open("wb") as stream:
        write(SCENARIO, stream)
    command = [
        sys.executable,
        "-m",
        "monitor",
        "backfill",
        str(folder / "tuning.log"),
        "-o",
        str(folder / "history.om"),
    ]
    subprocess.run([*command, "--step", "30s", "--label", "job=megatron"], check=True, timeout=60, capture_output=True)
    blocks = folder / "data"
    promtool, server = shutil.which("promtool"), shutil.which("prometheus")
    assert promtool is not None
    assert server is not None
    made = subprocess.run(
        [promtool, "tsdb", "create-blocks-from", "openmetrics", str(folder / "history.om"), str(blocks)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    (folder / "prometheus.yml").write_text("global: {}\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [server, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={blocks}",
             "--storage.tsdb.retention.time=100y", f"--web.listen-address={address}"], stdout=log, stderr=log,
        )  # fmt: skip
        try:
            _wait_ready(address, process)
            yield Prometheus(address)
        finally:
            process.terminate()
            process.wait(timeout=20)


def _wait_ready(address: str, process: subprocess.Popen[bytes]) -> None:
    began = time.monotonic()  # noqa: TID251 - a real server on the real clock
    while time.monotonic() - began < 30:  # noqa: TID251
        assert process.poll() is None, "prometheus has ended"
        try:
            with urllib.request.urlopen(f"http://{address}/-/ready", timeout=2) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        select.select([], [], [], 0.1)
    raise AssertionError("prometheus is not ready within 30 s")


def truth() -> list[tuple[float, dict[str, Any]]]:
    """(instant, what was printed) of each iteration."""
    return [(START + e.at, e.truth) for e in timeline(SCENARIO) if e.truth and "loss" in e.truth]


def test_every_iteration_is_read_back_at_its_time(prometheus: Prometheus) -> None:
    """A range query over the whole run: at each step the iteration, loss and batch size that were the last ones."""
    told = truth()
    first, last = told[0][0], told[-1][0]
    arguments = {"start": f"{first:.3f}", "end": f"{last:.3f}", "step": "60"}
    query = 'megatron_iteration{run="tuning",job="megatron"}'
    (series,) = prometheus.get("query_range", query=query, **arguments)["result"]
    assert len(series["values"]) > 150
    for at, value in series["values"]:
        # the scrape behind it is up to 30 s old
        newest = [t["iteration"] for when, t in told if at - 31 <= when <= at]
        before = [t["iteration"] for when, t in told if when < at - 30][-1:]
        assert int(float(value)) in newest + before
    (losses,) = prometheus.get("query_range", query='megatron_lm_loss{run="tuning"}', **arguments)["result"]
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
