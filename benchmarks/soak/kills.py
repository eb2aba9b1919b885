"""`python -m benchmarks.soak.kills [--every 5] [--budget 12] [--hangs 10]`: the daemon is killed (-9) and started again
every so many seconds, all the time; trainings hang one after the other. Prints how long after its beginning each hang
was told, by how much its exported deadline moved, what was told twice, and the lines; exits 1 if one was never told.
"""

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from benchmarks.soak.__main__ import Soak


class Killer(threading.Thread):
    """Kills and starts, until it is ended."""

    def __init__(self, soak: Soak, every: float) -> None:
        super().__init__(daemon=True)
        self.soak, self.every, self.kills, self.ending = soak, every, 0, threading.Event()
        self.start()

    def run(self) -> None:
        """The pace varies a little, so that each instant of what the daemon does is hit. Where the machine is so busy
        that it has not begun by then, it gets two seconds of life.
        """
        while not self.ending.wait(self.soak.chance.uniform(0.8, 1.2) * self.every):
            while self.begun() <= self.kills:
                self.ending.wait(2.0)
            self.soak.daemon.kill()
            self.soak.daemon.wait()
            self.soak.start()
            self.kills += 1

    def begun(self) -> int:
        """How many have begun to listen so far."""
        return (self.soak.directory / "daemon.log").read_text(errors="replace").count("listening on ")


class Killed(Soak):
    """The killer alone starts its daemon."""

    def look_after(self) -> None:
        """Not here."""


def main() -> int:
    """1 if a hang was not told, or a line was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=float, default=5.0)
    parser.add_argument("--budget", type=float, default=12.0)
    parser.add_argument("--hangs", type=int, default=10)
    options = parser.parse_args()
    took: list[float] = []
    moved: list[float] = []
    with tempfile.TemporaryDirectory(prefix="kills-") as directory:
        soak = Killed(Path(directory), options.hangs, random.Random(1), options.budget)
        for training in soak.trainings:
            training.start()
        time.sleep(10.0)
        killer = Killer(soak, options.every)
        for number in range(options.hangs):
            hanging = soak.trainings[number]
            time.sleep(2.0 * options.every)
            hanging.hang()
            began, deadlines = time.monotonic(), list[float]()
            while time.monotonic() < began + 10 * options.budget:
                told = soak.receiver.of(hanging.name, "firing", began)
                if told:
                    took.append(told[0] - began)
                    print(hanging.name, time.strftime("%T"), round(took[-1], 1), file=sys.stderr)
                    break
                at = soak.metrics("megatron_hang_deadline_timestamp_seconds").get(hanging.name)
                deadlines += [at] if at is not None and time.monotonic() > began + 2.0 else []
                time.sleep(0.3)
            moved.append(max(deadlines, default=0.0) - min(deadlines, default=0.0))
            hanging.go_on()
            soak.wait(lambda h=hanging: soak.receiver.of(h.name, "resolved", h.hung[-1][1]), 60.0)  # type: ignore[misc]
        killer.ending.set()
        killer.join()
        for training in soak.trainings:
            training.ending.set()
            training.join()
        written = {training.name: float(training.written) for training in soak.trainings}
        soak.wait(lambda: soak.metrics() == written, 60.0)
        counted = soak.metrics()
        accepted = [one for _, one in soak.receiver.accepted]
        soak.daemon.kill()
        Path("kills.log").write_bytes((Path(directory) / "daemon.log").read_bytes())
    twice = Counter((one["id"]) for one in accepted)
    figures = {
        "kills": killer.kills, "hangs": options.hangs, "told": len(took), "messages": len(accepted),
        "seconds to the message": [round(one, 1) for one in sorted(took)],
        "deadlines moved by": [round(one, 1) for one in sorted(moved)],
        "accepted twice under one id": sum(count - 1 for count in twice.values()),
        "under another id": len(accepted) - sum(twice.values()) + len(twice) - 2 * options.hangs,
        "lines written": sum(written.values()), "lines counted": sum(counted.values()),
    }  # fmt: skip
    print(json.dumps(figures, indent=2))
    return int(len(took) < options.hangs or counted != written)


if __name__ == "__main__":
    sys.exit(main())
