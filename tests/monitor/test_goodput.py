"""Goodput: one figure wherever it is shown, and what hangs, crashes and restarts cost while they last."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from megatron_monitor.core import Core
from megatron_monitor.follow.messages import CaughtUp
from megatron_monitor.simulate import Fault, Scenario
from tests.commands import command, log_of
from tests.monitor.core.test_core import NOW, core_for, data, line, opened

PATH = "/l/a.log"
OOM = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


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


def goodput(core: Core, at: float) -> float:
    """As the metrics page and the page of the run show it at that instant."""
    core.tick(at)
    (run,) = core.snapshot(at).runs
    (sample,) = run.samples["megatron_goodput_ratio"]  # type: ignore[misc]
    assert run.page["goodput"] == sample.value
    return float(sample.value)


def watched(iterations: int = 100) -> Core:
    """A run that was watched from its first line on: an iteration each ten seconds."""
    core = core_for()
    for message in (opened(PATH, NOW), CaughtUp(PATH, NOW)):
        core.handle(message, NOW)
    for number in range(1, iterations + 1):
        core.handle(data(PATH, line(number), mtime=NOW + 10 * number), NOW + 10 * number)
        core.tick(NOW + 10 * number)
    return core


def test_a_hang_costs_while_it_lasts() -> None:
    """1000 s of training, then silence: a tenth is left at 10,000 s."""
    core = watched()
    before = goodput(core, NOW + 1000)
    assert before > 0.9
    assert goodput(core, NOW + 10_000) == pytest.approx(before / 10, rel=0.02)


def test_a_crash_costs_until_the_restart() -> None:
    """The gap counts, be it open or over."""
    core = watched()
    before = goodput(core, NOW + 1000)
    core.handle(data(PATH, OOM, mtime=NOW + 1000), NOW + 1000)
    assert goodput(core, NOW + 2000) == pytest.approx(before / 2, rel=0.03)
    for number in range(1, 101):
        core.handle(data(PATH, line(number + 100), mtime=NOW + 2000 + 10 * number), NOW + 2000 + 10 * number)
    assert goodput(core, NOW + 3000) == pytest.approx(2 * before / 3, rel=0.03)
