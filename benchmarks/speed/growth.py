"""Time a line and memory over three decades: the file's size, the run's length, the number of attempts.

    python -m benchmarks.speed.growth

In this process, from bytes to the run's state with all detectors, by processor time.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from statistics import median

from benchmarks.speed.logs import HEAD, loop, noise
from benchmarks.speed.measure import Row, table
from monitor.config import Config
from monitor.judgement import Judge, Judged
from monitor.run.state import RunState
from monitor.store import encode
from parsers.reader import SourceReader

_CHUNK = 1 << 20
_FLAT = 1.25  # the machine's own drift


def sizes(count: int) -> Iterator[str]:
    """Noise, `count` kilobytes of it."""
    block = next(itertools.islice(noise(), 1, 2))
    yield from itertools.islice(itertools.cycle([block]), max(1, count * 1000 // len(block)))


def lengths(count: int) -> Iterator[str]:
    """`count` iterations."""
    return itertools.islice(loop(), count + 1)


def attempts(count: int) -> Iterator[str]:
    """`count` launches of 100 iterations each, the second half of which is computed again by the next."""
    lines = list(itertools.islice(loop(), 1, 50 * count + 101))
    for number in range(count):
        yield HEAD.replace("08:00:00", f"{8 + number // 3600 % 16:02d}:{number // 60 % 60:02d}:{number % 60:02d}")
        yield from lines[50 * number : 50 * number + 100]


def judged(texts: Iterator[str]) -> tuple[float, int]:
    """(microseconds of processor a line, bytes of the run's state as it is saved)."""
    judge, run, reader = Judge(Config()), Judged(RunState(name="x")), SourceReader()
    lines, seconds = 0, 0.0
    buffered: list[str] = []
    size = 0
    for text in itertools.chain(texts, [""]):
        buffered.append(text)
        size += len(text)
        if size < _CHUNK and text:
            continue
        data = "".join(buffered).encode()
        buffered, size = [], 0
        began = time.process_time()
        for entry in reader.feed(data):
            judge.take(run, entry, "source", 1e9, False)
        seconds += time.process_time() - began
        lines += data.count(b"\n")
    run.state.history.flush()  # as for a save
    return 1e6 * seconds / lines, len(encode(run.state))


def curve(what: str, unit: str, build: Callable[[int], Iterator[str]], counts: tuple[int, ...]) -> Row:
    judged(build(counts[0]))
    points = {}
    for count in counts:
        several = [judged(build(count)) for _ in range(3 if count < counts[-1] else 1)]
        points[count] = tuple(median(values) for values in zip(*several, strict=True))
    first, before, last = points[counts[-3]], points[counts[-2]], points[counts[-1]]
    growth = last[0] / first[0], last[1] / before[1]
    figure = "; ".join(
        f"{count:,} {unit}: {point[0]:.1f} us a line, state {point[1] / 1024:.0f} KiB"
        for count, point in points.items()
    )
    ratio = f"time {growth[0]:.2f}x from {counts[-3]:,} to {counts[-1]:,}, state {growth[1]:.2f}x over the last decade"
    return Row(f"growth with {what}", ratio, figure, "flat", max(growth) <= _FLAT)


def main() -> list[Row]:
    return [
        curve("the file's size", "kB of noise", sizes, (100, 1_000, 10_000, 100_000)),
        curve("the run's length", "iterations", lengths, (100, 1_000, 10_000, 100_000)),
        curve("the number of attempts", "attempts", attempts, (10, 100, 1_000, 10_000)),
    ]


if __name__ == "__main__":
    print(table(main()))
