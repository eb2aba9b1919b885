"""The real daemon as a process on loopback, ended by its fixture."""

import functools
import os
import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.forks import Forge, Process
from tests.programs import MONITOR, PYTHON, TETHERED, slack, wait


class RunningDaemon:
    """A daemon that listens; `metric` reads its page."""

    def __init__(self, process: subprocess.Popen[bytes] | Process, address: str) -> None:
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


Begin = Callable[[list[str], dict[str, str], Path], subprocess.Popen[bytes] | Process]


@functools.cache
def forge() -> Forge:
    """Where most daemons of this process come from: forged.py, which has imported everything."""
    return Forge(Path(__file__).with_name("forged.py"), PYTHON, {**os.environ, "PYTHONUNBUFFERED": "1"})


def _forked(arguments: list[str], environment: dict[str, str], log: Path) -> Process:
    log.touch()
    return forge().start(arguments, environment, log)


def _commanded(arguments: list[str], environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("w") as stream:
        return subprocess.Popen([*TETHERED, *MONITOR, *arguments], stderr=stream, stdout=stream, env=environment)


@contextmanager
def daemons(directory: Path, make: Begin = _forked) -> Iterator[Start]:
    """Start daemons with `start(*arguments)`; state below `directory`, a free port each; they are killed at the end."""
    running: list[subprocess.Popen[bytes] | Process] = []

    def begin(*arguments: str, listen: str = "127.0.0.1:0") -> RunningDaemon:
        environment = {**os.environ, "XDG_STATE_HOME": str(directory / "state"), "PYTHONUNBUFFERED": "1"}
        log = directory / f"daemon-{len(running)}.log"
        process = make(["run", "--listen", listen, *arguments], environment, log)
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
    """Daemons of one test, forked."""
    with daemons(tmp_path) as begin:
        yield begin


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Start]:
    """Daemons of one test, by the command as people give it."""
    with daemons(tmp_path, _commanded) as begin:
        yield begin


def _address(process: subprocess.Popen[bytes] | Process, log: Path) -> str:
    def listens() -> bool:
        assert process.poll() is None, log.read_text()
        return "listening on http://" in log.read_text()

    wait(listens, 20.0, log.read_text)
    return re.findall(r"listening on http://([^/\s]+)/", log.read_text())[0]
