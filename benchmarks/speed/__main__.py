"""Measure speed and scale: `python -m benchmarks.speed [part ...] [--share 0.1] [--write]`; all parts take ten minutes.

Parts: real (needs mtail: apt-get install mtail), replay, files, runs.
"""

import argparse
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.speed import daemon, real
from benchmarks.speed.logs import iterations, written
from benchmarks.speed.measure import MONITOR, SCRATCH, Row, machine, run, table

_PAGE = Path(__file__).parents[2] / "docs" / "development" / "measured.md"


def replay(share: float) -> list[Row]:
    """A million generated iterations judged by all detectors on the log's own clock."""
    count = int(1_000_000 * share)
    short = run((*MONITOR, "replay", str(written(SCRATCH / "short.log", iterations(count // 100)))))
    long = run((*MONITOR, "replay", str(written(SCRATCH / "long.log", iterations(count)))))
    what, goal = f"`replay` of {count:,} iteration lines (generated log)", 25.0 * count / 1e6  # seconds
    spent = f"{long.cpu:.1f} s processor time, {long.wall:.1f} s wall time"
    peaks = f"{short.peak:.0f} MB and {long.peak:.0f} MB"
    return [
        Row(what, spent, f"{goal:.1f} s", long.wall <= goal),
        Row(f"... peak memory, {count // 100:,} and {count:,}", peaks, "within 10 %", long.peak <= 1.1 * short.peak),
    ]


_PARTS: dict[str, Callable[[float], list[Row]]] = {
    "replay": replay, "files": daemon.files, "runs": daemon.runs,
}  # fmt: skip


def measured(parts: list[str], share: float, folder: Path) -> str:
    """The report: the machine, the rows, the table by log."""
    rows, by_log = list[Row](), ""
    for part in parts:
        began = time.perf_counter()
        if part == "real":
            found, by_log = real.against_mtail(share, folder)
            rows += found
        else:
            rows += _PARTS[part](share)
        print(f"{part}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    return "\n\n".join(filter(None, (machine(), table(rows), by_log))) + "\n"


def main() -> None:
    """Print the report; with --write put it into docs/development/measured.md."""
    every = ["real", *_PARTS]
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("parts", nargs="*", metavar="part")
    options.add_argument("--share", type=float, default=1.0, help="of the sizes: less shows only that it runs")
    options.add_argument("--real-logs", type=Path, default=real.FOLDER, help="folder with real logs (%(default)s)")
    options.add_argument("--write", action="store_true", help="into docs/development/measured.md")
    given = options.parse_args()
    if unknown := set(given.parts) - set(every):
        options.error(f"no such part: {', '.join(sorted(unknown))} (parts: {' '.join(every)})")
    if given.write and (given.parts or given.share != 1.0):
        options.error("--write takes all parts at full size: they replace the tables")
    SCRATCH.mkdir(parents=True, exist_ok=True)
    report = measured(given.parts or every, given.share, given.real_logs)
    print(report)
    if given.write:
        marks = re.compile(r"(<!-- speed -->\n).*?(<!-- /speed -->)", re.DOTALL)
        _PAGE.write_text(marks.sub(lambda match: match[1] + report + match[2], _PAGE.read_text()))


if __name__ == "__main__":
    main()
