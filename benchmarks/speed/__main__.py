"""Measure speed and scale: `python -m benchmarks.speed [part ...]` (all: 12 minutes, 12 GB of scratch space).

Parts: real replay generated start growth live idle latency scrape resume restart files runs.
Needs mtail (Debian: apt-get install mtail).
"""

import argparse
import re
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmarks.speed import generated, real, scale, steady
from benchmarks.speed.measure import QUICK, SCRATCH, Row, Sizes, machine, table, version

_PAGES = (Path(__file__).parent / "README.md", Path(__file__).parents[2] / "docs" / "measured.md")
_PARTS: dict[str, Callable[[Sizes], list[Row]]] = {
    "generated": lambda sizes: [*generated.replaying(sizes), *generated.start_up(sizes)],
    "start": generated.starting,
    "growth": generated.growth,
    "live": steady.live,
    "idle": steady.idle,
    "latency": steady.latency,
    "scrape": steady.scrape,
    "resume": steady.resume,
    "restart": scale.restart,
    "files": scale.files,
    "runs": scale.runs,
}


def measured(parts: list[str], sizes: Sizes, folder: Path) -> tuple[str, list[Row]]:
    """(the report, its rows)."""
    head = f"{machine()}; {version(['mtail', '--version'])}."
    rows: list[Row] = []
    by_log = ""
    for part in parts:
        began = time.perf_counter()
        if part == "real":
            found, by_log = real.against_mtail(sizes, folder)
            rows += found
        elif part == "replay":
            rows += real.replaying(sizes, folder)
        else:
            rows += _PARTS[part](sizes)
        print(f"{part}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    return f"{head}\n\n{table(rows)}\n{by_log and chr(10)}{by_log and by_log + chr(10)}", rows


def write(page: Path, text: str) -> None:
    """Between the page's marks."""
    marks = re.compile(r"(<!-- speed -->\n).*?(<!-- /speed -->)", re.DOTALL)
    page.write_text(marks.sub(lambda match: match[1] + text + match[2], page.read_text()))


def main() -> None:
    """Print the report; with --write put it into README.md here and docs/measured.md."""
    every = ["real", "replay", *_PARTS]
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("parts", nargs="*", metavar="part")
    options.add_argument("--quick", action="store_true", help="small sizes: does it run?")
    options.add_argument("--share", type=float, help="of the files of `restart` and `files`; 1")
    options.add_argument("--real-logs", type=Path, default=real.FOLDER, help="folder with real logs (%(default)s)")
    options.add_argument("--write", action="store_true", help="into benchmarks/speed/README.md and docs/measured.md")
    given = options.parse_args()
    if unknown := set(given.parts) - set(every):
        options.error(f"no such part: {', '.join(sorted(unknown))} (parts: {' '.join(every)})")
    if given.write and (given.parts or given.quick):
        options.error("--write takes all parts at full size: they replace the tables")
    SCRATCH.mkdir(parents=True, exist_ok=True)
    sizes = QUICK if given.quick else Sizes()
    sizes = replace(sizes, share=given.share or sizes.share)
    report, rows = measured(given.parts or every, sizes, given.real_logs)
    print(report)
    if given.write:
        write(_PAGES[0], report)
        write(_PAGES[1], table([row for row in rows if row.goal]) + "\n")


if __name__ == "__main__":
    main()
