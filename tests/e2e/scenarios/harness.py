"""What a scenario works with: real daemons, files that a training writes, and the metrics that must come of them.

A unit is one iteration line and one overflow line. The first tells what the run knows, the second is counted plainly,
line by line: a unit read twice shows. Every unit written and every unit counted goes into the table at the suite's end.
"""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from megatron_monitor.core.saved import of_parts
from megatron_monitor.store import Store
from tests.e2e.forks import Forge
from tests.lines import line
from tests.programs import now, slack

ENVIRONMENT = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(Path(__file__).parents[3])}
OVERFLOW = "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768\n"
# The follower's patience, shortened alike so that the suite is: the order of what it waits for stays.
PATIENCE = {
    "recheck_seconds": 0.5, "confirm_seconds": 0.8, "rotation_grace": 0.3, "gone_grace": 0.6, "hole_seconds": 0.8,
    "renamed_seconds": 5.0, "discovery_soonest": 0.2, "failure_interval": 2.0,
}  # fmt: skip
TOTALS: Counter[str] = Counter()
"""written, counted, lost, doubled, faults, inputs: for the table."""


@functools.cache
def forge() -> Forge:
    """Where all daemons of this process come from: launcher.py, which has imported everything."""
    return Forge(Path(__file__).with_name("launcher.py"), sys.executable, ENVIRONMENT)


def iteration_line(number: int) -> str:
    """That of a unit."""
    return line(number, 100_000, loss=3 + number / 7)


def units(count: int, first: int = 1) -> bytes:
    """So many units, iterations from `first` on."""
    return "".join(iteration_line(number) + OVERFLOW for number in range(first, first + count)).encode()


def samples(page: str, name: str) -> Iterator[tuple[str, float]]:
    """Labels as written, and the value, of one metric's samples: they stand together, behind its head."""
    _, _, behind = page.partition(f"\n# TYPE {name} ")
    for row in behind.partition("\n# ")[0].split("\n")[1:]:
        if row:
            labels, _, value = row.removeprefix(name).rpartition(" ")
            yield labels[1:-1], float(value)


class Daemon:
    """One process. `control` reaches into its system calls."""

    def __init__(self, directory: Path, arguments: Iterable[str], **control: Any) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.control_file = directory / "control.json"
        self._lock = threading.Lock()
        self.control: dict[str, Any] = {"patience": PATIENCE, **control}
        more = self.control.pop("environment", {})
        self._write_control()
        self.log = directory / f"daemon-{len(list(directory.glob('daemon-*.log')))}.log"
        self.log.touch()
        environment = {**ENVIRONMENT, "XDG_STATE_HOME": str(directory / "state"), **more}
        self.process = forge().start([str(self.control_file), "run", *arguments], environment, self.log)
        self.address = ""

    def started(self, timeout: float = 30.0) -> Daemon:
        """Once it listens."""
        until = now() + slack(timeout)
        while now() < until:
            match = re.search(r"listening on (https?://[^/\s]+)/", self.log.read_text())
            if match:
                self.address = match[1]
                return self
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.02)
        raise AssertionError(f"it does not listen: {self.log.read_text()}")

    def _write_control(self) -> None:
        temporary = self.control_file.with_suffix(".new")
        temporary.write_text(json.dumps(self.control))
        os.replace(temporary, self.control_file)

    def set(self, **control: Any) -> None:
        """From the next system call on."""
        with self._lock:
            self.control |= control
            self._write_control()
            TOTALS["faults"] += len(control.get("faults", ()))

    def change_faults(self, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
        """Several scenarios share one daemon: each changes its own faults."""
        with self._lock:
            self.control["faults"] = change(list(self.control.get("faults", ())))
            self._write_control()

    def fetch(self, path: str = "/metrics", headers: dict[str, str] | None = None) -> bytes:
        """A page."""
        request = urllib.request.Request(self.address + path, headers=headers or {})
        with urllib.request.urlopen(request, timeout=slack(10)) as answer:
            return bytes(answer.read())

    def status(self, path: str) -> int:
        """A page's status."""
        try:
            with urllib.request.urlopen(self.address + path, timeout=slack(10)) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def samples(self, name: str) -> dict[str, float]:
        """Labels as written -> value, of one metric."""
        return dict(samples(self.fetch().decode(), name))

    def value(self, name: str, *parts: str) -> float:
        """The sum over the series whose labels hold all parts; 0 if there is none."""
        return sum(value for labels, value in self.samples(name).items() if all(part in labels for part in parts))

    def wait(self, condition: Callable[[], bool], timeout: float = 20.0, what: str = "") -> float:
        """Seconds until it held."""
        began = now()
        while not condition():
            assert now() - began < slack(timeout), f"not within {timeout} s: {what}\n{self.log.read_text()[-2000:]}"
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            time.sleep(0.1)
        return now() - began

    def cpu(self) -> float:
        """Seconds of CPU so far."""
        parts = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")

    def rss(self) -> float:
        """Resident memory in MiB."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def descriptors(self) -> list[str]:
        """What its open descriptors name."""
        found = []
        for entry in Path(f"/proc/{self.process.pid}/fd").iterdir():
            try:
                found.append(os.readlink(entry))
            except OSError:
                continue
        return found

    def threads(self) -> int:
        """How many."""
        return len(list(Path(f"/proc/{self.process.pid}/task").iterdir()))

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait(slack(10))

    def terminate(self, timeout: float = 10.0) -> int:
        """SIGTERM; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(slack(timeout))

    def end(self) -> None:
        """At the end of a scenario."""
        if self.process.poll() is None:
            self.set(faults=[])
            self.process.kill()
            self.process.wait(slack(10))


class Lab:
    """One scenario's directory below what a shared daemon follows, and its writer."""

    def __init__(self, root: Path, name: str, stage: Daemon | None, own: Path, mode: str, writer: str) -> None:
        self.root, self.name, self.mode, self.writer, self.own = root, name, mode, writer, own
        self.directory = root / name
        self.directory.mkdir(parents=True)
        own.mkdir(parents=True)
        self._stage = stage
        self.next = 1
        self._open: dict[Path, int] = {}
        self._daemons: list[Daemon] = []
        self.lost = self.doubled = self.reached = 0

    @property
    def daemon(self) -> Daemon:
        """Its own, the last that it has started, or the shared one."""
        daemon = self._daemons[-1] if self._daemons else self._stage
        assert daemon is not None
        return daemon

    def path(self, name: str = "x.log") -> Path:
        """A file that the daemon follows."""
        return self.directory / name

    def run(self, path: Path | str = "x.log") -> str:
        """The name of its run."""
        return f'run="{self.name}/{Path(path).name.removesuffix(".log")}"'

    def start(self, *arguments: str, **control: Any) -> Daemon:
        """A daemon of its own, on this scenario's own state."""
        return self.launch(*arguments, **control).started()

    def kill(self, daemon: Daemon) -> None:
        """By SIGKILL, once its state holds all that was written to the log."""

        def kept() -> bool:
            parts = Store(self.own / "state").load()[0]
            saved = None if parts is None else of_parts(parts, [])
            known = {} if saved is None else saved.positions
            return [one.offset for one in known.values()] == [self.path().stat().st_size]

        daemon.wait(kept, what="the state holds what was read")
        daemon.kill()

    def follow(self, *arguments: str, hold: float = 0.5, **control: Any) -> Daemon:
        """As `start`, and it has counted all that was written."""
        daemon = self.start(*arguments, **control)
        self.expect(hold=hold)
        return daemon

    def launch(self, *arguments: str, **control: Any) -> Daemon:
        """As `start`, not waiting."""
        settings = ("--listen", "127.0.0.1:0", *FAST, "--set", f"state_dir={self.own}/state")
        daemon = Daemon(self.own, (*settings, *(arguments or (str(self.path()),))), **control)
        self._daemons.append(daemon)
        return daemon

    def fault(self, daemon: Daemon | None = None, **fault: Any) -> None:
        """These system calls of the daemon fail from now on, until `heal`."""
        TOTALS["faults"] += 1
        (daemon or self.daemon).change_faults(lambda faults: [*faults, {**fault, "by": self.name}])

    def heal(self, daemon: Daemon | None = None) -> None:
        """None of this scenario's faults is left."""
        (daemon or self.daemon).change_faults(lambda faults: [one for one in faults if one["by"] != self.name])

    def units(self, count: int) -> bytes:
        """The next units of this scenario."""
        data = units(count, self.next)
        self.next += count
        return data

    def grow(self, count: int, *, hold: float = 0.5, timeout: float = 30.0) -> None:
        """The next units are written, and each is counted once."""
        self.write(self.units(count))
        self.expect(hold=hold, timeout=timeout)

    def write(self, data: bytes, path: Path | None = None) -> None:
        """As the training's logger does: through a descriptor that it keeps, or by opening the file each time."""
        path = path or self.path()
        if self.writer == "keep":
            descriptor = self._open.get(path)
            if descriptor is None:
                descriptor = self._open[path] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.write(descriptor, data)
            return
        with path.open("ab", buffering=0) as stream:
            stream.write(data)

    def reopen(self) -> None:
        """The logger is told to open its file anew (after a rotation)."""
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def expect(
        self, count: int | None = None, *, run: str | None = None, daemon: Daemon | None = None, timeout: float = 30.0,
        hold: float = 0.5, iterations: int | None = None, lost: int = 0,
    ) -> None:  # fmt: skip
        """Each unit once: both counters reach the number (default: all that were written) and stay there."""
        daemon = daemon or self.daemon
        run = run if run is not None else "run=" if self._daemons else self.run()
        wanted = self.next - 1 - lost if count is None else count
        steps = wanted if iterations is None else iterations
        wanted_pair = (float(steps), float(wanted))
        began, got = now(), (-1.0, -1.0)
        while got != wanted_pair and now() - began < slack(timeout):
            got = self.counted(daemon, run)
            if got[1] > wanted:
                break
            time.sleep(0.1)
        if got == wanted_pair and hold:
            time.sleep(hold)
            got = self.counted(daemon, run)
        self.reached = int(got[1])
        self.lost, self.doubled = max(0, wanted - self.reached), max(0, self.reached - wanted)
        assert got == wanted_pair, (
            f"{run}: (iterations, overflows) are {got}, not {wanted_pair}\n{daemon.log.read_text()[-1500:]}"
        )

    def counted(self, daemon: Daemon, run: str) -> tuple[float, float]:
        """Iterations and overflow lines of the runs whose labels hold `run`."""
        page = daemon.fetch().decode()
        found = [0.0, 0.0]
        for place, name in enumerate(("megatron_iterations_total", "megatron_overflows_total")):
            found[place] = sum(value for labels, value in samples(page, name) if run in labels)
        return found[0], found[1]

    def close(self) -> None:
        """End its daemons and count what was counted."""
        self.reopen()
        TOTALS.update(written=self.reached + self.lost - self.doubled, counted=self.reached)
        TOTALS.update(lost=self.lost, doubled=self.doubled)
        for daemon in self._daemons:
            daemon.end()


FAST = (
    "--set", "follow.poll_interval=100ms", "--set", "follow.idle_interval=500ms",
    "--set", "follow.discovery_interval=500ms", "--set", "detectors.hang.minimum=10m",
)  # fmt: skip
