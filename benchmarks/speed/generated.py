"""Generated logs read to the end: a million iterations, and cost by length.

What is compared with another program is measured on real logs (real.py); each row here says that its log is generated.
"""

import shutil
from collections.abc import Callable, Iterable

from benchmarks.speed.daemon import daemon
from benchmarks.speed.logs import HEAD, attempts, iterations, kilobytes, written
from benchmarks.speed.measure import MONITOR, SCRATCH, Row, Sizes, in_turns, middle, run
from benchmarks.speed.real import MTAIL

_REPLAY_GOAL = 25.0  # seconds for a million iterations
_FLAT_MEMORY = 1.1  # it is allocated in steps
_START = 0.05  # seconds by which the starts of a program differ
_START_GOAL = 0.12  # seconds of processor


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


def starting(_sizes: Sizes) -> list[Row]:
    """What a start takes, before the first line is read: the least of several, for others only make it longer."""
    tiny = str(written(SCRATCH / "empty.log", [HEAD]))
    rows = []
    for what, command in (("`--help`", ("--help",)), ("`run --once` of some lines", ("run", "--once", tiny))):
        least = min(run((*MONITOR, *command)).cpu for _ in range(7))
        rows.append(Row(f"start, {what}", f"{least:.2f} s of processor", f"{_START_GOAL:.2f} s", least <= _START_GOAL))
    return rows


def start_up(sizes: Sizes) -> list[Row]:
    """Text that says nothing of a training: what a start-up on 512 ranks prints."""
    megabytes = 5 * sizes.megabytes
    log = written(SCRATCH / "start-up.log", kilobytes(megabytes * 1000))
    commands: dict[str, tuple[str, ...]] = {"monitor": (*MONITOR, "run", "--once", str(log))}
    if shutil.which("mtail"):
        commands["mtail"] = (*MTAIL, str(log))
    runs = {name: middle(several) for name, several in in_turns(commands, sizes.times).items()}
    mine = runs["monitor"]
    peer = f"; {runs['mtail'].cpu / mine.cpu:.1f}x mtail's speed by processor time" if "mtail" in runs else ""
    speed = f"{log.stat().st_size / mine.cpu / 1e6:.0f} MB/s{peer}"
    return [Row(f"`run --once`, {megabytes} MB of a start-up's noise (generated log)", speed)]


def growth(sizes: Sizes) -> list[Row]:
    """Processor time a line, peak memory and size of the saved state as a log becomes ten times as long."""
    most = min(100_000, sizes.iterations)
    return [
        _growth("the log's size, a start-up's noise", "kB", kilobytes, most),
        _growth("the run's length", "iterations", iterations, most),
        _growth("the number of attempts", "attempts", attempts, most // 10),
    ]


def _growth(what: str, unit: str, texts: Callable[[int], Iterable[str]], most: int) -> Row:
    start = [*MONITOR, "replay", str(written(SCRATCH / "empty.log", [HEAD]))]
    begun = middle([run(start) for _ in range(4)][1:])
    figures, points, counts = [], [], []
    for count in (most // 10, most):
        log = written(SCRATCH / "growth.log", texts(count))
        one = middle([run((*MONITOR, "replay", str(log))) for _ in range(1 if count == most else 3)])
        with log.open("rb") as stream:
            lines = sum(1 for _ in stream)
        with daemon(str(log)) as following:
            following.until_ready(1)
        point = (
            1e6 * (one.cpu - begun.cpu) / lines,
            one.peak,
            sum(path.stat().st_size for path in (SCRATCH / "state").rglob("state")) / 1000,
        )
        points.append(point)
        counts.append(lines)
        figures.append(f"{count:,} {unit}: {point[0]:.1f} us a line, peak {point[1]:.0f} MB, state {point[2]:.0f} kB")
    times, peaks, states = zip(*points, strict=True)
    met = (
        times[1] <= 1.25 * times[0] + 1e6 * _START / counts[0]
        and peaks[1] <= _FLAT_MEMORY * peaks[0]
        and states[1] <= 1.25 * states[0]
    )
    return Row(f"growth with {what} (generated log)", "; ".join(figures), "flat", met)
