"""`compare`: what differs between two runs, and how sure the difference is."""

import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from megatron_monitor.archive import read_run
from megatron_monitor.commands.tables import grid
from megatron_monitor.reports import comparison
from megatron_monitor.reports.comparison import difference, student
from megatron_monitor.reports.rows import Row
from megatron_monitor.simulate import Fault, Scenario
from tests.commands import command, log_of


def log(path: Path, **change: Any) -> str:
    """A simulated log."""
    return str(log_of(path, Scenario(**{"iterations": 120, "save_interval": 1000, **change})))


def compare(a: str, b: str, *more: str) -> dict[str, Any]:
    """The JSON answer."""
    result = command("compare", a, b, "--json", *more)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_same_run_twice_is_no_difference(tmp_path: Path) -> None:
    """Same configuration, another seed of the noise: nothing differs but noise."""
    found = compare(log(tmp_path / "a.log", seed=1), log(tmp_path / "b.log", seed=2))
    assert found["same_configuration"] is True
    assert (found["configuration"], found["arguments"], found["environment"]) == ({}, {}, {})
    assert abs(found["pace"]["ratio"]) < 0.01
    assert "no difference" in found["verdict"] or "differ by up to 1.1% anyway" in found["verdict"]


def test_three_percent_are_seen_and_measured(tmp_path: Path) -> None:
    """A slower twin: the truth lies in the interval, and 0 does not."""
    found = compare(
        log(tmp_path / "a.log", seed=1), log(tmp_path / "b.log", seed=2, seconds_per_iteration=105.22 * 1.03)
    )
    assert found["pace"]["sure"] is True
    assert found["pace"]["low"] <= 0.03 <= found["pace"]["high"]
    assert found["pace"]["high"] - found["pace"]["low"] < 0.02
    assert "b is" in found["verdict"]
    assert "slower per iteration" in found["verdict"]


def test_another_version_of_the_program_is_no_list_of_switches() -> None:
    """An option that one version lacks and the other has off is no difference; nor is where a checkpoint lies."""
    one = {"lr": "0.1", "seed": "1", "load": "/a", "fp8": "None", "mtp": "False", "sft": "False"}
    other = {"lr": "0.2", "load": "/b", "sft": "True", "softmax": "none"}
    rows = [Row(run="", outcome="ok", arguments=arguments) for arguments in (one, other)]
    assert comparison.compare(*rows)["arguments"] == {
        "lr": ["0.1", "0.2"], "seed": ["1", None], "sft": ["False", "True"]
    }  # fmt: skip


def test_what_differs_is_named(tmp_path: Path) -> None:
    """Layout, arguments and CUDA_LAUNCH_BLOCKING; the scaling per GPU."""
    a = log(tmp_path / "a.log", launch_blocking=1)
    b = log(tmp_path / "b.log", launch_blocking=0, world_size=192, seconds_per_iteration=205.0)
    found = compare(a, b)
    assert found["same_configuration"] is False
    assert found["configuration"] == {"gpus": [384, 192], "data_parallel_size": [8, 4]}
    assert found["arguments"]["world_size"] == ["384", "192"]
    assert found["environment"] == {"CUDA_LAUNCH_BLOCKING": ["1", "0"]}
    notes = " ".join(found["notes"])
    assert "CUDA_LAUNCH_BLOCKING is 1 and 0" in notes
    assert "per GPU b does 102." in notes


def test_few_iterations_and_none(tmp_path: Path) -> None:
    """No interval is invented: of five iterations nothing is sure, of a crash at the start nothing is known."""
    a = log(tmp_path / "a.log")
    short = compare(a, log(tmp_path / "b.log", iterations=5))
    assert short["pace"] is None
    assert "too few" in short["verdict"]
    dead = compare(a, log(tmp_path / "c.log", faults=(Fault("crash_oom", 1),)))
    assert dead["outcomes"] == ["ok", "OOM"]
    assert dead["verdict"] == "c has no steady iteration: nothing to compare"


def test_text_and_usage(tmp_path: Path) -> None:
    """For people; a path that holds two runs is refused with their names."""
    a, b = log(tmp_path / "a.log"), log(tmp_path / "b.log", micro_batch_size=4)
    lines = command("compare", a, b).stdout.splitlines()
    assert "Different configuration" in lines
    assert ["micro_batch_size", "2", "4"] in [line.split() for line in lines]
    assert all(line == line.rstrip() for line in lines)
    refused = command("compare", tmp_path, b, code=1)
    assert "holds 2 runs: a, b" in refused.stderr


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    """Autocorrelated noise with outliers, 400 pairs without a difference: at most one in ten is called sure."""
    rng = random.Random(7)

    def series() -> list[float]:
        noise, out = 0.0, []
        for _ in range(200):
            noise = 0.5 * noise + rng.gauss(0, 0.004)
            out.append(100 * (1 + noise + (rng.expovariate(12) if rng.random() < 0.01 else 0)))
        return out

    wrong = 0
    for _ in range(400):
        found = difference(series(), series())
        assert found is not None
        wrong += found.sure
    assert wrong <= 40


def test_students_quantile() -> None:
    """Against the table."""
    for freedom, value in ((3, 3.182), (6, 2.447), (10, 2.228), (30, 2.042), (1e9, 1.960)):
        assert student(freedom) == pytest.approx(value, rel=0.01)


def test_the_part_that_takes_the_difference_is_named(tmp_path: Path) -> None:
    """By the timers of both logs: seconds by category, and a note where the difference is sure."""
    same: dict[str, Any] = {"dialect": "megatron-lm", "timers": "range", "seed": 4, "tp": 1, "pp": 1, "world_size": 16}
    found = compare(
        log(tmp_path / "a.log", **same), log(tmp_path / "b.log", **same, faults=(Fault("slow_network", 5),))
    )
    before, now = found["breakdown"]["communication"]
    assert 0.04 < (now - before) / 105.22 < 0.06
    assert found["breakdown"]["compute"][1] == pytest.approx(found["breakdown"]["compute"][0], rel=0.01)
    (note,) = [note for note in found["notes"] if "b takes longer" in note]
    assert "in communication on all ranks" in note


def test_a_level_that_changed_is_said(tmp_path: Path) -> None:
    """A run that became slower on its way and stayed so has no one pace; one that recovered, or never changed, has."""
    slow = log(tmp_path / "slow.log", iterations=230, seed=3, faults=(Fault("slowdown", at=135),))
    well = log(tmp_path / "well.log", iterations=230, seed=4)
    found = compare(slow, well)
    (at, before, now), other = found["levels"]
    assert (abs(at - 135) <= 2, round(now / before, 2), other) == (True, 1.05, None)
    assert found["verdict"].startswith(f"slow changed its level at iteration {at}: +")
    assert "; over all iterations " in found["verdict"]
    back = log(tmp_path / "back.log", iterations=230, faults=(Fault("slowdown_recovered", at=60, length=30),))
    assert compare(back, well)["levels"] == [None, None]
    assert "changed its level" not in compare(back, well)["verdict"]


def test_a_narrow_terminal_wraps_and_cuts_nothing(tmp_path: Path) -> None:
    """The figures' names stand beside them, however long the runs' names are."""
    a, b = (
        log(tmp_path / f"{'a-long-name-' * 4}{name}.log", micro_batch_size=size) for name, size in (("a", 2), ("b", 4))
    )
    found = comparison.compare(*(read_run([path]) for path in (a, b)))
    console = Console(file=io.StringIO(), width=60)
    for _, table in comparison.sections(found):
        console.print(grid(table.headers, table.rows, table.numeric()))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 60
    assert any(line.split() == ["micro_batch_size", "2", "4"] for line in lines)
    assert "…" not in "".join(lines)
