"""All of it: `python -m benchmarks.speed` (some 15 minutes, 12 GB of scratch space); `--quick` for a look.

The report goes to standard output, and with `--write` between the marks of benchmarks/speed/README.md.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from pathlib import Path

from benchmarks.speed import growth, one_pass, reading, steady
from benchmarks.speed.measure import machine, table, version

_README = Path(__file__).parent / "README.md"


def report(megabytes: int, iterations: int, gigabytes: float, times: int, seconds: float) -> str:
    where = machine()
    peers = [version([name, "--version"]) for name in ("mtail", "rg", "tail") if shutil.which(name)]
    parts = (
        lambda: one_pass.main(("dense", "noise"), megabytes, times),
        lambda: reading.main(megabytes, iterations, max(1, times // 2)),
        growth.main,
        lambda: steady.main(seconds, gigabytes),
    )
    rows = []
    for part in parts:
        rows += part()
        print(".", end="", file=sys.stderr, flush=True)
    return f"{where}.\nPeers: {'; '.join(peers)}.\n\n{table(rows)}\n"


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true")
    options.add_argument("--megabytes", type=int, default=200)
    options.add_argument("--iterations", type=int, default=1_000_000)
    options.add_argument("--gigabytes", type=float, default=10.0)
    options.add_argument("--times", type=int, default=5)
    options.add_argument("--seconds", type=float, default=30.0)
    options.add_argument("--write", action="store_true", help="into README.md")
    given = options.parse_args()
    if given.quick:
        text = report(40, 100_000, 0.4, 2, 9.0)
    else:
        text = report(given.megabytes, given.iterations, given.gigabytes, given.times, given.seconds)
    print(text)
    if given.write:
        old = _README.read_text()
        marks = re.compile(r"(<!-- figures -->\n).*?(<!-- /figures -->)", re.DOTALL)
        _README.write_text(marks.sub(lambda match: match[1] + text + match[2], old))
