"""Programs are timed from outside, by the operating system's own accounting, and in turns where two are compared.

Wall time is what a person waits. Processor time (user and system, of a program and of the children that it waited for)
stays comparable on a machine that others use too.
"""

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SCRATCH = Path(os.environ.get("BENCH_DIR") or f"{tempfile.gettempdir()}/megatron-monitor-bench")
_SOURCE = str(Path(__file__).parents[2] / "src")
MONITOR = (sys.executable, "-m", "megatron_monitor")


@dataclass(frozen=True)
class Run:
    """One run of a program: wall time and processor time in seconds, peak memory in megabytes."""

    wall: float
    cpu: float
    peak: float


@dataclass(frozen=True)
class Row:
    """One line of the report. A row without a goal has an empty `goal` and no `met`."""

    what: str
    measured: str
    goal: str = ""
    met: bool | None = None


def environment() -> dict[str, str]:
    """That of an installed program: its bytecode is cached (in the scratch folder)."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {
        **inherited,
        "PYTHONPYCACHEPREFIX": str(SCRATCH / "pycache"),
        "XDG_STATE_HOME": str(SCRATCH / "state"),
        "PYTHONPATH": os.pathsep.join([_SOURCE, *filter(None, [inherited.get("PYTHONPATH")])]),
    }


def run(command: Sequence[str], output: Path = Path(os.devnull)) -> Run:
    """Run once. Raises RuntimeError when the program fails.

    The kernel counts the memory of this program at the fork too: the peak of a smaller one cannot be seen.
    """
    with output.open("wb") as stream:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.DEVNULL, env=environment())
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit {process.returncode}")
    return Run(wall, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e6)


def in_turns(commands: Mapping[str, Sequence[str]], times: int) -> dict[str, list[Run]]:
    """Each command `times` in turns, so that a drift of the machine hits all alike; printed is SCRATCH/name.output."""
    results: dict[str, list[Run]] = {name: [] for name in commands}
    for _ in range(times):
        for name, command in commands.items():
            results[name].append(run(command, SCRATCH / f"{name}.output"))
    return results


def middle(runs: Sequence[Run]) -> Run:
    """The median of each figure."""
    return Run(*(statistics.median(getattr(one, name) for one in runs) for name in ("wall", "cpu", "peak")))


def cpu_of(pid: int) -> float:
    """Return the processor time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_of(pid: int) -> float:
    """Megabytes (of 1,000,000 bytes) resident now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def machine() -> str:
    """Return the commit, the date and the machine of the figures."""
    git = ("git", "log", "-1", "--format=%h (%cs)")
    commit = subprocess.run(git, capture_output=True, text=True, check=True, cwd=Path(__file__).parent).stdout.strip()
    rows = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((row.split(":")[1].strip() for row in rows if row.startswith("model name")), platform.machine())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    build = "of the system" if Path(sys.executable).resolve().is_relative_to("/usr/bin") else "another build"
    return (
        f"Commit {commit}. {model}, {os.cpu_count()} processors, {memory:.0f} GiB, Linux {platform.release()}, Python "
        f"{platform.python_version()} ({build}); load {os.getloadavg()[0]:.1f}."
    )


def table(rows: Sequence[Row]) -> str:
    """As Markdown."""
    words = {True: "yes", False: "**no**", None: ""}
    lines = ["| what | measured | goal | met |", "| --- | --- | --- | --- |"]
    return "\n".join(lines + [f"| {row.what} | {row.measured} | {row.goal} | {words[row.met]} |" for row in rows])
