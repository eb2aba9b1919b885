"""The cause of a slowdown, on the timers of real logs: 5 % of the iteration are added to one part of later lines.

    python -m benchmarks.detection.causes_real LOG ... [--factor 1.05] [--lines 5]

The noise is the logs' own. Each window compares 32 lines with the next `--lines`, as the detector does when it reports;
windows in which the log by itself changed by more than a quarter of what is added are left out: they have a cause of
their own. Which causes a log can tell is decided by the timers that it prints.
"""

import argparse
import collections
import json
import random
from pathlib import Path

from megatron_monitor.breakdown.account import Timed
from megatron_monitor.breakdown.attribution import attribute
from megatron_monitor.breakdown.profile import profile
from megatron_monitor.config import Config
from megatron_monitor.judgement import Judge, Judged
from megatron_monitor.parsers.reader import SourceReader
from megatron_monitor.parsers.timers import timer
from megatron_monitor.run.state import RunState

_BEFORE = 32
_WARM_UP = 3
_RIGHT = {
    "data": {"data"},
    "compute": {"compute"},
    "communication": {"communication", "network"},
    "": {"outside_timers"},
}


def timers_of(path: Path) -> list[Timed]:
    """The timers of a log's iteration lines whose time is known, without the first ones."""
    run, judge, reader = Judged(RunState(path.name)), Judge(Config()), SourceReader()
    account, out = run.state.launch.account, list[Timed]()
    data = path.read_bytes()
    for entry in [*reader.feed(data), *reader.flush()]:
        before = account.last
        judge.take(run, [entry], path.name, 0.0, False)
        if account.last is not None and account.last is not before and account.last.seconds:
            out.append(account.last)
    return out[_WARM_UP:]


def slower(line: Timed, category: str, added: float, chance: random.Random) -> Timed | None:
    """The line as it were if its iteration took `added` seconds longer in a category; None if it has no timer of it."""
    assert line.seconds is not None
    names = [name for name in line.timers if timer(name).category == category and not timer(name).mixed]
    tops = [name for name in names if not any(parent in names for parent in timer(name).parent)]
    extra = added * (1 + chance.gauss(0, 0.1))
    timers = dict(line.timers)
    if category:
        total = sum(line.timers[name][1] for name in tops)
        if not total:
            return None
        for name in tops:
            share = extra * line.timers[name][1] / total
            grown = [name, *(parent for parent in timer(name).parent if parent in timers)]
            for each in grown:
                timers[each] = timers[each][0] + share, timers[each][1] + share
    return Timed(line.iteration, line.seconds + extra, timers, line.across)


def judged(lines: list[Timed], category: str, factor: float, during: int) -> collections.Counter[str]:
    """Which causes are named over a log, window by window."""
    chance, found = random.Random(len(lines)), collections.Counter[str]()
    for at in range(_BEFORE, len(lines) - during, during):
        before = profile(lines[at - _BEFORE : at])
        assert before is not None
        added = (factor - 1) * before.seconds
        plain = profile(lines[at : at + during])
        if plain is None or abs(plain.seconds - before.seconds) > added / 4:
            continue
        later = [slower(line, category, added, chance) for line in lines[at : at + during]]
        now = profile([line for line in later if line is not None])
        if now is not None and now.lines == during:
            found[attribute(before, now).cause] += 1
    return found


def main() -> None:
    """Print one JSON object a log and part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("logs", nargs="+", type=Path)
    parser.add_argument("--factor", type=float, default=1.05)
    parser.add_argument("--lines", type=int, default=5)
    options = parser.parse_args()
    for path in options.logs:
        lines = timers_of(path)
        for category, right in _RIGHT.items():
            found = judged(lines, category, options.factor, options.lines)
            hits = sum(count for cause, count in found.items() if cause in right)
            total = sum(found.values())
            unknown = found["unknown"]
            row = {"log": path.name, "part": category or "none", "windows": total, "right": hits, "unknown": unknown,
                   "wrong": total - hits - unknown, "causes": dict(found)}  # fmt: skip
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
