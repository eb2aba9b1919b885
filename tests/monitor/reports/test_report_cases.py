"""A report says what the log says: figures that programs print in their own ways, each in a log of cases.yaml."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.commands import command
from tests.conftest import SHARED
from tests.monitor.playing import given

FOLDER = Path(__file__).parent
CASES = {case["name"]: case for case in yaml.safe_load((FOLDER / "cases.yaml").read_text())}
REAL = yaml.safe_load((FOLDER / "real-logs.yaml").read_text())


def log_of(name: str, path: Path) -> Path:
    """A case's log, written there."""
    path.write_bytes(_text(CASES[name]).encode())
    return path


def _text(case: dict[str, Any]) -> str:
    text: str = case["log"] if "log" in case else _text(CASES[case["of"]])
    for old, new in case.get("replace", ()):
        assert old in text
        text = text.replace(old, new)
    return "".join(line + "\n" for line in text.split("\n")[: case["lines"]]) if "lines" in case else text


def row_of(*paths: Path) -> dict[str, Any]:
    """The only row of `report --json`."""
    (row,) = json.loads(command("report", "--json", *paths).stdout)["rows"]
    return dict(row)


def check(row: dict[str, Any], want: dict[str, Any]) -> None:
    """Columns, figures to a thousandth."""
    for name, value in want.items():
        assert row.get(name) == (pytest.approx(value, rel=1e-3) if isinstance(value, float) else value), name


@pytest.mark.parametrize("name", CASES)
def test_a_report_says_what_the_log_says(tmp_path: Path, name: str) -> None:
    """Columns and notes; no row of what does not train; no incident where nothing happened."""
    case, log = CASES[name], log_of(name, tmp_path / "run.log")
    if "row" not in case and "notes" not in case:
        assert "no training line" in command("report", log, code=1).stderr
        return
    row = row_of(log)
    check(row, case.get("row", {}))
    notes = "; ".join(row.get("notes", ()))
    assert [text for text in case.get("notes", ()) if text not in notes] == []
    page = command("run", "--once", log).stdout if "metrics" in case else ""
    assert [sample for sample in case.get("metrics", ()) if sample not in page] == []
    if case.get("quiet"):
        played = [json.loads(line) for line in command("replay", "--json", log).stdout.splitlines()]
        assert [one for one in played if "summary" not in one] == []


def test_nemos_bar(tmp_path: Path) -> None:
    """Each bar is drawn with the figures of the step before, then with its own; from 1,000 on they lose digits."""
    out = []
    for done in range(1, 1100):
        for reported in (done - 2, done - 1):
            step = f"{reported:.3f}"[:5] if reported < 1000 else f"{reported:.2e}"
            out.append(
                f"Epoch 0: :  {done // 20}%|#   | {done}/2000 [00:49<07:25, v_num=None, reduced_train_loss="
                f"{11 - done / 1e3:.2f}, global_step={step}, consumed_samples={128.0 * (reported + 1):.1f}, "
                "train_step_timing in s=4.680]\r"
            )
    (tmp_path / "run.log").write_text("".join(out) + "\n")
    row = row_of(tmp_path / "run.log")
    assert (row["last_iteration"], row["train_iterations"], row["restarts"], row["iterations"]) == (1099, 2000, 0, 1099)
    assert row["seconds_per_iteration"] == pytest.approx(4.68)


def test_each_experiment_of_a_sweep_has_a_row(tmp_path: Path) -> None:
    """With figures of its own."""
    log = tmp_path / "run.log"
    sweep = given("experiments", "a sweep of three experiments that finish and one that dies at its start")
    log.write_text("".join(text for _, text in sweep))
    os.utime(log, (1.7e9, 1.7e9))
    rows = {row["run"]: row for row in json.loads(command("report", "--json", log).stdout)["rows"]}
    assert {name: (row["outcome"], row["iterations"], row["restarts"]) for name, row in rows.items()} == {
        "run": ("ok", 20, 0), "run:exp1": ("ok", 20, 0), "run:exp2": ("ok", 20, 0), "run:exp3": ("crash", 0, 0),
    }  # fmt: skip
    assert rows["run:exp1"]["seconds_per_iteration"] == pytest.approx(20.0, abs=0.01)


@pytest.mark.real_logs
@pytest.mark.parametrize(("path", "want"), REAL.items(), ids=REAL)
def test_what_is_true_of_real_logs(path: str, want: dict[str, Any]) -> None:
    """Figures that stand in the logs, or follow from what does."""
    if not (SHARED / path).exists():
        pytest.skip("no such log beside the project")
    check(row_of(SHARED / path), want)
