"""What grows with the number of files and runs: a start on an archive, a restart on it, 100,000 files, the cost of a
live run. `python -m benchmarks.speed restart files runs`; the logs are generated.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks.speed.daemon import Daemon, daemon
from benchmarks.speed.logs import HEAD, iterations, written
from benchmarks.speed.measure import SCRATCH, Row, Sizes, cpu_of, environment, percentile, rss_of
from benchmarks.speed.steady import _step

_DAY = 86_400.0
_LIVE = 10
"""Logs of an archive that are still written; they lie where a walk finds them last."""


def _now() -> float:
    return time.time()  # noqa: TID251 - beside the daemon, not in it


def restart(sizes: Sizes) -> list[Row]:
    """The first start on an archive, its end, and a second start."""
    rows: list[Row] = []
    for count, most, goal in ((10_000, 1_000, 10.0), (10_000, 20_000, 10.0), (50_000, 1_000, 60.0)):
        rows += _restart(max(100, int(count * sizes.share)), max(10, int(most * sizes.share)), goal)
    return rows


def _restart(count: int, most: int, goal: float) -> list[Row]:
    folder = _archive(count)
    pattern = str(folder / "**" / "*.log")
    live = [folder / "zz" / f"live{number}.log" for number in range(_LIVE)]
    for log in live:
        log.parent.mkdir(exist_ok=True)
        written(log, [HEAD, *("".join(_step(iteration, 21 - iteration)) for iteration in range(1, 21))])
    given = (pattern, "--set", f"max_runs={most}")
    with daemon(*given) as one:
        first = one.until_ready(count + _LIVE)
        first_cpu, first_rss = cpu_of(one.process.pid), rss_of(one.process.pid)
        before = _shown(one)
        time.sleep(3.0)
        stop = _ended(one)
    size = sum(path.stat().st_size for path in (SCRATCH / "state").rglob("state*"))
    with daemon(*given, keep_state=True) as one, _moving(live):
        told = _told(one, live)
        again = one.until_ready(count + _LIVE)
        again_cpu, again_rss = cpu_of(one.process.pid), rss_of(one.process.pid)
        after = _shown(one)
    read = f"{after[0] - before[0]:,} bytes read again, runs shown {before[1]} and {after[1]}"
    return [
        Row(
            f"start on {count:,} logs, max_runs={most:,}: first", f"{first:.1f} s, {first_cpu:.1f} s of processor, "
            f"{first_rss:.0f} MB; stopped in {stop:.1f} s; state {size / 1e6:.0f} MB", "stop 2 s", stop <= 2.0,
        ),
        Row(
            "... again", f"{again:.1f} s, {again_cpu:.1f} s of processor, {again_rss:.0f} MB; a line of "
            f"each live run shown after {told:.1f} s; {read}", f"{goal:.0f} s", again <= goal,
        ),
    ]  # fmt: skip


def _archive(count: int) -> Path:
    """Finished logs, each a minute older than the one before; kept for the next time."""
    folder = SCRATCH / f"archive-{count}"
    if not (folder / "whole").exists():
        now, text = _now(), "".join(iterations(12 if count > 20_000 else 40))
        for number in range(count):
            path = folder / f"d{number // 500:03d}" / f"run{number:05d}.log"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            age = _DAY + 60.0 * ((number * 7919) % count)  # no order of the names
            os.utime(path, (now - age, now - age))
        (folder / "whole").touch()
    return folder


def _shown(one: Daemon) -> tuple[int, int]:
    page = one.get("/metrics")[1]
    read = re.search(rb"^megatron_monitor_bytes_total (\S+)$", page, re.MULTILINE)
    return int(float(read[1])) if read else 0, len(re.findall(rb"^megatron_iteration\{", page, re.MULTILINE))


def _ended(one: Daemon) -> float:
    began = time.perf_counter()
    one.process.send_signal(signal.SIGINT)
    one.process.wait(60)
    return time.perf_counter() - began


@contextmanager
def _moving(logs: list[Path]) -> Iterator[None]:
    """An iteration a second to each, from 21 on."""
    ending = threading.Event()

    def write() -> None:
        number = 20
        while not ending.wait(1.0):
            number += 1
            for log in logs:
                with log.open("a") as stream:
                    stream.write("".join(_step(number)))

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    yield
    ending.set()
    thread.join()


def _told(one: Daemon, logs: list[Path]) -> float:
    """Seconds from the start of the process until a new line of each of these logs is shown."""
    while time.perf_counter() - one.began < 120.0:
        try:
            page = one.get("/metrics")[1].decode()
        except OSError:
            page = ""
        found = dict(re.findall(r'^megatron_iteration\{run="(?:zz/)?(live\d+)"\} (\d+)', page, re.MULTILINE))
        if all(int(found.get(log.stem, 0)) > 20 for log in logs):
            return time.perf_counter() - one.began
        time.sleep(0.5)
    return 120.0


def files(sizes: Sizes) -> list[Row]:
    """100,000 files that are no trainings, of three lines each."""
    count = int(100_000 * sizes.share)
    folder = SCRATCH / f"files-{count}"
    if not (folder / "whole").exists():
        for number in range(count):
            path = folder / f"{number // 200:03d}" / f"job{number:06d}.out"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"service {number} NCCL INFO nothing to see {line}\n" for line in range(3)))
            os.utime(path, (_now() - _DAY, _now() - _DAY))
        (folder / "whole").touch()
    rows = []
    for what, keep in (("first", False), ("again", True)):
        with daemon(str(folder / "**" / "*.out"), keep_state=keep) as one:
            ready = one.until_ready(count)
            used, memory = cpu_of(one.process.pid), rss_of(one.process.pid)
            stop = _ended(one)
        figure = f"{ready:.1f} s, {used:.1f} s of processor, {memory:.0f} MB; stopped in {stop:.1f} s"
        met = used <= 20 and memory <= 300
        rows.append(Row(f"{count:,} files that are no trainings, {what}", figure, "20 s of processor, 300 MB", met))
    return rows


_WRITER = """
import sys, time
from datetime import datetime, timezone
from pathlib import Path
from random import Random
from benchmarks.speed.logs import deepspeed_step
names = Path(sys.argv[1])
logs = [open(name, "ab", buffering=0) for name in names.read_text().splitlines()]
crash = names.with_name("crash")
number, began, chance = 20, time.perf_counter(), Random(1)
while True:
    number += 1
    text = "".join(deepspeed_step(number, 100_000, datetime.now(timezone.utc), chance)).encode()
    if crash.exists():
        logs.pop().write(crash.read_bytes())
        crash.unlink()
    for index, log in enumerate(logs):
        log.write(text)
        if index % 10 == 9:
            due = began + number - 21 + index / len(logs)
            time.sleep(max(0.0, due - time.perf_counter()))
    time.sleep(max(0.0, began + number - 20 - time.perf_counter()))
"""


@contextmanager
def _writer(logs: list[Path], folder: Path) -> Iterator[None]:
    """A process of its own: an iteration a second to each, with timers and engine steps, spread over the second. What
    is put into a file `crash` becomes the last words of the last of them.
    """
    names = folder / "names"
    names.write_text("\n".join(map(str, logs)))
    process = subprocess.Popen((sys.executable, "-c", _WRITER, str(names)), env=environment())
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def runs(sizes: Sizes) -> list[Row]:
    """What each live run costs, how old what is shown is, how long a scrape takes, when a crash is told."""
    rows = []
    for count, goal in ((50, 1.2), (500, 10.0), (1000, 20.0), (2000, 40.0)):
        rows.append(_live(count, goal, sizes.seconds))
    return rows


def _live(count: int, goal: float, seconds: float) -> Row:
    folder = SCRATCH / f"live-{count}"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    logs = [written(folder / f"run{number:04d}.log", [HEAD]) for number in range(count)]
    with daemon(str(folder / "*.log"), "--set", "max_runs=5000") as one, _writer(logs, folder):
        one.until_ready(count)
        time.sleep(10.0)
        cpu, began = cpu_of(one.process.pid), time.perf_counter()
        waits, ages = [], []
        while time.perf_counter() - began < seconds:
            asked = time.perf_counter()
            page = one.get("/metrics")[1]
            waits.append(time.perf_counter() - asked)
            at = _now()
            moved = re.findall(rb"^megatron_last_progress_timestamp_seconds\{[^}]*\} (\S+)$", page, re.MULTILINE)
            ages += [at - float(one_run) for one_run in moved]
            time.sleep(max(0.0, min(15.0, seconds / 4) - waits[-1]))
        used = 100 * (cpu_of(one.process.pid) - cpu) / (time.perf_counter() - began)
        memory = rss_of(one.process.pid)
        crash = _crash(one, folder, logs[-1].stem)
    figure = (
        f"{used:.1f} % of one core, {1000 * used / count:.1f} % for 1,000; {memory:.0f} MB; "
        f"a page of {len(page) / 1e6:.1f} MB in {median(waits):.2f} s, at most {max(waits):.2f} s; "
        f"progress shown is {median(ages):.1f} s old, 99 % at most {percentile(ages, 0.99):.1f} s; "
        f"a crash is told after {crash:.1f} s"
    )
    return Row(f"{count:,} live runs, an iteration a second each", figure, f"{goal:.1f} %", used <= goal)


def _crash(one: Daemon, folder: Path, run: str) -> float:
    """Seconds from the last words of a training to its incident."""
    beside = folder / "crash-to-be"
    beside.write_text(
        "Traceback (most recent call last):\n"
        '  File "pretrain_gpt.py", line 1, in <module>\n'
        "    main()\n"
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0)\n"
        "srun: error: n1: task 0: Exited with exit code 1\n"
    )
    words = beside.rename(folder / "crash")
    while words.exists():  # the writer takes it within a second
        time.sleep(0.005)
    began = time.perf_counter()
    while time.perf_counter() - began < 60.0:
        told = json.loads(one.get("/api/v1/incidents")[1])["incidents"]
        if any(one_told["run"] == run and one_told["incident"] == "crash" for one_told in told):
            break
        time.sleep(0.2)
    return time.perf_counter() - began
