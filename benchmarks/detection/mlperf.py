"""Real step times: the successful LLM runs of MLPerf Training, played as Megatron logs; every message is a false one.

    git clone --depth 1 https://github.com/mlcommons/training_results_v5.0
    python -m benchmarks.detection.mlperf training_results_v5.0 [...] [--verbose] [--undated] [--inside]

Folders may also stand in MEGATRON_MONITOR_MLPERF, separated by colons. Nothing of them is in this repository.
"""

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path

from benchmarks.detection.mlperf_log import Run, megatron_lines, read_run
from megatron_monitor.config import Config
from megatron_monitor.incidents import Transition
from megatron_monitor.judgement import Judge
from megatron_monitor.reading import dated_events
from megatron_monitor.replay import replay

ENVIRONMENT = "MEGATRON_MONITOR_MLPERF"
_LEAST_LINES = 10  # a run of fewer lines says nothing of its steps
_MOST_MESSAGES = 2  # of one kind in one run


def runs_of(folders: Iterable[Path]) -> Iterator[Run]:
    """The successful runs with their steps, in the order of their paths."""
    for folder in folders:
        for path in sorted(folder.rglob("result_*.txt")):
            with open(path, encoding="utf-8", errors="replace") as stream:
                run = read_run(str(path.relative_to(folder)), stream)
            if run is not None and run.successful and len(run.lines) >= _LEAST_LINES:
                yield run


def messages(run: Run, *, dated: bool = True, inside: bool = False) -> list[Transition]:
    """Everything of the run that is told to people: firing, a warning or worse."""
    text = "\n".join(megatron_lines(run, dated=dated, inside=inside)) + "\n"
    config = Config()
    sources = {run.name: dated_events(BytesIO(text.encode()), config)}
    found = [item for _, item in replay(Judge(config, repeats=False), run.name, sources) if item is not None]
    return [item for item in found if item.status == "firing" and not item.quiet and item.severity != "info"]


def main() -> int:
    """Print the figures; 1 where a goal is missed, 2 where there are no runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument("--verbose", action="store_true", help="every message")
    parser.add_argument("--undated", action="store_true", help="lines without time stamps")
    parser.add_argument(
        "--inside", action="store_true", help="evaluation inside the printed time, as old loops have it"
    )
    options = parser.parse_args()
    folders = options.folders or [Path(name) for name in os.environ.get(ENVIRONMENT, "").split(":") if name]
    missing = [str(folder) for folder in folders if not folder.is_dir()]
    if not folders or missing:
        what = f"no such folder: {', '.join(missing)}" if missing else "no folder given"
        print(f"{what}: clone mlcommons/training_results_v5.0 (or another round) and name it, or set {ENVIRONMENT}")
        return 2
    began, runs, steps, lines = time.perf_counter(), 0, 0, 0
    kinds: Counter[str] = Counter()
    often: list[str] = []
    for run in runs_of(folders):
        runs, steps, lines = runs + 1, steps + run.steps, lines + len(run.lines)
        found = messages(run, dated=not options.undated, inside=options.inside)
        here = Counter(item.incident for item in found)
        kinds.update(here)
        often += [f"{run.name}: {kind} {count}" for kind, count in here.items() if count > _MOST_MESSAGES]
        for item in found if options.verbose else ():
            print(f"{run.name} {item.iteration} {item.incident} {item.severity}: {item.summary}", flush=True)
    if not runs:
        print(f"no successful run with step times in {', '.join(map(str, folders))}")
        return 2
    total = sum(kinds.values())
    print(f"{runs} runs, {steps} steps on {lines} lines, {time.perf_counter() - began:.0f} s")
    print(f"warnings and criticals: {total}, {10_000 * total / steps:.2f} in 10,000 steps; {dict(kinds)}")
    print("runs with more than two messages of a kind: " + ("; ".join(often) or "none"))
    return int(bool(often or kinds["hang"] or kinds["crash"] or 10_000 * total > steps))


if __name__ == "__main__":
    sys.exit(main())
