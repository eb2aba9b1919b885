"""The page in a real browser."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import Start
from tests.e2e.test_daemon import line


@pytest.mark.e2e
@pytest.mark.chromium
def test_the_page_shows_a_hung_run(start: Start, tmp_path: Path) -> None:
    """Headless Chromium loads the page: the run, its state in words, the incident with its evidence."""
    log = tmp_path / "train.log"
    log.write_text("".join(line(number) for number in range(1, 9)))
    daemon = start("--set", "detectors.hang.minimum=1s", str(log))
    daemon.wait(lambda: "hung" in daemon.get("/api/v1/runs"))
    chromium = shutil.which("chromium")
    assert chromium is not None
    done = subprocess.run(
        [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", f"http://{daemon.address}/"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "hung" in done.stdout
    assert "no progress for" in done.stdout
    assert "iteration        8/" in done.stdout
