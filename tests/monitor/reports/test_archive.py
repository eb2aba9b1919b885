"""Many finished logs: the rows do not depend on the tasks, nor on how many processes read them."""

import json
import os
import pickle
import re
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from megatron_monitor.archive import Row, TaskResult, read_run
from megatron_monitor.commands import report
from tests.commands import command
from tests.lines import line


def log(path: Path, iterations: int, job: int | None = None, seconds: float = 0.25) -> Path:
    """A training's log."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = f"SLURM_JOB_ID={job}\n" if job else ""
    path.write_text(head + "".join(line(number, iterations, seconds) for number in range(1, iterations + 1)))
    return path


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Four runs, one of them with its launcher's log in another directory, and a file without training."""
    folder = tmp_path / "logs"
    for number in range(3):
        log(folder / f"sweep/run{number}.log", 30 + number, seconds=0.2 + number / 10)
    log(folder / "a/trainer.log", 40, job=77)
    (folder / "z").mkdir()
    (folder / "z/launcher.log").write_text("SLURM_JOB_ID=77\ntorch.distributed.elastic: nothing\n" + line(1, 40))
    (folder / "sweep/words.log").write_text("nothing of a training\n" * 9)
    return folder


@pytest.mark.parametrize("form", [["--json"], []])
def test_the_rows_do_not_depend_on_the_tasks(archive: Path, monkeypatch: pytest.MonkeyPatch, form: list[str]) -> None:
    """One task a run or one for all: even a job's streams that lie apart are one run."""
    result = command("report", archive, *form)
    monkeypatch.setattr(report, "tasks_of", lambda found, _config: [tuple(sorted(found))])
    whole = command("report", archive, *form)
    assert result.stdout == whole.stdout
    assert result.stdout.count("trainer") > 0
    assert not re.search(r'(?m)^\| launcher|"run": "launcher', result.stdout)
    assert sorted(result.stderr.splitlines()) == sorted(whole.stderr.splitlines())
    assert "words.log: no training line in 9 lines" in result.stderr


def test_files_of_one_run_or_one_inode_are_read_together(tmp_path: Path) -> None:
    """Wherever they lie."""
    log(tmp_path / "a/main_log.txt", 9)
    (tmp_path / "b").mkdir()
    os.link(tmp_path / "a/main_log.txt", tmp_path / "b/main_log.txt")
    rows = json.loads(command("report", tmp_path, "--json").stdout)["rows"]
    assert [(row["run"], row["iterations"]) for row in rows] == [("a/main_log", 9)]


def test_several_processes_read_what_one_reads(archive: Path) -> None:
    """And in the same order."""
    one, two = (
        subprocess.run(
            [sys.executable, "-m", "megatron_monitor", "report", archive, "--json", "--workers", workers],
            capture_output=True, check=True, text=True,
        ).stdout
        for workers in ("1", "2")
    )  # fmt: skip
    assert len(json.loads(one)["rows"]) == 4
    assert two == one


def test_a_killed_process_ends_the_report(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a hint instead of a traceback."""
    monkeypatch.setattr(report, "read_archive", _killed)
    assert "try --workers 1" in command("report", archive, code=1).stderr


def _killed(*_: object) -> list[TaskResult]:
    raise BrokenProcessPool


def test_one_run_for_a_notebook(archive: Path) -> None:
    """What a notebook imports; its near miss, a folder of four runs."""
    row = read_run([archive / "a/trainer.log"], peak_tflops=312)
    assert isinstance(row, Row)
    assert (row.run, row.iterations) == ("trainer", 40)
    assert pickle.loads(pickle.dumps(row)) == row
    with pytest.raises(ValueError, match=r"4 runs in these files: .*run0"):
        read_run([archive])
