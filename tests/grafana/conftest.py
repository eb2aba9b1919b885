"""A real Prometheus on the backfilled day, ended by its fixture."""

from __future__ import annotations

import json
import select
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.grafana.history import DAY, write

END = 1_763_000_000.0  # any moment that is past: backfilled data is not now
STEP = 120.0


class Prometheus:
    """The HTTP API of a running Prometheus; an error of a query fails the test with Prometheus's own words."""

    def __init__(self, address: str) -> None:
        self.address = address

    def get(self, path: str, **parameters: str) -> Any:
        """The `data` of an answer."""
        body = urllib.parse.urlencode(parameters).encode()  # POST: expressions are long
        try:
            with urllib.request.urlopen(f"http://{self.address}/api/v1/{path}", body, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters.get('query')}: {error.read().decode()}") from None

    def labels(self, label: str, parameters: dict[str, str]) -> list[str]:
        """The values of a label."""
        asked = f"http://{self.address}/api/v1/label/{label}/values?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return list(json.load(answer)["data"])

    def instant(self, expression: str, at: float = END) -> list[dict[str, Any]]:
        """Series with their value at the end of the day."""
        data = self.get("query", query=expression, time=str(at))
        return [{"metric": {}, "value": data["result"]}] if data["resultType"] == "scalar" else list(data["result"])

    def range(self, expression: str, seconds: float = DAY, step: float = 300.0) -> list[dict[str, Any]]:
        """Series with their values over the last seconds of the day."""
        data = self.get("query_range", query=expression, start=str(END - seconds), end=str(END), step=str(step))
        return list(data["result"])

    def values(self, expression: str, *labels: str) -> dict[Any, float]:
        """The value of each series by its labels (one label: its text; several: a tuple)."""
        found = {}
        for series in self.instant(expression):
            key = tuple(series["metric"].get(label, "") for label in labels)
            found[key[0] if len(labels) == 1 else key] = float(series["value"][1])
        return found

    def one(self, expression: str) -> float:
        """The value of an expression that has one series."""
        (series,) = self.instant(expression)
        return float(series["value"][1])


@pytest.fixture(scope="session")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Debian's Prometheus with the day in its store."""
    folder = tmp_path_factory.mktemp("prometheus")
    write(folder / "day.om", END, STEP)
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(folder / "day.om"), str(folder / "data")]
    made = subprocess.run(command, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    (folder / "prometheus.yml").write_text("global: {scrape_interval: 1h}\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    log = folder / "prometheus.log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [
                str(shutil.which("prometheus")),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                "--storage.tsdb.retention.time=30y",
                f"--web.listen-address={address}",
            ],
            stdout=stream,
            stderr=stream,
        )
    try:
        _wait_until_ready(address, process, log)
        yield Prometheus(address)
    finally:
        process.kill()
        process.wait(timeout=10)


def _wait_until_ready(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 30.0  # noqa: TID251 - a real process on the real clock
    while time.monotonic() < until:  # noqa: TID251
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"http://{address}/-/ready", timeout=5):
                return
        except OSError:
            select.select([], [], [], 0.05)
    raise AssertionError(f"prometheus is not ready: {log.read_text()}")
