"""A real daemon over trainings that write, with faults at random: `python -m benchmarks.soak [--minutes 30]`.

Faults: kill -9 and SIGSTOP of the daemon, calls on a log that do not return, rotation, a full disk for the state, a
receiver that is down, a wall clock that is set. Some trainings really hang. Prints the figures; exits 1 if a line is
lost or counted twice, a true hang is not notified, anything else is notified, or the daemon ends by itself.

With SOAK_FLAGS in the environment this file is the daemon itself; faults are injected where it calls the system, while
files of these names lie there: `blocked` (no call on a log returns), `full` (the state cannot be written), `offset`
(seconds by which the wall clock is wrong).
"""

import argparse
import errno
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks.speed.measure import rss_of

PACE = 0.5  # seconds an iteration
KEPT = 4  # rotated logs of a training, as logrotate keeps them
BUDGET = 15.0  # seconds: `detectors.hang.minimum`
WITHIN = 60.0  # seconds within which a true hang must be notified, once monitor and receiver are sound
SETTLE = 90.0
FAULTS = ("kill", "stop", "blocked", "rotate", "full", "receiver", "clock", "rotate and kill")


class Training(threading.Thread):
    """One log; a line every half second."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.path, self.name, self.written = path, path.stem, 0
        self.hanging, self.ending = threading.Event(), threading.Event()
        self.hung: list[list[float]] = []
        """[from, until] of each hang."""
        self.rotated_at = time.monotonic()
        self._lock = threading.Lock()
        self._stream = path.open("a")

    def run(self) -> None:
        """Until it is ended."""
        while not self.ending.wait(PACE):
            if not self.hanging.is_set():
                with self._lock:
                    self.written += 1
                    print(
                        f" iteration {self.written:8d}/10000000 | consumed samples: {self.written * 64:12d} | elapsed "
                        f"time per iteration (ms): {1000 * PACE:.1f} | learning rate: 1.500E-04 | global batch size: "
                        "   64 | lm loss: 2.500000E+00 | loss scale: 1.0 | number of nan iterations:   0 |",
                        file=self._stream, flush=True,
                    )  # fmt: skip

    def rotate(self) -> None:
        """The log is renamed and a new one begins; not twice within half a minute."""
        if time.monotonic() - self.rotated_at < 30.0:
            return
        self.rotated_at = time.monotonic()
        with self._lock:
            for number in range(KEPT - 1, 0, -1):
                if (older := self.path.with_suffix(f".log.{number}")).exists():
                    older.rename(self.path.with_suffix(f".log.{number + 1}"))
            self._stream.close()
            self.path.rename(self.path.with_suffix(".log.1"))
            self._stream = self.path.open("a")


class Receiver(ThreadingHTTPServer):
    """A webhook that notes what it accepts, and is down at times."""

    def __init__(self) -> None:
        self.down = False
        self.accepted: list[tuple[float, dict[str, Any]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if not outer.down:
                    outer.accepted.append((time.monotonic(), json.loads(body)))
                self.send_response(503 if outer.down else 200)
                self.end_headers()

            def log_message(self, *_arguments: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def of(self, run: str, status: str, since: float) -> list[float]:
        """When it accepted messages about a hang of the run."""
        of_run = [(at, one) for at, one in list(self.accepted) if at >= since and one["run"] == run]
        return [at for at, one in of_run if (one["incident"], one["status"]) == ("hang", status)]


class Soak:
    """The daemon, its surroundings, and what is done to them."""

    def __init__(self, directory: Path, runs: int, chance: random.Random) -> None:
        self.directory, self.chance, self.faults = directory, chance, Counter[str]()
        self.flags = directory / "flags"
        for folder in (self.flags, directory / "logs"):
            folder.mkdir()
        (self.flags / "offset").write_text("0")
        self.trainings = [Training(directory / "logs" / f"run{number}.log") for number in range(runs)]
        self.receiver = Receiver()
        self.log = (directory / "daemon.log").open("ab")
        url = f"http://127.0.0.1:{self.receiver.server_address[1]}/"
        configuration = {
            "runs": [{"paths": [f"{directory}/logs/*.log"]}], "listen": "127.0.0.1:0",
            "state_dir": f"{directory}/state", "detectors": {"hang": {"minimum": f"{BUDGET:.0f}s"}},
            "notifiers": [{"type": "webhook", "name": "soak", "url": url}],
        }  # fmt: skip
        (directory / "config.yaml").write_text(json.dumps(configuration))
        self.unasked = 0  # times that it ended and nobody had ended it
        self.start()

    def start(self) -> None:
        """A daemon; the state is there or not."""
        command = [sys.executable, "-m", "benchmarks.soak", "run", "--config", str(self.directory / "config.yaml")]
        self.daemon = subprocess.Popen(command, env={**os.environ, "SOAK_FLAGS": str(self.flags)}, stderr=self.log)

    def look_after(self) -> None:
        """Nobody but us may end it."""
        if self.daemon.poll() is not None:
            self.unasked += 1
            self.start()

    def hurt(self) -> None:
        """One fault, for as long as it lasts."""
        kind, seconds = self.chance.choice(FAULTS), self.chance.uniform(2.0, 2.5 * BUDGET)
        self.faults[kind] += 1
        if kind == "stop":
            self.daemon.send_signal(signal.SIGSTOP)
            time.sleep(seconds)
            self.daemon.send_signal(signal.SIGCONT)
        elif kind in ("blocked", "full"):
            (self.flags / kind).touch()
            time.sleep(seconds)
            (self.flags / kind).unlink()
        elif kind == "receiver":
            self.receiver.down = True
            time.sleep(seconds)
            self.receiver.down = False
        elif kind == "clock":
            offset = self.chance.choice((-1, 1)) * self.chance.uniform(5.0, 3600.0)
            (self.flags / "offset.new").write_text(str(offset))
            (self.flags / "offset.new").rename(self.flags / "offset")
        if kind.startswith("rotate"):
            self.chance.choice(self.trainings).rotate()
        if kind.endswith("kill"):
            self.daemon.kill()
            self.daemon.wait()
            time.sleep(self.chance.uniform(0.0, BUDGET))
            self.start()

    def metrics(self, name: str = "megatron_iterations_total") -> dict[str, float]:
        """Run -> a figure of the page."""
        rows = [row for row in self._page().splitlines() if row.startswith(f"{name}{{")]
        return {row.split('run="')[1].split('"')[0]: float(row.rsplit(" ", 1)[1]) for row in rows}

    def timeout(self, name: str) -> float:
        """Seconds of silence that the run has now: twice the longest that was called a hang and ended."""
        metric = "megatron_hang_deadline_timestamp_seconds"
        self.wait(lambda: name in self.metrics(metric), WITHIN)  # the daemon may have been started a moment ago
        deadline = self.metrics(metric).get(name, 0.0)
        return max(0.0, deadline - self.metrics("megatron_last_progress_timestamp_seconds").get(name, deadline))

    def _page(self) -> str:
        rows = (self.directory / "daemon.log").read_text(errors="replace").splitlines()
        urls = [row.split("listening on ")[1].strip().strip('"') for row in rows if "listening on http://" in row]
        try:
            with urllib.request.urlopen(f"{urls[-1].rstrip('/')}/metrics", timeout=5) as answer:
                return str(answer.read().decode())
        except (OSError, IndexError):
            return ""

    def wait(self, condition: Callable[[], object], seconds: float) -> bool:
        """Whether it held within so many seconds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not condition():
            self.look_after()
            time.sleep(0.5)
        return bool(condition())

    def hung(self, message: dict[str, Any], at: float) -> bool:
        """Whether the message is of a training that did not write then; a pending one may come a little later."""
        training = next(one for one in self.trainings if one.name == message["run"])
        return message["incident"] == "hang" and any(a <= at <= b + 3 * BUDGET for a, b in training.hung)


def play(soak: Soak, minutes: float) -> dict[str, Any]:
    """Faults at random; every few of them a training hangs in truth. Gives the figures."""
    began = time.monotonic()
    for training in soak.trainings:
        training.start()
    time.sleep(20.0)
    hangs, late, missed, memory = 0, list[float](), list[str](), list[float]()
    while time.monotonic() - began < 60.0 * minutes:
        soak.look_after()
        memory.append(rss_of(soak.daemon.pid))
        hanging = soak.chance.choice(soak.trainings) if soak.chance.random() < 0.35 else None
        if hanging is not None:
            hanging.hanging.set()
            hanging.hung.append([time.monotonic(), float("inf")])
            hangs += 1
        for _ in range(soak.chance.randint(1, 3)):
            soak.hurt()
            time.sleep(soak.chance.uniform(0.0, 5.0))
        if hanging is not None:
            name, since, healthy = hanging.name, hanging.hung[-1][0], time.monotonic()
            timeout = soak.timeout(name)
            if soak.wait(lambda n=name, s=since: soak.receiver.of(n, "firing", s), 3 * WITHIN + timeout):  # type: ignore[misc]
                late.append(max(0.0, soak.receiver.of(name, "firing", since)[0] - healthy))
            else:
                missed.append(f"{name}: {time.monotonic() - since:.0f} s silent, progress timeout {timeout:.0f} s")
            hanging.hung[-1][1] = time.monotonic()
            hanging.hanging.clear()
            soak.wait(lambda n=name, s=hanging.hung[-1][1]: soak.receiver.of(n, "resolved", s), WITHIN)  # type: ignore[misc]
    for training in soak.trainings:
        training.ending.set()
        training.join()
    ended = time.monotonic()
    written = {training.name: float(training.written) for training in soak.trainings}
    soak.wait(lambda: soak.metrics() == written, SETTLE)
    counted = soak.metrics()
    accepted = [(at, one) for at, one in list(soak.receiver.accepted) if at < ended + BUDGET / 2]
    false = [one for at, one in accepted if one["status"] == "firing" and not soak.hung(one, at)]
    return {
        "minutes": round((ended - began) / 60.0, 1),
        "faults": dict(sorted(soak.faults.items())),
        "lines written": int(sum(written.values())), "lines counted": int(sum(counted.values())),
        "runs whose count differs": sorted(name for name in written if counted.get(name) != written[name]),
        "true hangs": hangs, "notified": len(late), "not notified": missed,
        "seconds from the last fault to the message": [round(one, 1) for one in sorted(late)],
        "false alarms": [f"{one['run']} {one['incident']}: {one['summary']}" for one in false],
        "messages accepted": len(accepted),
        "accepted twice under one id": len(accepted) - len({one["id"] for _, one in accepted}),
        "MB of the daemon, smallest and largest": [round(min(memory)), round(max(memory))],
        "times that the daemon ended by itself": soak.unasked,
    }  # fmt: skip


def main() -> int:
    """Plays it; 1 on a fault of ours."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as directory:
        soak = Soak(Path(directory), options.runs, random.Random(options.seed))
        try:
            figures = play(soak, options.minutes)
        finally:
            soak.daemon.kill()
            soak.log.close()
    print(json.dumps(figures, indent=2))
    faults = ("runs whose count differs", "not notified", "false alarms", "times that the daemon ended by itself")
    return int(any(figures[name] for name in faults))


def daemon(flags: Path) -> None:
    """The daemon as it is, with faults at the edge of the system."""
    from megatron_monitor import cli, store
    from megatron_monitor.follow.os_layer import OsLayer
    from megatron_monitor.system.clock import SystemClock

    def blocking(real: Callable[..., Any]) -> Callable[..., Any]:
        def late(_layer: OsLayer, *arguments: Any) -> Any:
            while (flags / "blocked").exists():
                time.sleep(0.05)
            return real(*arguments)

        return late

    class Disk:
        def __getattr__(self, name: str) -> Any:
            if name == "pwrite" and (flags / "full").exists():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return getattr(os, name)

    for name in ("stat", "open", "pread", "fstat", "scandir"):
        setattr(OsLayer, name, blocking(getattr(OsLayer(), name)))
    SystemClock.wall = lambda _: time.time() + float((flags / "offset").read_text())  # type: ignore[method-assign]
    store.os = Disk()  # type: ignore[assignment]
    sys.argv[0] = "megatron-monitor"
    cli.main()


if __name__ == "__main__":
    if "SOAK_FLAGS" in os.environ:
        daemon(Path(os.environ["SOAK_FLAGS"]))
    sys.exit(main())
