"""`report --ray` on a cluster of two nodes on this machine: the rows of one process, also after a worker was killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lines import line

cluster_utils = pytest.importorskip("ray.cluster_utils", reason="make test-ray installs it")
ROOT = Path(__file__).parents[2]
LOGS, ITERATIONS = 60, 4000


@pytest.fixture
def address() -> Iterator[str]:
    """Of two nodes with a core each."""
    cluster = cluster_utils.Cluster()
    for _ in range(2):
        cluster.add_node(num_cpus=1, include_dashboard=False)
    try:
        yield cluster.address
    finally:
        cluster.shutdown()


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """More than one task."""
    for number in range(LOGS):
        steps = (line(step, ITERATIONS, seconds=0.2 + number / 100) for step in range(1, ITERATIONS + 1))
        (tmp_path / f"run{number:02}.log").write_text("".join(steps))
    return tmp_path


def report(logs: Path, *arguments: str) -> subprocess.Popen[str]:
    """It runs."""
    command = [sys.executable, "-m", "megatron_monitor", "report", str(logs), "--format", "json", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def kill_a_worker(deadline: float) -> bool:
    """The first process of Ray that reads a task."""
    while time.monotonic() < deadline:
        for process in Path("/proc").iterdir():
            try:
                name = (process / "cmdline").read_bytes() if process.name.isdigit() else b""
            except OSError:
                continue
            if name.startswith(b"ray::read_alone"):
                os.kill(int(process.name), signal.SIGKILL)
                return True
        time.sleep(0.05)
    return False


def test_the_same_rows_and_none_lost_with_a_worker(logs: Path, address: str) -> None:
    """Killed in the middle of a task, which Ray gives to another worker."""
    alone = report(logs, "--workers", "1").communicate()[0]
    assert len(json.loads(alone)["rows"]) == LOGS
    by_ray = report(logs, "--ray", address)
    assert kill_a_worker(time.monotonic() + 60)
    assert by_ray.communicate(timeout=120)[0] == alone
    assert by_ray.returncode == 0
