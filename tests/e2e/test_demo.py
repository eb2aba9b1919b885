"""What a newcomer starts first."""

import os
import re
import subprocess
import urllib.request
from pathlib import Path

import pytest

from tests.programs import MONITOR, slack


@pytest.mark.e2e
def test_the_demo_shows_its_run_and_its_hang(tmp_path: Path) -> None:
    """`demo` prints the address; the simulated run appears, hangs half way, and the incident is told."""
    process = subprocess.Popen(
        [*MONITOR, "demo", "--listen", "127.0.0.1:0", "--iterations", "24"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        address = re.search(r"http://(\S+)/", process.stdout.readline())
        assert address is not None
        reported = next(row for row in process.stderr if "hung in training" in row)
        assert "level=warning run=demo-1B3 incident=hang status=firing severity=critical msg=" in reported
        with urllib.request.urlopen(f"http://{address[1]}/", timeout=slack(5)) as answer:
            page = answer.read().decode()
        assert "demo-1B3" in page
        assert "hung" in page
    finally:
        process.kill()
        process.communicate(timeout=slack(5))
