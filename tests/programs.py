"""Real programs on loopback, each on a port that the kernel chose, waited for until it answers, and ended."""

import json
import os
import select
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

TETHERED = ("setpriv", "--pdeathsig", "KILL")
"""Before a command: it is killed when the test's process dies, however that ends (util-linux)."""
INSTALLED = os.environ.get("MEGATRON_MONITOR_PROGRAM")
MONITOR = (INSTALLED,) if INSTALLED else (sys.executable, "-m", "megatron_monitor")
"""The program: an installed one where the environment names it (.ci/wheel), else the tree's."""
PYTHON = str(Path(INSTALLED).with_name("python")) if INSTALLED else sys.executable
"""What runs it."""
now = time.monotonic  # noqa: TID251 - real programs run on the real clock


def slack(seconds: float) -> float:
    """A limit in seconds that holds on an idle machine, longer on one that is busy: by its load for each core, that of
    the last minute or, where that is more, what wants to run now.
    """
    running = int(Path("/proc/loadavg").read_text().split()[3].split("/")[0])
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1), running / (os.cpu_count() or 1))


def wait(condition: Callable[[], bool], timeout: float, what: str | Callable[[], str]) -> float:
    """Seconds until the condition held; fails the test after `slack(timeout)`."""
    began = now()
    while not condition():
        if now() - began > slack(timeout):
            raise AssertionError(f"not within {timeout} s: {what if isinstance(what, str) else what()}")
        select.select([], [], [], 0.05)
    return now() - began


def get(url: str, timeout: float = 10.0) -> str:
    """The body of a page."""
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return str(answer.read().decode())


def answers(url: str) -> bool:
    """Whether a page is served."""
    try:
        get(url, timeout=2.0)
    except OSError:
        return False
    return True


def free_port() -> int:
    """A port that was free a moment ago, for a program that must be told one (or nobody's port)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


Server = TypeVar("Server", bound=socketserver.BaseServer)


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """One of this process, by a thread of its own."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    with server:
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(slack(10.0))


def listening(pid: int) -> set[int]:
    """The ports on which a process listens (/proc, as `ss -tlnp` finds them)."""
    sockets, ports = set(), set[int]()
    with suppress(OSError):  # it may have ended
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                sockets.add(os.readlink(descriptor))
    for row in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = row.split()  # 1: the local address, 3: the state (0A: it listens), 9: the socket's inode
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
            ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


@contextmanager
def running(
    directory: Path, *command: str | Path, listen: str, ready: str, port: int = 0, end: int = signal.SIGKILL
) -> Iterator[str]:
    """The address of a program that is told `LISTEN=127.0.0.1:PORT`, once `ready` is served; ended by a signal."""
    program = Path(command[0]).name
    log = directory / f"{program}-{len(list(directory.glob(f'{program}-*.log')))}.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [*TETHERED, *map(str, command), f"{listen}=127.0.0.1:{port}"], stdout=stream, stderr=stream, cwd=directory
        )
    try:
        wait(lambda: process.poll() is not None or bool(port or listening(process.pid)), 30.0, log.read_text)
        address = f"127.0.0.1:{port or min(listening(process.pid), default=0)}"
        wait(lambda: process.poll() is not None or answers(f"http://{address}{ready}"), 30.0, log.read_text)
        assert process.poll() is None, log.read_text()[-4000:]
        yield address
    finally:
        process.send_signal(end)
        process.wait(timeout=slack(10))


class Prometheus:
    """The HTTP API of a Prometheus; an error of a query fails the test with Prometheus's own words."""

    def __init__(self, address: str) -> None:
        self.address = address

    def api(self, path: str, **parameters: str) -> Any:
        """The `data` of an answer."""
        text = urllib.parse.urlencode(parameters)
        posted = path.startswith("query")  # expressions are long
        try:
            with urllib.request.urlopen(
                f"http://{self.address}/api/v1/{path}{'' if posted else f'?{text}'}",
                text.encode() if posted else None, timeout=slack(60),
            ) as answer:  # fmt: skip
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None

    def instant(self, expression: str, at: float | None = None) -> list[dict[str, Any]]:
        """Series with their value at an instant (default: now)."""
        data = self.api("query", query=expression, **({} if at is None else {"time": f"{at:.3f}"}))
        return [{"metric": {}, "value": data["result"]}] if data["resultType"] == "scalar" else list(data["result"])

    def value(self, expression: str, at: float | None = None) -> float | None:
        """The only value; None if there is none."""
        found = self.instant(expression, at)
        assert len(found) <= 1, found
        return float(found[0]["value"][1]) if found else None

    def range(self, expression: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        """Series with their values every `step` seconds."""
        asked = {"start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:g}"}
        return list(self.api("query_range", query=expression, **asked)["result"])

    def firing(self) -> set[str]:
        """Names of the alerts that fire, without the one that always does."""
        names = {alert["labels"]["alertname"] for alert in self.api("alerts")["alerts"] if alert["state"] == "firing"}
        return names - {"MegatronWatchdog"}


@contextmanager
def prometheus(directory: Path, config: str = "{}", *options: str) -> Iterator[Prometheus]:
    """A Prometheus with that configuration; its store is `directory`/data."""
    (directory / "prometheus.yml").write_text(config)
    files = (f"--config.file={directory / 'prometheus.yml'}", f"--storage.tsdb.path={directory / 'data'}")
    command = ("prometheus", *files, *options)
    with running(directory, *command, listen="--web.listen-address", ready="/-/ready") as address:
        yield Prometheus(address)


@contextmanager
def prometheus_on_blocks(directory: Path, history: Path) -> Iterator[Prometheus]:
    """A Prometheus whose store promtool made from an OpenMetrics file; nothing is too old for it."""
    made = subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(history), str(directory / "data")],
        capture_output=True, text=True, timeout=slack(120),
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    with prometheus(directory, "{}", "--storage.tsdb.retention.time=100y") as server:
        yield server
