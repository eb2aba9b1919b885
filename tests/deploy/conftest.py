"""Real Prometheus, Alertmanager and their like on loopback, made from the files in deploy/, ended by their fixture."""

from __future__ import annotations

import json
import os
import re
import select
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml

from tests.e2e.conftest import start  # noqa: F401 - the fixture that starts the daemon
from tests.e2e.test_daemon import training  # noqa: F401 - the fixture that writes a log

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "rules"


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def get(url: str, timeout: float = 5.0) -> str:
    """The body of a page."""
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return str(answer.read().decode())


def answers(url: str) -> bool:
    """Whether a page is served."""
    try:
        get(url, timeout=1.0)
    except (OSError, urllib.error.URLError):
        return False
    return True


def wait(condition: Callable[[], bool], timeout: float, what: str) -> float:
    """Seconds until the condition held; fails the test after `timeout`."""
    began = time.monotonic()  # noqa: TID251 - real programs run on the real clock
    while not condition():
        assert time.monotonic() - began < timeout, f"not within {timeout} s: {what}"  # noqa: TID251
        select.select([], [], [], 0.05)
    return time.monotonic() - began  # noqa: TID251


Launch = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Start a program with `launch(*command, ready=URL)`; its output goes to a file below tmp_path."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(*command: str | Path, ready: str) -> subprocess.Popen[bytes]:
        log = tmp_path / f"{Path(command[0]).name}-{len(running)}.log"
        with log.open("wb") as stream:
            process = subprocess.Popen([str(part) for part in command], stdout=stream, stderr=stream, cwd=tmp_path)
        running.append(process)
        wait(lambda: answers(ready) or process.poll() is not None, 30.0, f"{command[0]}: {log.read_text()[-2000:]}")
        assert process.poll() is None, log.read_text()[-4000:]
        return process

    yield begin
    for process in reversed(running):
        process.kill()
        process.wait(timeout=10)


class Prometheus:
    """A Prometheus that answers queries."""

    def __init__(self, address: str) -> None:
        self.address = address

    def api(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its API."""
        return json.loads(get(f"http://{self.address}/api/v1/{path}?{urlencode(parameters)}"))["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """An instant query: labels and value of each sample."""
        result = self.api("query", query=expression)["result"]
        return [(sample["metric"], float(sample["value"][1])) for sample in result]

    def firing(self) -> set[str]:
        """Names of the alerts that fire."""
        return {alert["labels"]["alertname"] for alert in self.api("alerts")["alerts"] if alert["state"] == "firing"}


def hastened(directory: Path, **waits: str) -> list[str]:
    """Copies of the rule files with shorter `for`, so that a test need not wait; paths of the copies."""
    copies = []
    for path in sorted(RULES.glob("*.yml")):
        text = path.read_text()
        for name, value in waits.items():
            text, found = re.subn(rf"(- alert: {name}\n(?:(?!    - ).*\n)*?      for: )\S+", rf"\g<1>{value}", text)
            assert found or f"alert: {name}\n" not in text, name
        copy = directory / path.name
        copy.write_text(text)
        copies.append(str(copy))
    return copies


StartPrometheus = Callable[[dict[str, Any]], Prometheus]


@pytest.fixture
def start_prometheus(launch: Launch, tmp_path: Path) -> StartPrometheus:
    """Start Prometheus on a configuration."""

    def begin(config: dict[str, Any]) -> Prometheus:
        file = tmp_path / "prometheus.yml"
        file.write_text(yaml.safe_dump(config, sort_keys=False))
        address = f"127.0.0.1:{free_port()}"
        launch(
            "prometheus", f"--config.file={file}", f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address={address}", ready=f"http://{address}/-/ready",
        )  # fmt: skip
        return Prometheus(address)

    return begin


def with_example(text: str, name: str) -> str:
    """The Alertmanager's configuration with one of its commented examples taken into use."""
    pattern = re.compile(rf"^( *)# example {name}\n((?:\1# .*\n)+?)(?=\1# example|(?!\1#))", re.MULTILINE)
    match = pattern.search(text)
    assert match, f"no example {name}"
    indent = match[1]
    used = re.sub(rf"^{indent}# ", indent, match[2], flags=re.MULTILINE)
    return text[: match.start()] + used + text[match.end() :]


class Receiver:
    """A webhook that keeps what is posted to it."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                receiver.bodies.append(json.loads(self.rfile.read(length)))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def alerts(self, name: str, status: str) -> list[dict[str, Any]]:
        """Alerts of a name that came with a status."""
        return [
            alert
            for body in list(self.bodies)
            for alert in body["alerts"]
            if alert["labels"]["alertname"] == name and alert["status"] == status
        ]

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A webhook receiver."""
    one = Receiver()
    yield one
    one.close()


StartAlertmanager = Callable[..., str]


@pytest.fixture
def start_alertmanager(launch: Launch, tmp_path: Path, receiver: Receiver) -> StartAlertmanager:
    """Start Alertmanager on the shipped file, its webhook example pointed at `receiver`; its address."""

    def begin(**route: str) -> str:
        config = yaml.safe_load(with_example((DEPLOY / "alertmanager" / "alertmanager.yml").read_text(), "webhook"))
        config["route"].update(route)
        (webhook,) = (one["webhook_configs"] for one in config["receivers"] if "webhook_configs" in one)
        webhook[0]["url"] = receiver.url
        file = tmp_path / "alertmanager.yml"
        file.write_text(yaml.safe_dump(config, sort_keys=False))
        address = f"127.0.0.1:{free_port()}"
        launch(
            "prometheus-alertmanager", f"--config.file={file}", f"--storage.path={tmp_path / 'alertmanager'}",
            f"--web.listen-address={address}", "--cluster.listen-address=", ready=f"http://{address}/-/ready",
        )  # fmt: skip
        return address

    return begin


def environment() -> dict[str, str]:
    """Of a program that must not read the user's own files."""
    return {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "LC_ALL": "C.UTF-8"}
