"""The daemon beside training: 50 live runs, 10,000 idle files, the way of a line to its metric, scrapes, a resume.

    python -m benchmarks.speed.steady [--seconds 30] [--gigabytes 10] [part ...]

Parts: live idle latency scrape resume.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from statistics import median

from benchmarks.speed.daemon import Daemon, daemon
from benchmarks.speed.logs import HEAD, iteration_line, write_bytes
from benchmarks.speed.measure import SCRATCH, Row, cpu_of, percentile, rss_of, spread, table

_CHANCE = Random(1)


def _line(iteration: int) -> str:
    return iteration_line(iteration, 10_000, datetime.now(UTC).replace(tzinfo=None), _CHANCE) + "\n"  # noqa: TID251


def _folder(name: str) -> Path:
    folder = SCRATCH / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _runs(folder: Path, count: int, lines: int) -> list[Path]:
    logs = []
    for number in range(count):
        log = folder / f"run{number:04d}.log"
        log.write_text(HEAD + "".join(_line(iteration) for iteration in range(1, lines + 1)))
        logs.append(log)
    return logs


class _Scrapes:
    """One of the whole page every 15 s, as Prometheus asks: what the monitor does only when asked is counted too."""

    def __init__(self, one: Daemon) -> None:
        self._one, self._stop = one, threading.Event()
        self._thread = threading.Thread(target=self._scrape, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _scrape(self) -> None:
        while not self._stop.wait(15.0):
            self._one.get("/metrics")


class _Writers:
    """One line a second to each log, spread over the second, from another thread."""

    def __init__(self, logs: list[Path], first: int) -> None:
        self._logs, self._first, self._stop = logs, first, threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _write(self) -> None:
        streams = [log.open("a", buffering=1) for log in self._logs]
        iteration, began = self._first, time.perf_counter()
        while not self._stop.is_set():
            for index, stream in enumerate(streams):
                stream.write(_line(iteration))
                due = began + (iteration - self._first) + (index + 1) / len(streams)
                self._stop.wait(max(0.0, due - time.perf_counter()))
            iteration += 1
        for stream in streams:
            stream.close()


def live(seconds: float) -> list[Row]:
    """50 runs, one line a second each, scraped every 15 s; `tail -F` on the same files beside it."""
    logs = _runs(_folder("live"), 50, 20)
    with daemon(str(logs[0].parent / "*.log")) as one:
        one.until_ready(len(logs))
        tail = subprocess.Popen(["tail", "-q", "-n", "0", "-F", *map(str, logs)], stdout=subprocess.DEVNULL)
        with _Writers(logs, 21), _Scrapes(one):
            one.rate(10.0)
            before, began = cpu_of(tail.pid), time.perf_counter()
            shares = [one.rate(seconds / 3) for _ in range(3)]
            tailed = (cpu_of(tail.pid) - before) / (time.perf_counter() - began)
        tail_memory = rss_of(tail.pid)
        tail.terminate()
        tail.wait()
    used, memory = [100 * share for share, _ in shares], shares[-1][1]
    return [
        Row(
            "50 live runs, a line a second each: processor", f"{median(used):.1f} of the bar",
            f"{spread(used)} % of one core (`tail -F`: {100 * tailed:.2f} %)", "1 %", median(used) <= 1.0,
        ),
        Row(
            "... resident memory", f"{memory * 1.048576 / 80:.2f} of the bar",
            f"{memory:.0f} MiB (`tail -F`: {tail_memory:.0f} MiB)", "80 MB", memory * 1.048576 <= 80,
        ),
    ]  # fmt: skip


def idle(seconds: float) -> list[Row]:
    """10,000 files that nobody writes."""
    folder = _folder("idle")
    for number in range(10_000):
        (folder / f"{number // 100:03d}").mkdir(exist_ok=True)
        (folder / f"{number // 100:03d}" / f"job{number:05d}.out").write_text("NCCL INFO nothing to see\n" * 10)
    rows = []
    for mode in ("woken", "polled"):
        with daemon(str(folder / "**" / "*.out"), polled=mode == "polled") as one:
            one.until_ready(0)  # files without a training log are looked at and not followed
            one.rate(20.0)
            stats = one.value("megatron_monitor_stat_calls_total")
            shares = [one.rate(seconds / 3) for _ in range(3)]
            asked = one.value("megatron_monitor_stat_calls_total")
        used = [100 * share for share, _ in shares]
        looks = f"; {(asked - stats) / seconds:.0f} stats a second" if asked is not None and stats is not None else ""
        rows.append(
            Row(
                f"10,000 idle files, {mode}", f"{median(used) / 2:.1f} of the bar",
                f"{spread(used)} % of one core, {shares[-1][1]:.0f} MiB{looks}", "2 %", median(used) <= 2.0,
            )
        )  # fmt: skip
    return rows


def latency(samples: int) -> list[Row]:
    """From the end of the write to the first scrape that shows the line. Scrapes follow one another without pause."""
    rows = []
    for mode, bar in (("woken", 0.150), ("polled", 1.1)):
        logs = _runs(_folder(f"latency-{mode}"), 1, 20)
        waits: list[float] = []
        with daemon(str(logs[0]), polled=mode == "polled") as one, logs[0].open("a", buffering=1) as stream:
            one.until_ready(1)
            series = f'megatron_iteration{{run="{logs[0].stem}"}}'
            for iteration in range(21, 21 + samples):
                time.sleep(0.2 + _CHANCE.random())
                stream.write(_line(iteration))
                began = time.perf_counter()
                while one.value(series) != iteration:
                    time.sleep(0.002)
                waits.append(time.perf_counter() - began)
        last = percentile(waits, 0.99)
        rows.append(
            Row(
                f"line written to metric visible, {mode}", f"{last / bar:.2f} of the bar",
                f"p50 {1000 * median(waits):.0f} ms, p99 {1000 * last:.0f} ms of {samples}", f"{1000 * bar:.0f} ms",
                last <= bar,
            )
        )  # fmt: skip
    return rows


def _scrapes(one: Daemon, count: int, pause: float = 0.02) -> list[float]:
    waits = []
    for _ in range(count):
        began = time.perf_counter()
        one.get("/metrics")
        waits.append(time.perf_counter() - began)
        time.sleep(pause)
    return waits


def scrape(count: int) -> list[Row]:
    """Scrapes while 50 runs get a line a second: one after the other, and so seldom that every live run has changed."""
    rows = []
    for runs, pause, bar in ((50, 0.02, 0.020), (50, 1.0, 0.020), (1000, 0.02, 0.300)):
        logs = _runs(_folder("scrape"), runs, 20)
        with daemon(str(logs[0].parent / "*.log")) as one:
            one.until_ready(runs)
            size = len(one.get("/metrics")[1])
            with _Writers(logs[:50], 21):
                waits = _scrapes(one, count if pause < 1.0 else max(20, count // 5), pause)
        last = percentile(waits, 0.99)
        often = "" if pause < 1.0 else ", once a second"
        rows.append(
            Row(
                f"scrape, {runs} runs (50 of them live){often}", f"{last / bar:.2f} of the bar",
                f"p50 {1000 * median(waits):.0f} ms, p99 {1000 * last:.0f} ms of {len(waits)}; "
                f"{size / 1e6:.1f} MB a page",
                f"{1000 * bar:.0f} ms", last <= bar,
            )
        )  # fmt: skip
    return rows


def resume(gigabytes: float) -> list[Row]:
    """Start again with logs that were read before."""
    folder = _folder("resume")
    part = SCRATCH / "noise.200.log"
    write_bytes("noise", part, 200 * 10**6)
    count = max(1, round(gigabytes * 5))
    for number in range(count):
        shutil.copyfile(part, folder / f"run{number:03d}.log")
    with daemon(str(folder / "*.log")) as one:
        first = one.until_ready(count)
    with daemon(str(folder / "*.log"), keep_state=True) as one:
        again = one.until_ready(count)
    shutil.rmtree(folder)
    figure = f"{again:.2f} s (reading it the first time: {first:.0f} s)"
    return [
        Row(
            f"start with {count / 5:.0f} GB of logs already read",
            f"{again / 2:.2f} of the bar",
            figure,
            "2 s",
            again <= 2.0,
        )
    ]


PARTS: dict[str, Callable[[float, float], list[Row]]] = {
    "live": lambda seconds, _: live(seconds),
    "idle": lambda seconds, _: idle(seconds),
    "latency": lambda seconds, _: latency(max(20, int(seconds * 2))),
    "scrape": lambda seconds, _: scrape(max(50, int(seconds * 7))),
    "resume": lambda _, gigabytes: resume(gigabytes),
}


def main(seconds: float = 30.0, gigabytes: float = 10.0, parts: tuple[str, ...] = tuple(PARTS)) -> list[Row]:
    SCRATCH.mkdir(parents=True, exist_ok=True)
    return [row for part in parts for row in PARTS[part](seconds, gigabytes)]


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("parts", nargs="*")
    options.add_argument("--seconds", type=float, default=30.0)
    options.add_argument("--gigabytes", type=float, default=10.0)
    given = options.parse_args()
    print(table(main(given.seconds, given.gigabytes, tuple(given.parts) or tuple(PARTS))))
