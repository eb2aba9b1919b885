"""What a start on many read logs takes: `python -m benchmarks.restart [--files 10000]`.

The core with its readers, in this process, over logs of eight iterations, all old: a first start, then a restart with
what the first one saved. Until every file was opened and read to its end; the state file's own decoding is left out.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import msgspec

from monitor.config import Watch, load
from monitor.core.saved import Saved
from monitor.live import LiveCore

_LINE = (
    " iteration {0:8d}/     500 | consumed samples: {0:12d} | elapsed time per iteration (ms): {1}.5 |"
    " learning rate: 1.000E-04 | lm loss: 2.{2:06d}E+00 |\n"
)
_WRITTEN = 1.6e9  # Unix seconds


def start(folder: str, files: int, saved: Saved | None) -> Saved:
    """Start, print the seconds, and give what a save would hold."""
    config = load("", [f"max_runs={2 * files}", "run_retention=3650d"])
    live = LiveCore(msgspec.structs.replace(config, runs=(Watch(paths=(f"{folder}/*.log",)),)))
    began, used = time.perf_counter(), time.process_time()
    live.start(saved)
    while len(live.core.sources) < files or not live.core.ready:
        live.core.tick(live.take(0.5))
    wall, processor = time.perf_counter() - began, time.process_time() - used
    what = "first start" if saved is None else "restart"
    print(f"{what} on {files} files: {wall:.1f} s, {processor:.1f} s of processor, {len(live.core.runs)} runs")
    kept = live.core.save(live.now())
    live.stop(2.0)
    return msgspec.msgpack.decode(msgspec.msgpack.encode(kept), type=Saved)


def main() -> None:
    """Both, one after the other."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--files", type=int, default=10_000)
    files: int = options.parse_args().files
    with tempfile.TemporaryDirectory(prefix="restart-") as folder:
        for number in range(files):
            path = Path(folder) / f"job{number:05d}.log"
            path.write_text("".join(_LINE.format(n, 900 + n, number * 10 + n) for n in range(1, 9)))
            os.utime(path, (_WRITTEN + number, _WRITTEN + number))
        start(folder, files, start(folder, files, None))


if __name__ == "__main__":
    main()
