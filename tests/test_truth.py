"""The benchmark that plays strangers' logs: what its naive reading sees, and where it disagrees with the monitor."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.truth import Reading, compare, disagreements, naive
from tests.monitor.run.test_trainer_steps import HEADING, SUMMARY, bars


def steps(last: int, every: int = 10) -> str:
    """Lines of a loop that nobody reads."""
    return "".join(
        f"epoch 0 | step {step} | loss {3000 / (step + 1000):.3f}\n" for step in range(every, last + 1, every)
    )


TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    run()\n'


@pytest.mark.parametrize(
    ("text", "last", "end"),
    [
        (steps(400), 400, "open"),
        (steps(40), None, "open"),
        (steps(400) + "Training completed.\n", 400, "finished"),
        (steps(400) + f"{TRACEBACK}ValueError: no data\n", 400, "error"),
        (steps(400) + f"{TRACEBACK}torch.OutOfMemoryError: CUDA out of memory. Tried to\n", 400, "oom"),
        (steps(400) + "Killed\n", 400, "killed"),
        (f"{TRACEBACK}ValueError: was caught\n" + steps(4000), 4000, "open"),
        ("".join(text for _, text in bars(40, 6.0)) + "^CKeyboardInterrupt\n", 40, "stopped"),
        ("".join(text.replace("\r ", "\rMap: ") for _, text in bars(40, 6.0)), None, "open"),
    ],
)
def test_the_naive_reading(text: str, last: int | None, end: str) -> None:
    """Numbers that grow behind a word for steps, bars without another one's name; what the last lines say."""
    assert naive(text)[:2] == (last, end)


@pytest.mark.parametrize(
    ("ours", "theirs", "differ"),
    [
        (Reading(400, "finished"), Reading(400, "finished"), []),
        (Reading(398, "open"), Reading(400, "open"), []),
        (Reading(200, "open"), Reading(400, "finished"), ["steps", "end untold"]),
        (Reading(None, "open"), Reading(400, "error"), ["no steps", "failure untold"]),
        (Reading(400, "cuda_oom"), Reading(400, "open"), ["failure told"]),
        (Reading(400, "killed"), Reading(400, "oom"), ["cause"]),
        (Reading(400, "finished, then unknown"), Reading(400, "error"), []),
        (Reading(400, "open", ("hang x2",)), Reading(400, "open"), ["told hang x2"]),
    ],
)
def test_where_two_readings_disagree(ours: Reading, theirs: Reading, differ: list[str]) -> None:
    """In steps, in the end, in its cause; whatever was told beside."""
    assert disagreements(ours, theirs) == differ


def test_a_folder_of_logs(tmp_path: Path) -> None:
    """Each log is played; those that are read alike are counted, the others shown."""
    text = HEADING + "".join(text for _, text in bars(40, 6.0))
    (tmp_path / "finished.log").write_text(f"{text}\n{SUMMARY}")
    (tmp_path / "own.log").write_text(steps(400))
    _, ours, theirs = compare(tmp_path / "finished.log")
    assert (ours.steps, ours.end, theirs.steps, theirs.end) == (40, "finished", 40, "finished")
    command = [sys.executable, "-m", "benchmarks.truth", str(tmp_path)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "no steps: own.log\n    monitor None open   naive 400 open" in shown
    assert "finished.log" not in shown
    assert shown.endswith("logs 2, agreed 1, no steps 1\n")
