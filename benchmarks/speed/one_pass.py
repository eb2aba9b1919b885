"""`run --once` over a log, beside mtail with a program for the same fields, and ripgrep as the limit.

    python -m benchmarks.speed.one_pass [--megabytes 200] [--times 5] [kind ...]

mtail reads the file once (`-one_shot`) and prints its metrics. mtail/iteration.mtail takes the fields by one regular
expression for the whole line, the fastest form that we found: the bar is judged against it. mtail_by_name/ matches each
field by its name, as the monitor does. `rg -c` counts the lines that hold any literal of our rules.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from statistics import median

from benchmarks.speed.logs import KINDS, write_bytes
from benchmarks.speed.measure import MONITOR, SCRATCH, Row, in_turns, pair_ratio, spread, table
from parsers.registry import RULES

_HERE = Path(__file__).parent
_BARS = {"dense": 5.0, "noise": 10.0}
_RIPGREP_BAR = 8.0


def main(kinds: tuple[str, ...] = ("dense", "noise"), megabytes: int = 200, times: int = 5) -> list[Row]:
    SCRATCH.mkdir(parents=True, exist_ok=True)
    literals = SCRATCH / "literals.txt"
    literals.write_bytes(b"\n".join(sorted({anchor for rule in RULES for anchor in rule.anchors})) + b"\n")
    rows = []
    for kind in kinds:
        log = SCRATCH / f"{kind}.{megabytes}.log"
        write_bytes(kind, log, megabytes * 10**6)
        commands: dict[str, tuple[str, ...]] = {"monitor": (*MONITOR, "run", "--once", str(log))}
        one_shot = ("-one_shot", "-one_shot_format", "prometheus", "-port", "0", "-logs", str(log), "-progs")
        if shutil.which("mtail"):
            commands["mtail"] = ("mtail", *one_shot, str(_HERE / "mtail"))
            commands["mtail by name"] = ("mtail", *one_shot, str(_HERE / "mtail_by_name"))
        if shutil.which("rg"):
            commands["rg -c, all literals"] = ("rg", "-c", "-F", "-f", str(literals), str(log))
            commands["rg -c, one word"] = ("rg", "-c", "-F", "iteration ", str(log))
        found = in_turns(commands, times)
        mine = found["monitor"]
        size = log.stat().st_size / 1e6
        rows.append(
            Row(
                f"`run --once`, {kind}, {megabytes} MB", "",
                f"{spread([size / run.wall for run in mine], '.0f')} MB/s; "
                f"{spread([run.wall for run in mine])} s wall, {spread([run.cpu for run in mine])} s of processor, "
                f"peak {median(run.peak for run in mine):.0f} MiB", "", None,
            )
        )  # fmt: skip
        for peer, runs in found.items():
            if peer == "monitor":
                continue
            walls, cpus = pair_ratio(runs, mine, "wall"), pair_ratio(runs, mine, "cpu")
            figure = f"{spread([run.wall for run in runs])} s wall, {spread([run.cpu for run in runs])} s of processor"
            if peer.startswith("mtail"):
                judged = kind in _BARS and peer == "mtail"
                bar, met = (f"{_BARS[kind]:.0f}x", median(walls) >= _BARS[kind]) if judged else ("", None)
                ratio = f"{median(walls):.1f}x its speed (by processor time {median(cpus):.1f}x)"
            else:
                slower = 1 / median(walls)
                judged = kind == "noise" and peer == "rg -c, all literals"
                bar, met = (f"within {_RIPGREP_BAR:.0f}x", slower <= _RIPGREP_BAR) if judged else ("", None)
                ratio = f"{slower:.1f}x its time"
            rows.append(Row(f"... {kind}, against {peer}", ratio, figure, bar, met))
    return rows


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("kinds", nargs="*", help=" ".join(KINDS))
    options.add_argument("--megabytes", type=int, default=200)
    options.add_argument("--times", type=int, default=5)
    given = options.parse_args()
    print(table(main(tuple(given.kinds) or ("dense", "noise"), given.megabytes, given.times)))
