"""The daemon beside training: 50 live runs, 10,000 idle files, a line's way to its metric, scrapes, a restart.

The logs are generated; they are written while the daemon reads them.
"""

import shutil
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from statistics import median

from benchmarks.speed.daemon import Daemon, daemon
from benchmarks.speed.logs import HEAD, deepspeed_step, kilobytes, written
from benchmarks.speed.measure import SCRATCH, Row, Sizes, percentile, spread

_CHANCE = Random(1)
_BEFORE = 20
"""Iterations that a log holds when the daemon starts."""


def _step(iteration: int, seconds_ago: int = 0) -> tuple[str, str]:
    """What is printed of an iteration: by rank 0, by the last rank."""
    at = datetime.now(UTC).replace(tzinfo=None) - timedelta(seconds=seconds_ago)  # noqa: TID251
    return deepspeed_step(iteration, 100_000, at, _CHANCE)


def _folder(name: str) -> Path:
    folder = SCRATCH / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _runs(folder: Path, count: int) -> list[Path]:
    logs = []
    for number in range(count):
        steps = ("".join(_step(iteration, _BEFORE - iteration)) for iteration in range(1, _BEFORE + 1))
        logs.append(written(folder / f"run{number:04d}.log", [HEAD, *steps]))
    return logs


class _Thread:
    """Something that is done beside the measurement."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class _Scrapes(_Thread):
    """One of the whole page every 15 s, as Prometheus asks: what is done only when somebody asks is counted too."""

    def __init__(self, one: Daemon) -> None:
        super().__init__()
        self._one = one

    def _run(self) -> None:
        while not self._stop.wait(15.0):
            self._one.get("/metrics")


class _Writers(_Thread):
    """An iteration a second to each log, spread over the second: the lines of rank 0, then that of the last rank."""

    def __init__(self, logs: list[Path]) -> None:
        super().__init__()
        self._logs = logs

    def _run(self) -> None:
        streams = [log.open("a", buffering=1) for log in self._logs]
        number, began = 0, time.perf_counter()
        while not self._stop.is_set():
            for index, stream in enumerate(streams):
                for text in _step(_BEFORE + 1 + number):
                    stream.write(text)
                due = began + number + (index + 1) / len(streams)
                self._stop.wait(max(0.0, due - time.perf_counter()))
            number += 1
        for stream in streams:
            stream.close()


def live(sizes: Sizes) -> list[Row]:
    """50 runs, an iteration a second each, with timers and engine steps; scraped every 15 s."""
    logs = _runs(_folder("live"), 50)
    with daemon(str(logs[0].parent / "*.log")) as one:
        one.until_ready(len(logs))
        with _Writers(logs), _Scrapes(one):
            one.rate(10.0)
            watched = [one.rate(sizes.seconds / 3) for _ in range(3)]
    used, memory = [share for share, _ in watched], watched[-1][1]
    return [
        Row(
            "50 live runs, an iteration a second each with timers and engine steps (generated logs): processor",
            f"{spread(used)} % of one core", "1.5 %", median(used) <= 1.5,
        ),
        Row("... resident memory", f"{memory:.0f} MB", "80 MB", memory <= 80),
    ]  # fmt: skip


def idle(sizes: Sizes) -> list[Row]:
    """10,000 files that nobody writes."""
    folder = _folder("idle")
    for number in range(10_000):
        (folder / f"{number // 100:03d}").mkdir(exist_ok=True)
        (folder / f"{number // 100:03d}" / f"job{number:05d}.out").write_text("NCCL INFO nothing to see\n" * 10)
    rows = []
    series = "megatron_monitor_stat_calls_total"
    for mode in ("woken", "polled"):
        with daemon(str(folder / "**" / "*.out"), polled=mode == "polled") as one:
            one.until_ready(0)  # files without a training log are looked at and not followed
            one.rate(10.0)
            calls = one.value(series)
            watched = [one.rate(sizes.seconds / 6) for _ in range(3)]
            calls_after = one.value(series)
        used = [share for share, _ in watched]
        stats = (
            f"; {2 * (calls_after - calls) / sizes.seconds:.0f} stat calls a second" if calls and calls_after else ""
        )
        figure = f"{spread(used)} % of one core, {watched[-1][1]:.0f} MB{stats}"
        rows.append(Row(f"10,000 idle files, {mode}", figure, "2 %", median(used) <= 2.0))
    return rows


def latency(sizes: Sizes) -> list[Row]:
    """From the end of the write to the first scrape that shows the line. Scrapes follow one another without pause."""
    rows = []
    samples = max(10, int(sizes.seconds))
    for mode, goal in (("woken", 0.150), ("polled", 1.1)):
        logs = _runs(_folder(f"latency-{mode}"), 1)
        waits: list[float] = []
        with daemon(str(logs[0]), polled=mode == "polled") as one, logs[0].open("a", buffering=1) as stream:
            one.until_ready(1)
            series = f'megatron_iteration{{run="{logs[0].stem}"}}'
            for iteration in range(_BEFORE + 1, _BEFORE + 1 + samples):
                time.sleep(0.2 + _CHANCE.random())
                stream.write("".join(_step(iteration)))
                began = time.perf_counter()
                while one.value(series) != iteration:
                    time.sleep(0.002)
                waits.append(time.perf_counter() - began)
        last = percentile(waits, 0.99)
        figure = f"p50 {1000 * median(waits):.0f} ms, p99 {1000 * last:.0f} ms of {samples}"
        rows.append(Row(f"line written to metric visible, {mode}", figure, f"p99 {1000 * goal:.0f} ms", last <= goal))
    return rows


def scrape(sizes: Sizes) -> list[Row]:
    """Scrapes while 50 runs are written: one after the other, and so seldom that every live run has changed."""
    rows = []
    many = max(30, int(sizes.seconds * 6))
    for runs, pause, count, goal in ((50, 0.02, many, 0.020), (50, 1.0, many // 6, 0.020), (1000, 0.02, many, 0.300)):
        logs = _runs(_folder("scrape"), runs)
        waits = []
        with daemon(str(logs[0].parent / "*.log")) as one:
            one.until_ready(runs)
            size = len(one.get("/metrics")[1])
            with _Writers(logs[:50]):
                for _ in range(count):
                    began = time.perf_counter()
                    one.get("/metrics")
                    waits.append(time.perf_counter() - began)
                    time.sleep(pause)
        last = percentile(waits, 0.99)
        often = ", once a second" if pause >= 1.0 else ""
        figure = (
            f"p50 {1000 * median(waits):.0f} ms, p99 {1000 * last:.0f} ms of {count}; a page of {size / 1e6:.1f} MB"
        )
        what = f"scrape, {runs} runs, 50 of them live{often} (generated logs)"
        rows.append(Row(what, figure, f"p99 {1000 * goal:.0f} ms", last <= goal))
    return rows


def resume(sizes: Sizes) -> list[Row]:
    """Start again with logs that were read before."""
    folder = _folder("resume")
    count = max(2, round(sizes.gigabytes * 5))
    part = written(folder / "run000.log", kilobytes(200_000))
    for number in range(1, count):
        shutil.copyfile(part, folder / f"run{number:03d}.log")
    with daemon(str(folder / "*.log")) as one:
        first = one.until_ready(count)
    with daemon(str(folder / "*.log"), keep_state=True) as one:
        again = one.until_ready(count)
    shutil.rmtree(folder)
    figure = f"{again:.2f} s (reading them the first time: {first:.0f} s)"
    return [Row(f"start with {count / 5:.1f} GB of logs already read (generated)", figure, "2 s", again <= 2.0)]
