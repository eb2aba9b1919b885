"""The real daemon as a process on loopback, ended by its fixture."""

import os
import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.programs import MONITOR, TETHERED, slack, wait


class RunningDaemon:
    """A daemon that listens; `metric` reads its page."""

    def __init__(self, process: subprocess.Popen[bytes], address: str) -> None:
        self.process = process
        self.address = address

    def get(self, path: str) -> str:
        """The body of a page."""
        with urllib.request.urlopen(f"http://{self.address}{path}", timeout=slack(10)) as answer:
            return str(answer.read().decode())

    def status(self, path: str) -> int:
        """The status of a page."""
        try:
            with urllib.request.urlopen(f"http://{self.address}{path}", timeout=slack(10)) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def metric(self, name: str, **labels: str) -> float | None:
        """The value of one series, None if there is none."""
        rows = [row for row in self.get("/metrics").split("\n") if row.startswith(name)]  # the library is slow
        for family in text_string_to_metric_families("\n".join(rows) + "\n"):
            for sample in family.samples:
                if sample.name == name and all(sample.labels.get(key) == value for key, value in labels.items()):
                    return sample.value
        return None

    def wait(self, condition: Callable[[], bool], timeout: float = 10.0) -> float:
        """Seconds until the condition held; fails the test after `slack(timeout)`, or when the daemon has ended."""

        def held() -> bool:
            assert self.process.poll() is None, "the daemon has ended"
            return condition()

        return wait(held, timeout, "the daemon's condition")

    def kill(self) -> None:
        """Kill -9: nothing is saved on the way out."""
        self.process.kill()
        self.process.wait(timeout=slack(5))

    def terminate(self) -> int:
        """SIGTERM, and the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=slack(10))


Start = Callable[..., RunningDaemon]
_STARTER = ThreadPoolExecutor(1)
"""Starts the daemons: what is tethered ends with the thread that started it, and those of plays are short."""


@contextmanager
def daemons(directory: Path, program: Sequence[str] = MONITOR) -> Iterator[Start]:
    """Start daemons with `start(*arguments)`; state below `directory`, a free port each; they are killed at the end."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(*arguments: str, listen: str = "127.0.0.1:0") -> RunningDaemon:
        environment = {**os.environ, "XDG_STATE_HOME": str(directory / "state"), "PYTHONUNBUFFERED": "1"}
        log = directory / f"daemon-{len(running)}.log"
        command = [*TETHERED, *program, "run", "--listen", listen, *arguments]
        with log.open("w") as stream:
            process = _STARTER.submit(subprocess.Popen, command, stderr=stream, stdout=stream, env=environment).result()
        running.append(process)
        return RunningDaemon(process, _address(process, log))

    try:
        yield begin
    finally:
        for process in running:
            process.kill()
            process.wait(timeout=slack(5))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Daemons of one test."""
    with daemons(tmp_path) as begin:
        yield begin


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    def listens() -> bool:
        assert process.poll() is None, log.read_text()
        return "listening on http://" in log.read_text()

    wait(listens, 20.0, log.read_text)
    return re.findall(r"listening on http://([^/\s]+)/", log.read_text())[0]
