"""`parse --json` over the dense log, and `replay` of many iterations with all detectors, on one processor.

python -m benchmarks.speed.reading [--megabytes 200] [--iterations 1000000] [--times 3]
"""

from __future__ import annotations

import argparse
from statistics import median

from benchmarks.speed.logs import write_bytes, write_iterations
from benchmarks.speed.measure import MONITOR, SCRATCH, Row, run, spread, table

_PARSE_BAR = 40.0  # MB/s
_REPLAY_BAR = 30.0  # seconds for a million iterations
_FLAT = 1.1  # a tenth more memory for a hundred times the length is allocation, not growth


def parsing(megabytes: int, times: int) -> list[Row]:
    log = SCRATCH / f"dense.{megabytes}.log"
    write_bytes("dense", log, megabytes * 10**6)
    size = log.stat().st_size / 1e6
    runs = [run((*MONITOR, "parse", "--json", str(log))) for _ in range(times + 1)][1:]
    walls, cpus = [size / one.wall for one in runs], [size / one.cpu for one in runs]
    figure = f"{spread(walls, '.0f')} MB/s; {spread(cpus, '.0f')} MB a second of processor"
    ratio = f"{median(walls) / _PARSE_BAR:.1f}x the bar (by processor time {median(cpus) / _PARSE_BAR:.1f}x)"
    return [Row(f"`parse --json`, dense, {megabytes} MB", ratio, figure, "40 MB/s", median(walls) >= _PARSE_BAR)]


def replaying(iterations: int, times: int) -> list[Row]:
    rows, peaks = [], {}
    for count in (iterations // 100, iterations // 10, iterations):
        log = SCRATCH / f"loop.{count}.log"
        write_iterations(log, count)
        runs = [
            run(("taskset", "-c", "1", *MONITOR, "replay", str(log))) for _ in range(1 if count < iterations else times)
        ]
        peaks[count] = median(one.peak for one in runs)
    bar = _REPLAY_BAR * iterations / 1e6
    walls, cpus = [one.wall for one in runs], [one.cpu for one in runs]
    rows.append(
        Row(
            f"`replay`, {iterations:,} iteration lines, all detectors",
            f"{median(walls) / bar:.2f} of the bar "
            f"(by processor time {median(cpus) / bar:.2f})",
            f"{spread(walls, '.1f')} s wall, {spread(cpus, '.1f')} s of processor",
            f"{bar:.0f} s", median(walls) <= bar,
        )
    )  # fmt: skip
    least, most = peaks[iterations // 100], peaks[iterations]
    figure = ", ".join(f"{count:,}: {peak:.0f} MiB" for count, peak in peaks.items())
    rows.append(Row("... peak memory by length", f"{most / least:.2f}x", figure, "flat", most <= _FLAT * least))
    return rows


def main(megabytes: int = 200, iterations: int = 1_000_000, times: int = 3) -> list[Row]:
    SCRATCH.mkdir(parents=True, exist_ok=True)
    return [*parsing(megabytes, times), *replaying(iterations, times)]


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--megabytes", type=int, default=200)
    options.add_argument("--iterations", type=int, default=1_000_000)
    options.add_argument("--times", type=int, default=3)
    given = options.parse_args()
    print(table(main(given.megabytes, given.iterations, given.times)))
