"""Generated logs read to the end: a million iterations, and cost by length.

What is compared with another program is measured on real logs (real.py); each row here says that its log is generated.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable

from benchmarks.speed.daemon import daemon
from benchmarks.speed.logs import HEAD, attempts, iterations, kilobytes, written
from benchmarks.speed.measure import MONITOR, SCRATCH, Row, Sizes, in_turns, middle, run
from benchmarks.speed.real import MTAIL

_REPLAY_GOAL = 45.0  # seconds for a million iterations
_FLAT, _FLAT_MEMORY = 1.25, 1.1  # times vary so much by themselves; memory is allocated in steps


def replaying(sizes: Sizes) -> list[Row]:
    """A million iterations judged by all detectors on the log's own clock."""
    count = sizes.iterations
    short = run((*MONITOR, "replay", str(written(SCRATCH / "short.log", iterations(count // 100)))))
    long = run((*MONITOR, "replay", str(written(SCRATCH / "long.log", iterations(count)))))
    goal = _REPLAY_GOAL * count / 1e6
    return [
        Row(
            f"`replay` of {count:,} iteration lines (generated log)",
            f"{long.cpu:.1f} s of processor, {long.wall:.1f} s wall", f"{goal:.1f} s", long.wall <= goal,
        ),
        Row(
            f"... peak memory, {count // 100:,} and {count:,} iterations",
            f"{short.peak:.0f} MB and {long.peak:.0f} MB", "flat (within 10 %)", long.peak <= _FLAT_MEMORY * short.peak,
        ),
    ]  # fmt: skip


def start_up(sizes: Sizes) -> list[Row]:
    """Text that says nothing of a training: what a start-up on 512 ranks prints."""
    megabytes = 5 * sizes.megabytes
    log = written(SCRATCH / "start-up.log", kilobytes(megabytes * 1000))
    commands = {"monitor": (*MONITOR, "run", "--once", str(log))}
    if shutil.which("mtail"):
        commands["mtail"] = (*MTAIL, str(log))
    runs = {name: middle(several) for name, several in in_turns(commands, sizes.times).items()}
    mine = runs["monitor"]
    peer = f"; {runs['mtail'].cpu / mine.cpu:.1f}x mtail's speed by processor time" if "mtail" in runs else ""
    speed = f"{log.stat().st_size / mine.cpu / 1e6:.0f} MB/s{peer}"
    return [Row(f"`run --once`, {megabytes} MB of a start-up's noise (generated log)", speed)]


def growth(sizes: Sizes) -> list[Row]:
    """Processor time a line, peak memory and size of the saved state as a log grows in three ways."""
    largest = min(100_000, sizes.iterations)
    return [
        _growth("the log's size, noise", "kB", kilobytes, largest),
        _growth("the run's length", "iterations", iterations, largest),
        _growth("the number of attempts", "attempts", attempts, largest // 10),
    ]


def _growth(what: str, unit: str, texts: Callable[[int], Iterable[str]], largest: int) -> Row:
    start = run((*MONITOR, "replay", str(written(SCRATCH / "empty.log", [HEAD]))))
    figures, points = [], []
    for count in (largest // 100, largest // 10, largest):
        log = written(SCRATCH / "growth.log", texts(count))
        one = run((*MONITOR, "replay", str(log)))
        with log.open("rb") as stream:
            lines = sum(1 for _ in stream)
        each = 1e6 * (one.cpu - start.cpu) / lines
        with daemon(str(log)) as following:
            following.until_ready(1)
        state = sum(path.stat().st_size for path in (SCRATCH / "state").rglob("state")) / 1000
        points.append((each, one.peak, state))
        figures.append(f"{count:,} {unit}: {each:.1f} us a line, {one.peak:.0f} MB, state {state:.0f} kB")
    # the last decade alone: of a shorter log the program's start is most of the time
    (time, peak, state), (time_after, peak_after, state_after) = points[-2:]
    met = time_after <= _FLAT * time and state_after <= _FLAT * state and peak_after <= _FLAT_MEMORY * peak
    return Row(f"growth with {what} (generated log)", "; ".join(figures), "flat", met)
