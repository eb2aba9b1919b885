"""Trainings that write a line every half second, hang when they are told to, and have their logs rotated or cut; some
have no log and are pushed.
"""

import random
import shutil
import socket
import threading
import time
from pathlib import Path

from benchmarks.intake import Agent

PACE = 0.5  # seconds an iteration
KEPT = 4  # rotated logs of a training, as logrotate keeps them
BEAT = 5.0  # seconds: `intake.heartbeat.every`


class Carrier(threading.Thread):
    """Pushes what its trainings write, every half second, and signs of life; what is not taken is sent again."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port, self.lossy, self.lost = port, threading.Event(), 0
        self._lines: list[tuple[str, tuple[int, str]]] = []
        self._guard = threading.Lock()
        self.start()

    def take(self, run: str, text: str) -> None:
        """A line has the time at which it was read."""
        with self._guard:
            self._lines.append((run, (time.time_ns(), text.rstrip("\n"))))

    def run(self) -> None:
        """Until the process ends."""
        agent, beat_at = Agent(self.port), 0.0
        while True:
            time.sleep(PACE)
            with self._guard:
                lines, self._lines = self._lines, []
            runs = dict.fromkeys(run for run, _ in lines)
            streams = [({"run": one, "carrier": "soak"}, [line for run, line in lines if run == one]) for one in runs]
            if time.monotonic() >= beat_at:
                beat_at = time.monotonic() + BEAT
                streams.append(({"carrier": "soak", "heartbeat": "soak"}, [(time.time_ns(), "alive")]))
            if streams and self.lossy.is_set():
                self.lost += unheard(self.port, agent.body(streams))
            if streams:
                agent.push(streams)


def unheard(port: int, body: bytes) -> bool:
    """A push whose sender is gone when the answer comes; whether it was sent."""
    head = f"POST {Agent.PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5.0) as connection:
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            connection.recv(1)  # it is on its way
    except OSError:
        return False
    return True


class Training(threading.Thread):
    """One log."""

    def __init__(self, path: Path, job: int) -> None:
        super().__init__(daemon=True)
        self.path, self.name, self.written = path, path.stem, 0
        self.hanging = threading.Event()
        self.ending = threading.Event()
        self.hung: list[list[float]] = []
        """[from, until] of each hang."""
        self.rotated_at = time.monotonic()
        self._lock = threading.Lock()
        self._chance = random.Random(path.stem)
        self._open()
        self._say(f"SLURM_JOB_ID={job}\n")

    def run(self) -> None:
        """Until it is ended."""
        while not self.ending.wait(PACE):
            if not self.hanging.is_set():
                with self._lock:
                    self.written += 1
                    self._say(self._line())

    def hang(self) -> None:
        """It writes no more."""
        self.hanging.set()
        self.hung.append([time.monotonic(), float("inf")])

    def go_on(self) -> None:
        """It writes again."""
        self.hung[-1][1] = time.monotonic()
        self.hanging.clear()

    def rotate(self, *, cut: bool) -> bool:
        """The log moves aside and a new one begins, or it is copied and cut; not twice within half a minute."""
        if time.monotonic() - self.rotated_at < 30.0:
            return False
        self.rotated_at = time.monotonic()
        with self._lock:
            for number in range(KEPT - 1, 0, -1):
                if (older := self._kept(number)).exists():
                    older.rename(self._kept(number + 1))
            if cut:
                shutil.copyfile(self.path, self._kept(1))
                self._stream.truncate(0)
            else:
                self._stream.close()
                self.path.rename(self._kept(1))
                self._open()
        return True

    def _kept(self, number: int) -> Path:
        return self.path.with_suffix(f".log.{number}")

    def _open(self) -> None:
        self._stream = self.path.open("a")

    def _say(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

    def _line(self) -> str:
        loss, norm = 2.5 + self._chance.gauss(0.0, 0.01), 1.2 + self._chance.gauss(0.0, 0.05)
        return (
            f" iteration {self.written:8d}/10000000 | consumed samples: {self.written * 64:12d} | elapsed time per "
            f"iteration (ms): {1000 * PACE + self._chance.gauss(0.0, 2.0):.1f} | learning rate: 1.500E-04 | "
            f"global batch size:    64 | lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: {norm:.3f} | "
            "number of skipped iterations:   0 | number of nan iterations:   0 |\n"
        )


class Pushed(Training):
    """One that a carrier pushes."""

    def __init__(self, path: Path, carrier: Carrier) -> None:
        self._carrier = carrier
        super().__init__(path, 0)

    def rotate(self, *, cut: bool) -> bool:  # noqa: ARG002
        """There is no log."""
        return False

    def _open(self) -> None:
        pass

    def _say(self, text: str) -> None:
        self._carrier.take(self.name, text)
