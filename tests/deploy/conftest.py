"""Real Prometheus, Alertmanager and their like on loopback, made from the files in deploy/, ended by their fixture."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.conftest import start  # noqa: F401 - the fixture that starts the daemon
from tests.e2e.test_daemon import training  # noqa: F401 - the fixture that writes a log
from tests.programs import Prometheus, prometheus, running

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "rules"


Launch = Callable[..., str]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Start a program with `launch(*command, listen=OPTION, ready=PATH)`; gives its address."""
    with ExitStack() as stack:
        yield lambda *command, **options: stack.enter_context(running(tmp_path, *command, **options))


def hastened(directory: Path, **waits: str) -> list[str]:
    """Copies of the rule files with shorter `for`, so that a test need not wait; paths of the copies."""
    copies = []
    for path in sorted(RULES.glob("*.yml")):
        text = path.read_text()
        for name, value in waits.items():
            text, found = re.subn(rf"(- alert: {name}\n(?:(?!    - ).*\n)*?      for: )\S+", rf"\g<1>{value}", text)
            assert found or f"alert: {name}\n" not in text, name
        copy = directory / path.name
        copy.write_text(text.replace("    interval: 2m\n", "    interval: 1s\n"))
        copies.append(str(copy))
    return copies


StartPrometheus = Callable[..., Prometheus]


@pytest.fixture
def start_prometheus(tmp_path: Path) -> Iterator[StartPrometheus]:
    """Start Prometheus on a configuration, with options of its own if need be."""
    with ExitStack() as stack:
        yield lambda config, *options: stack.enter_context(
            prometheus(tmp_path, yaml.safe_dump(config, sort_keys=False), *options)
        )


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
        return launch(
            "prometheus-alertmanager", f"--config.file={file}", f"--storage.path={tmp_path / 'alertmanager'}",
            "--cluster.listen-address=", listen="--web.listen-address", ready="/-/ready",
        )  # fmt: skip

    return begin


def environment() -> dict[str, str]:
    """Of a program that must not read the user's own files."""
    return {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "LC_ALL": "C.UTF-8"}
