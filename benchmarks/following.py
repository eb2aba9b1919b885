"""What wake-ups cost beside polling alone: `python -m benchmarks.following [--rounds 5] [--seconds 20]`.

A follower of 10,000 idle files in 600 directories, all written in the last hour, so that as many directories as may be
are watched; in a process of its own, in turns with wake-ups and without. The share is processor time of that process.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

from megatron_monitor.follow.directory_watches import DirectoryWatches
from megatron_monitor.follow.follower import Follower
from megatron_monitor.follow.inbox import Inbox
from megatron_monitor.follow.messages import CaughtUp, Whole
from megatron_monitor.follow.patterns import Watch

_FILES, _DIRECTORIES = 10_000, 600
_GOAL = 0.5
"""Percent of a core that wake-ups may cost more."""


def _measure(folder: str, mode: str, seconds: float) -> None:
    """Print the share in percent, the resident memory in MB, and the threads, once every file is read to its end."""
    if mode == "polled":
        DirectoryWatches.watch = lambda *_: None  # type: ignore[method-assign]
    messages = Inbox(32)
    follower = Follower([Watch(f"{folder}/**/*.out")], {}, messages)
    follower.start()
    left = _FILES
    while left:
        left -= isinstance(messages.get(), CaughtUp | Whole)
    threading.Thread(target=lambda: [messages.get() for _ in iter(int, 1)], daemon=True).start()
    time.sleep(12.0)  # the next walk: what is watched is watched
    used, began = time.process_time(), time.perf_counter()
    time.sleep(seconds)
    share = 100 * (time.process_time() - used) / (time.perf_counter() - began)
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6
    print(share, resident, threading.active_count())
    follower.stop()


def main() -> None:
    """Both ways, in turns."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=float, default=20.0)
    options.add_argument("--measure", nargs=2, metavar=("FOLDER", "MODE"), help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.measure:
        _measure(*given.measure, given.seconds)
        return
    folder = Path(tempfile.mkdtemp(prefix="following-"))
    for number in range(_FILES):
        path = folder / f"{number % _DIRECTORIES:03d}" / f"job{number:05d}.out"
        path.parent.mkdir(exist_ok=True)
        path.write_text("NCCL INFO nothing to see\n" * 10)
    found: dict[str, list[list[float]]] = {"woken": [], "polled": []}
    for _ in range(given.rounds):
        for mode, rows in found.items():
            command = [sys.executable, "-m", "benchmarks.following", "--seconds", str(given.seconds)]
            done = subprocess.run([*command, "--measure", folder, mode], capture_output=True, text=True, check=True)
            rows.append([float(one) for one in done.stdout.split()])
    shutil.rmtree(folder)
    for mode, rows in found.items():
        shares = [row[0] for row in rows]
        spread = f"{median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f}) % of one core"
        print(f"{_FILES} idle files, {mode}: {spread}, {rows[-1][1]:.0f} MB, {rows[-1][2]:.0f} threads")
    more = median(row[0] for row in found["woken"]) - median(row[0] for row in found["polled"])
    print(f"wake-ups: {more:+.2f} % of one core (goal: {_GOAL:+.1f} % at most: {'yes' if more <= _GOAL else 'no'})")


if __name__ == "__main__":
    main()
