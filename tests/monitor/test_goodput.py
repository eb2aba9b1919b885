"""Goodput: one figure wherever it is shown, of finished logs; the corpus has those of live runs."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from megatron_monitor.simulate import Fault, Scenario
from tests.commands import command, log_of
from tests.monitor.core.test_core import NOW, line


def test_a_finished_log_has_one_goodput(tmp_path: Path) -> None:
    """By the log's own clock: the same in `run --once`, `replay` and `report`; the work that was lost counts once."""
    scenario = Scenario(
        format="megatron-lm", iterations=60, save_interval=20, seconds_per_iteration=10.0, noise=0.0,
        faults=(Fault("crash_and_restart", at=45),),
    )  # fmt: skip
    log = log_of(tmp_path / "a.log", scenario)
    page = command("run", "--once", log).stdout
    shown = next(row for row in page.splitlines() if row.startswith("megatron_goodput_ratio{"))
    (summary,) = [row["summary"] for row in _rows(command("replay", "--json", log).stdout) if row.keys() == {"summary"}]
    (row,) = json.loads(command("report", "--json", log).stdout)["rows"]
    goodput = float(shown.split()[1])
    assert 0.5 < goodput < 0.8  # start-up, two minutes until the restart, saves and four iterations
    assert summary["goodput"] == pytest.approx(goodput, rel=1e-5)
    assert row["goodput"] == pytest.approx(goodput)


def _rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(row) for row in text.splitlines()]


def test_a_log_without_times_has_none(tmp_path: Path) -> None:
    """Nobody knows how much time passed between its iterations."""
    log = tmp_path / "a.log"
    log.write_bytes(b"".join(map(line, range(1, 40))))
    os.utime(log, (NOW, NOW))
    assert "megatron_goodput_ratio{" not in command("run", "--once", log).stdout
    (row,) = json.loads(command("report", "--json", log).stdout)["rows"]
    assert "goodput" not in row
