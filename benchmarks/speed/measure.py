"""Programs are timed from outside, by the operating system's own accounting; several are run in turns.

Wall time is what a person waits; processor time is what stays comparable on a machine that others use too.
"""

from __future__ import annotations

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
MONITOR = (sys.executable, "-m", "monitor")


@dataclass(frozen=True)
class Run:
    """One run of a program: seconds, seconds of processor, MiB at its peak."""

    wall: float
    cpu: float
    peak: float


@dataclass(frozen=True)
class Row:
    """One line of the report. `ratio` against the peer or the bar comes first."""

    what: str
    ratio: str
    figure: str
    bar: str
    met: bool | None
    """None where the row has no bar."""


def environment() -> dict[str, str]:
    """That of an installed program: its bytecode is cached (in the scratch folder)."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {
        **inherited,
        "PYTHONPYCACHEPREFIX": str(SCRATCH / "pycache"),
        "XDG_STATE_HOME": str(SCRATCH / "state"),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }


def run(command: Sequence[str]) -> Run:
    """Run once; output is thrown away."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment())
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        raise RuntimeError(f"{' '.join(command)}: exit {process.returncode}")
    return Run(wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def in_turns(commands: Mapping[str, Sequence[str]], times: int) -> dict[str, list[Run]]:
    """Each command once for warmth, then `times` in turns, so that a drift of the machine hits all alike."""
    for command in commands.values():
        run(command)
    results: dict[str, list[Run]] = {name: [] for name in commands}
    for _ in range(times):
        for name, command in commands.items():
            results[name].append(run(command))
    return results


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """`median (least to most)`."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of them lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def pair_ratio(slower: Sequence[Run], faster: Sequence[Run], what: str) -> list[float]:
    """How many times faster, run by run."""
    return [getattr(a, what) / getattr(b, what) for a, b in zip(slower, faster, strict=True)]


def cpu_of(pid: int) -> float:
    """Seconds of processor that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_of(pid: int) -> float:
    """MiB resident now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def machine() -> str:
    """What the figures were measured on."""
    model = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), platform.machine())  # fmt: skip
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    load = os.getloadavg()[0]
    return (
        f"{model}, {os.cpu_count()} processors, {memory:.0f} GiB, Linux {platform.release()}, "
        f"Python {platform.python_version()}; load average {load:.1f} as this began"
    )


def version(command: Sequence[str]) -> str:
    """The first line that a program says of itself."""
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    return (told.stdout + told.stderr).strip().splitlines()[0]


def table(rows: Sequence[Row]) -> str:
    """As Markdown."""
    lines = ["| what | ratio | measured: median (least to most) | bar | met |", "| --- | --- | --- | --- | --- |"]
    words = {True: "yes", False: "**no**", None: ""}
    lines += [f"| {row.what} | {row.ratio} | {row.figure} | {row.bar} | {words[row.met]} |" for row in rows]
    return "\n".join(lines)
