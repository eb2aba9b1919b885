"""The daemon as a process, on generated logs that are written meanwhile: 100,000 idle files, live runs, latency."""

import contextlib
import http.client
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles

from benchmarks.speed.logs import HEAD, written
from benchmarks.speed.measure import MONITOR, SCRATCH, Row, cpu_of, environment, rss_of

_WRITER = """
import sys, time
from datetime import datetime, timezone
from pathlib import Path
from random import Random
from benchmarks.speed.logs import deepspeed_step
names = Path(sys.argv[1])
logs = [open(name, "ab", buffering=0) for name in names.read_text().splitlines()]
number, began, chance = 20, time.perf_counter(), Random(1)
while True:
    number += 1
    text = "".join(deepspeed_step(number, 100_000, datetime.now(timezone.utc), chance)).encode()
    for index, log in enumerate(logs):
        log.write(text)
        if index % 10 == 9:
            due = began + number - 21 + index / len(logs)
            time.sleep(max(0.0, due - time.perf_counter()))
    time.sleep(max(0.0, began + number - 20 - time.perf_counter()))
"""


class Daemon:
    """One that runs."""

    def __init__(self, process: subprocess.Popen[bytes], address: str, began: float) -> None:
        self.process, self.address, self.began = process, address, began

    def get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.address, timeout=30)
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, body

    def until_ready(self, files: int) -> float:
        """Seconds from the start of the process until it is ready and so many files are read to their ends."""
        while time.perf_counter() - self.began < 600.0:
            with contextlib.suppress(OSError):
                found = re.search(rb'monitor_sources{state="following"} (\S+)', self.get("/metrics")[1])
                if self.get("/-/ready")[0] == 200 and found and float(found[1]) >= files:
                    return time.perf_counter() - self.began
            time.sleep(0.02 if files < 1000 else 0.5)  # to be asked costs the daemon, too
        raise RuntimeError("the daemon was not ready after 600 s")


@contextlib.contextmanager
def daemon(*arguments: str, keep_state: bool = False) -> Iterator[Daemon]:
    """`run` with these arguments on a free port."""
    if not keep_state:
        shutil.rmtree(SCRATCH / "state", ignore_errors=True)
    log, began = SCRATCH / "daemon.log", time.perf_counter()
    command = (*MONITOR, "run", "--listen", "127.0.0.1:0", "--set", f"state_dir={SCRATCH / 'state'}", *arguments)
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream, env=environment())
    try:
        while not (found := re.search(r"listening on http://([^/\s]+)/", log.read_text())):
            if process.poll() is not None:
                raise RuntimeError(f"the daemon does not listen: {log.read_text()}")
            time.sleep(0.01)
        yield Daemon(process, found[1], began)
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def files(share: float) -> list[Row]:
    """100,000 old files that are no trainings, of three lines each: the first start, and the next."""
    count = int(100_000 * share)
    folder = SCRATCH / f"files-{count}"
    day_ago = time.time() - 86_400.0
    for number in range(0 if (folder / "whole").exists() else count):
        path = folder / f"{number // 200:03d}" / f"job{number:06d}.out"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"service {number} NCCL INFO nothing to see {line}\n" for line in range(3)))
        os.utime(path, (day_ago, day_ago))
    (folder / "whole").touch()
    rows = []
    for what, keep in (("first start", False), ("next start", True)):
        with daemon(str(folder / "**" / "*.out"), keep_state=keep) as one:
            ready = one.until_ready(count)
            used, memory = cpu_of(one.process.pid), rss_of(one.process.pid)
        figure = f"{ready:.1f} s, {used:.1f} s processor time, {memory:.0f} MB"
        met = used <= 20 and memory <= 300
        rows.append(
            Row(f"{count:,} files that are not training logs, {what}", figure, "20 s processor time, 300 MB", met)
        )
    return rows


def runs(share: float) -> list[Row]:
    """What each live run costs, how old what is shown is, how long a scrape takes."""
    return [_live(*one, 30.0 * share) for one in ((50, 1.2), (500, 10.0), (1000, 20.0), (2000, 40.0))]


@contextlib.contextmanager
def _written(logs: list[Path], folder: Path) -> Iterator[None]:
    """A process writes an iteration a second to each, with timers and engine steps, spread over the second."""
    names = folder / "names"
    names.write_text("\n".join(map(str, logs)))
    process = subprocess.Popen((sys.executable, "-c", _WRITER, str(names)), env=environment())
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def _live(count: int, goal: float, seconds: float) -> Row:
    folder = SCRATCH / f"live-{count}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    logs = [written(folder / f"run{number:04d}.log", [HEAD]) for number in range(count)]
    with daemon(str(folder / "*.log"), "--set", "max_runs=5000") as one, _written(logs, folder):
        one.until_ready(count)
        time.sleep(10.0)
        cpu, began = cpu_of(one.process.pid), time.perf_counter()
        waits, ages = list[float](), list[float]()
        while time.perf_counter() - began < seconds:
            asked = time.perf_counter()
            page = one.get("/metrics")[1]
            waits.append(time.perf_counter() - asked)
            at = time.time()
            moved = re.findall(rb"^megatron_last_progress_timestamp_seconds\{[^}]*\} (\S+)$", page, re.MULTILINE)
            ages += [at - float(one_run) for one_run in moved]
            time.sleep(max(0.0, min(15.0, seconds / 4) - waits[-1]))
        used = 100 * (cpu_of(one.process.pid) - cpu) / (time.perf_counter() - began)
        memory = rss_of(one.process.pid)
    figure = (
        f"{used:.1f} % of one core ({1000 * used / count:.1f} % per 1,000 runs); {memory:.0f} MB; "
        f"a scrape of {len(page) / 1e6:.1f} MB takes {median(waits):.2f} s, at most {max(waits):.2f} s; "
        f"exported progress is {median(ages):.1f} s old, 99 % at most {quantiles(ages, n=100)[-1]:.1f} s"
    )
    return Row(f"{count:,} live runs, one iteration per second each", figure, f"{goal:.1f} %", used <= goal)
