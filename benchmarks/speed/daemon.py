"""The daemon as a process: started, ready, scraped, stopped."""

import contextlib
import http.client
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.speed.measure import MONITOR, SCRATCH, cpu_of, environment, rss_of

_POLLED = """
from megatron_monitor.cli import main
from megatron_monitor.follow.waker import Waker
assert callable(Waker.observe)
Waker.observe = lambda *_: False
main(prog_name="megatron-monitor")
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

    def value(self, series: str) -> float | None:
        """The value of a series by its whole name with labels."""
        found = re.search(rb"^" + re.escape(series.encode()) + rb" (\S+)$", self.get("/metrics")[1], re.MULTILINE)
        return float(found[1]) if found else None

    def until_ready(self, files: int, limit: float = 600.0) -> float:
        """Seconds from the start of the process until it is ready and so many files are read to their ends."""
        series = 'megatron_monitor_sources{state="following"}'
        while time.perf_counter() - self.began < limit:
            with contextlib.suppress(OSError):
                if self.get("/-/ready")[0] == 200 and (self.value(series) or 0) >= files:
                    return time.perf_counter() - self.began
            time.sleep(0.02 if files < 1000 else 0.5)  # to be asked costs the daemon, too
        raise RuntimeError(f"the daemon was not ready after {limit:.0f} s")

    def rate(self, seconds: float) -> tuple[float, float]:
        """(percent of one processor, megabytes resident) over the next seconds."""
        cpu, began = cpu_of(self.process.pid), time.perf_counter()
        time.sleep(seconds)
        return 100 * (cpu_of(self.process.pid) - cpu) / (time.perf_counter() - began), rss_of(self.process.pid)


@contextlib.contextmanager
def daemon(*arguments: str, keep_state: bool = False, polled: bool = False) -> Iterator[Daemon]:
    """`run` with these arguments on a free port; `polled`: no directory is watched, as on a network mount."""
    if not keep_state:
        shutil.rmtree(SCRATCH / "state", ignore_errors=True)
    log = SCRATCH / "daemon.log"
    program = (sys.executable, "-c", _POLLED) if polled else MONITOR
    began = time.perf_counter()
    with log.open("wb") as stream:
        process = subprocess.Popen(
            (*program, "run", "--listen", "127.0.0.1:0", "--set", f"state_dir={SCRATCH / 'state'}", *arguments),
            stdout=stream,
            stderr=stream,
            env=environment(),
        )
    try:
        yield Daemon(process, _address(process, log), began)
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    for _ in range(3000):
        found = re.search(r"listening on http://([^/\s]+)/", log.read_text())
        if found:
            return found[1]
        if process.poll() is not None:
            break
        time.sleep(0.01)
    raise RuntimeError(f"the daemon does not listen: {log.read_text()}")
