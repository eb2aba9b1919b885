"""Trainings that write a line every half second, hang when they are told to, and have their logs rotated."""

import random
import threading
import time
from pathlib import Path

PACE = 0.5  # seconds an iteration


class Training(threading.Thread):
    """One log."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.path, self.name, self.written = path, path.stem, 0
        self.hanging = threading.Event()
        self.ending = threading.Event()
        self.hung: list[list[float]] = []
        """[from, until] of each hang."""
        self.rotated_at = time.monotonic()
        self._lock = threading.Lock()
        self._stream = path.open("a")
        self._chance = random.Random(path.stem)

    def run(self) -> None:
        """Until it is ended."""
        while not self.ending.wait(PACE):
            if not self.hanging.is_set():
                with self._lock:
                    self.written += 1
                    self._stream.write(self._line())
                    self._stream.flush()

    def hang(self) -> None:
        """It writes no more."""
        self.hanging.set()
        self.hung.append([time.monotonic(), float("inf")])

    def go_on(self) -> None:
        """It writes again."""
        self.hung[-1][1] = time.monotonic()
        self.hanging.clear()

    def rotate(self) -> bool:
        """The log moves aside, a new one begins; not twice within half a minute."""
        if time.monotonic() - self.rotated_at < 30.0:
            return False
        self.rotated_at = time.monotonic()
        with self._lock:
            self._stream.close()
            self.path.rename(self.path.with_suffix(".log.1"))
            self._stream = self.path.open("a")
        return True

    def _line(self) -> str:
        loss, norm = 2.5 + self._chance.gauss(0.0, 0.01), 1.2 + self._chance.gauss(0.0, 0.05)
        return (
            f" iteration {self.written:8d}/10000000 | consumed samples: {self.written * 64:12d} | elapsed time per "
            f"iteration (ms): {1000 * PACE + self._chance.gauss(0.0, 2.0):.1f} | learning rate: 1.500E-04 | "
            f"global batch size:    64 | lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: {norm:.3f} | "
            "number of skipped iterations:   0 | number of nan iterations:   0 |\n"
        )
