"""Many finished logs: in whatever tasks they are read, the rows are those of one reading; a second call goes on."""

import json
import os
import pickle
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from click.testing import Result

from megatron_monitor import archive as readers
from megatron_monitor.archive import Reading, Task, read_run, read_tasks
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


def report(*arguments: object, code: int = 0) -> Result:
    """`report` with these arguments."""
    return command("report", *arguments, code=code)


def runs(path: Path) -> dict[str | None, int]:
    """The runs of a file of rows, each once, with their iterations."""
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    assert len({one["run"] for one in lines}) == len(lines)
    return {one["run"]: one.get("iterations", 0) for one in lines}


@pytest.mark.parametrize("size", [1, 25])
@pytest.mark.parametrize("form", ["csv", "html"])
def test_the_rows_do_not_depend_on_the_tasks(
    archive: Path, monkeypatch: pytest.MonkeyPatch, form: str, size: int
) -> None:
    """One task a file or one for all: even a job's streams that lie apart are one run."""
    whole = report(archive, "--format", form)
    monkeypatch.setattr(readers, "_FILES", size)
    result = report(archive, "--format", form)
    assert result.stdout == whole.stdout
    assert result.stdout.count("trainer") > 0
    assert "launcher" not in re.sub(r"trainer[^\n]*", "", result.stdout)
    assert sorted(result.stderr.splitlines()) == sorted(whole.stderr.splitlines())
    assert "words.log: no training line in 9 lines" in result.stderr


def test_several_processes_read_what_one_reads(archive: Path) -> None:
    """And in the same order."""
    one, two = (
        subprocess.run(
            [sys.executable, "-m", "megatron_monitor", "report", archive, "--format", "json", "--workers", workers],
            capture_output=True, check=True, text=True,
        ).stdout
        for workers in ("1", "2")
    )  # fmt: skip
    assert len(json.loads(one)["rows"]) == 4
    assert two == one


def _dies_once(marker: Path, task: Task) -> Reading:
    if "bad" in task.files[0].path:
        os._exit(9)
    if not marker.exists():
        marker.touch()
        os._exit(9)
    return Reading(problems=[task.files[0].path])


def test_a_killed_worker_loses_no_task_and_a_task_that_kills_is_named(tmp_path: Path) -> None:
    """It is read by another worker."""
    found = [Task((readers.Found(name),), ((name, 1, 1),)) for name in ("one", "bad", "two")]
    done = {task.files[0].path: reading for task, reading in read_tasks(found, partial(_dies_once, tmp_path / "x"), 2)}
    assert {name: done[name].problems for name in ("one", "two")} == {"one": ["one"], "two": ["two"]}
    assert done["bad"].problems == ["bad: the process that read it was killed, perhaps for want of memory"]


def test_a_second_call_reads_only_what_has_changed(archive: Path, tmp_path: Path) -> None:
    """A cut line, a file that grew, one that is gone."""
    rows = tmp_path / "rows.jsonl"
    report(archive, "--resume", rows)
    assert runs(rows) == {"sweep/run0": 30, "sweep/run1": 31, "sweep/run2": 32, "a/trainer": 40, None: 0}

    before = rows.read_text()
    again = report(archive, "--resume", rows)
    assert (again.exit_code, again.stderr, rows.read_text()) == (0, "", before)  # words.log was not read again

    log(archive / "sweep/run1.log", 50)
    (archive / "sweep/run2.log").unlink()
    rows.write_text(rows.read_text()[:-20])  # killed while it wrote the last line
    report(archive, "--resume", rows)
    assert runs(rows) == {"sweep/run0": 30, "sweep/run1": 50, "a/trainer": 40, None: 0}


def test_streams_of_one_job_are_one_row_of_the_file_too(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though their tasks ended apart."""
    monkeypatch.setattr(readers, "_FILES", 1)
    rows = tmp_path / "rows.jsonl"
    for _ in range(2):
        report(archive, "--resume", rows)
        assert set(runs(rows)) == {"sweep/run0", "sweep/run1", "sweep/run2", "a/trainer", None}
    (trainer,) = (json.loads(text) for text in rows.read_text().splitlines() if '"a/trainer"' in text)
    assert len(trainer["files"]) == 2


def test_lines_on_standard_output_and_anew_into_a_file(archive: Path, tmp_path: Path) -> None:
    """Without --resume nothing of an old file is kept."""
    shown = report(archive / "sweep", "--format", "jsonl")
    assert {json.loads(text)["run"] for text in shown.stdout.splitlines()} == {"run0", "run1", "run2", None}
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"run": "old", "files": []}\n')
    report(archive / "sweep", "--format", "jsonl", "-o", rows)
    assert "old" not in runs(rows)
    report(tmp_path / "none.log", "--format", "jsonl", code=1)


def test_one_run_for_a_notebook(archive: Path) -> None:
    """What a notebook imports; its near miss, a folder of four runs."""
    row = read_run([archive / "a/trainer.log"])
    assert (row.run, row.iterations) == ("trainer", 40)
    assert pickle.loads(pickle.dumps(row)) == row
    with pytest.raises(ValueError, match=r"4 runs in these files: .*run0"):
        read_run([archive])


def test_ray_is_an_extra(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what to install."""
    monkeypatch.setattr("megatron_monitor.commands.report.find_spec", lambda _name: None)
    result = report(archive, "--ray", "auto", code=2)
    assert "pip install 'megatron-monitor[ray]'" in result.stderr
