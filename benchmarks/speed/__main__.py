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


def report(quick: bool) -> str:
    where = machine()
    peers = [version([name, "--version"]) for name in ("mtail", "rg", "tail") if shutil.which(name)]
    megabytes, times = (40, 2) if quick else (200, 5)
    parts = (
        lambda: one_pass.main(("dense", "noise"), megabytes, times),
        lambda: reading.main(megabytes, 100_000 if quick else 1_000_000, 1 if quick else 3),
        growth.main,
        lambda: steady.main(9.0 if quick else 30.0, 0.4 if quick else 10.0),
    )
    rows = []
    for part in parts:
        rows += part()
        print(".", end="", file=sys.stderr, flush=True)
    return f"{where}.\nPeers: {'; '.join(peers)}.\n\n{table(rows)}\n"


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true")
    options.add_argument("--write", action="store_true", help="into README.md")
    given = options.parse_args()
    text = report(given.quick)
    print(text)
    if given.write:
        old = _README.read_text()
        marks = re.compile(r"(<!-- figures -->\n).*?(<!-- /figures -->)", re.DOTALL)
        _README.write_text(marks.sub(lambda match: match[1] + text + match[2], old))
