"""The functions that a live iteration line passes, from the bytes of its log to the first rule that sees its step.

A run of Megatron is followed, and the functions of its next lines are recorded with `sys.setprofile`: what every line
passes, without the work that is due only sometimes. `python -m tests.monitor.core.test_line_path [LOG]`, from the
project's folder, lists them. LOG: a file whose last lines are of one shape; by default generated lines are used.
"""

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import megatron_monitor
from megatron_monitor.config import load
from megatron_monitor.core import Core
from megatron_monitor.follow.messages import CaughtUp, Data, Opened

_RECORDED = 20  # lines: a function that only some of them pass is not counted
_SECONDS = 5.0  # from line to line
_TRAINING = """ [2026-05-01 12:{:02}:{:02}] iteration {:8}/   10000 | consumed samples: {:12} | \
elapsed time per iteration (ms): 5000.0 | throughput per GPU (TFLOP/s/GPU): 400.0 | learning rate: 3.0E-04 | \
global batch size:    64 | lm loss: {:.6E} | loss scale: 1.0 | grad norm: {:.3f} | number of skipped iterations:   0 | \
number of nan iterations:   0 |
"""


def lines_of(path: str | None) -> list[bytes]:
    """Return the lines of the log, or those of a healthy training."""
    if path is not None:
        return Path(path).read_bytes().splitlines(keepends=True)
    times = [divmod(int(_SECONDS) * number, 60) for number in range(700)]
    return [_TRAINING.format(m, s, n, 64 * n, 3.0 - n / 900, 1.0 + n % 7 / 10).encode()
            for n, (m, s) in enumerate(times, 1)]  # fmt: skip


def passed(lines: list[bytes]) -> list[Counter[tuple[str, str]]]:
    """Return the calls of each of the last lines: (file, function) -> how often."""
    core, now, offset, found = Core(load("", [])), 0.0, 0, list[Counter[tuple[str, str]]]()
    core.handle(Opened("a.log", "a.log", None, 0, now, False), now)
    core.handle(CaughtUp("a.log", now), now)
    for number, line in enumerate(lines):
        now, calls = now + _SECONDS, Counter[tuple[str, str]]()

        def note(frame: FrameType, event: str, _: Any, calls: Counter[tuple[str, str]] = calls) -> None:
            if event == "call" and "megatron_monitor" in frame.f_code.co_filename:
                calls[frame.f_code.co_filename.rpartition("megatron_monitor/")[2], frame.f_code.co_qualname] += 1

        data = Data("a.log", offset, line, now, now, 0)
        sys.setprofile(note if number >= len(lines) - _RECORDED else None)
        core.handle(data, now)
        sys.setprofile(None)
        core.tick(now)
        found += [calls] if calls else []
        offset += len(line)
    return found


def usual(lines: list[bytes]) -> dict[tuple[str, str], int]:
    """Return what each of the last lines passes in its order: (file, function) -> how often."""
    each = passed(lines)
    every = [one for one in each[-1] if all(one in calls for calls in each)]
    seen_by_a_rule = next(place for place, (file, _) in enumerate(every) if file.startswith("detectors/"))
    return {one: each[-1][one] for one in every[:seen_by_a_rule]}


def test_a_line_passes_no_more_functions() -> None:
    """A bound on what a line costs; lower it with what goes."""
    found = usual(lines_of(None))
    assert len(found) <= 65
    assert len({file for file, _ in found}) <= 24
    assert spine(found) <= 4_500


def spine(found: Iterable[tuple[str, str]]) -> int:
    """Return the lines of the engine, attribution and run that a newcomer reads first: the files that a line passes."""
    files = {file for file, _ in found if file.startswith(("core/", "run/", "evaluation.py"))}
    return sum(len((Path(megatron_monitor.__path__[0]) / file).read_text().splitlines()) for file in files)


if __name__ == "__main__":
    found = usual(lines_of(sys.argv[1] if len(sys.argv) > 1 else None))
    rows = [f"{many:3}  {file}  {name}" for (file, name), many in found.items()]
    rows.append(f"{sum(found.values())} calls of {len(found)} functions in {len({file for file, _ in found})} files")
    rows.append(f"{spine(found)} lines in the files of core/, run/ and evaluation.py")
    sys.stdout.write("\n".join(rows) + "\n")
