"""The whole /metrics page of one simulated run, line by line, and what promtool says of it.

`make golden` writes the page anew; review the difference.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from megatron_monitor.commands.arguments import ConfigOptions
from megatron_monitor.once import metrics_page
from megatron_monitor.simulate import Fault, Scenario, write
from tests.programs import slack

GOLDEN = Path(__file__).parent / "golden" / "metrics.txt"
SCENARIO = Scenario(
    format="megatron-lm", iterations=60, seconds_per_iteration=2.0, seed=7, world_size=16, tp=2, pp=2, layers=24,
    hidden=2048, heads=16, global_batch_size=64, vocab=50304, save_interval=20, save_seconds=5.0, eval_interval=25,
    eval_seconds=4.0, launch_blocking=1, fp16=True, faults=(Fault("crash_and_restart", at=45),),
)  # fmt: skip


@pytest.fixture
def page(tmp_path: Path) -> str:
    """The page for the scenario, without what differs from machine to machine."""
    log = tmp_path / "golden.log"
    with log.open("wb") as stream:
        write(SCENARIO, stream)
    os.utime(log, (1_700_000_000, 1_700_000_000))
    text, problems, _ = metrics_page(ConfigOptions().configured([str(log)]))
    assert problems == []
    return "".join(row for row in text.splitlines(keepends=True) if "build_info{" not in row)


def test_the_page_is_the_golden_one(page: str, request: pytest.FixtureRequest) -> None:
    """Every series and value, HELP and TYPE."""
    if request.config.getoption("--golden"):
        GOLDEN.write_text(page)
    assert page == GOLDEN.read_text()


def test_the_page_means_what_happened(page: str) -> None:
    """One crash at 45, back to the checkpoint of 40, to the end."""
    for row in (
        'megatron_iteration{run="golden"} 60.0',
        'megatron_restarts_total{run="golden"} 1.0',
        'megatron_lost_iterations_total{run="golden"} 4.0',
        'megatron_iterations_total{run="golden"} 64.0',
        'megatron_failures_total{cause="ecc",run="golden"} 1.0',
        'megatron_run_state{run="golden",state="finished"} 1.0',
        'megatron_last_checkpoint_iteration{run="golden"} 60.0',
    ):
        assert row in page


@pytest.mark.promtool
def test_promtool_finds_nothing(page: str) -> None:
    """Prometheus's own linter has no word to say."""
    promtool = shutil.which("promtool")
    assert promtool is not None
    done = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, text=True, timeout=slack(30))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
