"""`report`: medians over steady iterations, memory of the stages, outcomes, baselines, every format."""

import functools
import json
import os
import re
import shlex
import statistics
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from megatron_monitor.simulate import Fault, Scenario, timeline
from tests.commands import command, log_of
from tests.conftest import REAL_LOGS

_OLD = 1_700_000_000  # when the file was last written


def log(path: Path, **change: Any) -> Scenario:
    """A simulated log at the path."""
    scenario = Scenario(**{"iterations": 120, "save_interval": 1000, **change})
    path.parent.mkdir(parents=True, exist_ok=True)
    log_of(path, scenario)
    return scenario


def invoke(*arguments: str, code: int = 0) -> Result:
    """Run the command."""
    return command("report", *arguments, code=code)


def rows(*arguments: str) -> dict[str, dict[str, Any]]:
    """The JSON rows by run."""
    result = invoke(*arguments, "--json")
    return {row["run"]: row for row in json.loads(result.stdout)["rows"]}


def test_the_median_is_that_of_steady_iterations(tmp_path: Path) -> None:
    """Saves and evaluations are in the lines' times (this format), the first iteration is half as slow again."""
    scenario = log(tmp_path / "a.log", iterations=200, save_interval=10, eval_interval=7, eval_seconds=60.0)
    truth = [e.truth for e in timeline(scenario) if e.truth and "loss" in e.truth]
    pure = statistics.median(step["pure_seconds"] for step in truth[1:])
    printed = statistics.mean(step["elapsed"] for step in truth)
    row = rows(str(tmp_path))["a"]
    assert row["seconds_per_iteration"] == pytest.approx(pure, rel=0.001)
    assert printed > 1.05 * pure
    assert row["samples_per_second"] == pytest.approx(2048 / row["seconds_per_iteration"])
    assert row["tflops"] == pytest.approx(149.02 * 105.22 / row["seconds_per_iteration"], rel=0.002)


def test_the_ramp_up_is_left_out(tmp_path: Path) -> None:
    """Only iterations at the planned batch size count; a run that never reached it says so."""
    slower = {"batch size:  2048": "batch size:   512", "(s): 105.22": "(s): 35.30", "(s): 157.83": "(s): 52.95"}
    for name, iterations, last in (("done", 200, 40), ("cut", 60, 60)):
        text = ""
        for one in timeline(Scenario(iterations=iterations, save_interval=1000, noise=0.0)):
            in_ramp = one.truth and one.truth["iteration"] <= last
            text += functools.reduce(
                lambda line, pair: line.replace(*pair), slower.items() if in_ramp else (), one.text
            )
        ramp = f"rampup_batch_size ............................... {['512', '512', '40000']}"
        (tmp_path / f"{name}.log").write_text(re.sub("rampup_batch_size .* None", ramp, text))
    found = rows(str(tmp_path))
    assert (found["done"]["global_batch_size"], found["done"]["seconds_per_iteration"]) == (2048, 105.22)
    assert found["done"]["steady_iterations"] == 160
    assert found["cut"]["global_batch_size"] == 512
    assert "measured in the ramp-up at GBS 512 of 2048" in found["cut"]["notes"]


@pytest.mark.parametrize(
    ("kind", "word", "note"),
    [
        ("crash_oom", "OOM", "OOM at iteration 59 of 120"),
        ("crash_nccl", "hang", "hang at iteration 59 of 120: NCCL watchdog: ALLREDUCE timed out after 600 s, 16 ranks"),
        ("crash_ecc", "ECC error", "ECC error at iteration 59 of 120"),
        ("crash_python", "crash", "crash at iteration 59 of 120: ValueError: bad batch"),
        ("crash_killed", "killed", "killed at iteration 59 of 120"),
        ("time_limit", "time limit", "time limit at iteration 59 of 120"),
        ("preempted", "preempted", "preempted at iteration 59 of 120"),
        ("node_failure", "node failure", "node failure at iteration 59 of 120"),
        ("crash_and_restart", "ok", "1 restart"),
    ],
)
def test_outcomes(tmp_path: Path, kind: str, word: str, note: str) -> None:
    """The words that people put into such a table."""
    log(tmp_path / "a.log", format="megatron-lm", save_interval=50, faults=(Fault(kind, 60),))
    row = rows(str(tmp_path))["a"]
    assert row["outcome"] == word
    assert row["notes"][0].startswith(note)


def test_a_time_limit_after_long_silence_was_a_hang(tmp_path: Path) -> None:
    """The log's own clock shows it: an hour without a line before Slurm ended the job."""
    log(tmp_path / "a.log", format="megatron-lm", iterations=60)
    text = (tmp_path / "a.log").read_text()
    lines = [
        line for line in text.splitlines(keepends=True) if "exiting" not in line and "training is done" not in line
    ]
    end = "slurmstepd: error: *** JOB 1718955 ON nid006149 CANCELLED AT 2026-01-01T04:00:00 DUE TO TIME LIMIT ***\n"
    (tmp_path / "a.log").write_text("".join(lines[:-1]) + end)
    os.utime(tmp_path / "a.log", (_OLD, _OLD))
    row = rows(str(tmp_path))["a"]
    assert row["outcome"] == "hang"
    assert row["notes"][0] == "hang at iteration 59 of 60, ended by time limit"


def test_a_log_that_just_ends_is_incomplete(tmp_path: Path) -> None:
    """Nobody knows why: said so, once the log is old."""
    log(tmp_path / "a.log", faults=(Fault("hang_saving", 50),), save_interval=60)
    os.utime(tmp_path / "a.log", (_OLD, _OLD))
    row = rows(str(tmp_path))["a"]
    assert row["outcome"] == "incomplete"
    assert row["notes"][0] == "the log ends at iteration 60 of 120 while saving and does not say why"


def test_fastest_first_and_unmeasured_last(tmp_path: Path) -> None:
    """By seconds."""
    log(tmp_path / "slow.log", seconds_per_iteration=120.0)
    log(tmp_path / "fast.log", seconds_per_iteration=90.0, micro_batch_size=4)
    log(tmp_path / "dead.log", faults=(Fault("crash_oom", 1),))
    assert list(rows(str(tmp_path))) == ["fast", "slow", "dead"]


def test_columns_are_the_public_ones(tmp_path: Path) -> None:
    """The interface's columns, in its order; Markdown survives a pipe in a name."""
    log(tmp_path / "a|b.log", noise=0.0)
    text = invoke(str(tmp_path)).stdout
    head = [cell.strip() for cell in text.splitlines()[0].strip("|").split("|")]
    assert head == ["Run", "Nodes", "GPUs", "Size", "DP", "TP", "PP", "MBS", "GBS", "Mem", "Sec/it", "TFLOPs",
                    "Samples/s", "Iterations", "Notes"]  # fmt: skip
    row = re.split(r"(?<!\\)\|", text.splitlines()[2])[1:-1]
    assert [cell.strip() for cell in row][:3] == [r"a\|b", "", "384"]
    assert [cell.strip() for cell in row][10:14] == ["105.22", "149.02", "19.464", "120"]


def test_nothing_to_report(tmp_path: Path) -> None:
    """A file without a training is said and fails."""
    (tmp_path / "noise.log").write_text("hello\n")
    result = invoke(str(tmp_path), code=1)
    assert "no training line" in result.stderr


def test_a_trainer_that_prints_its_summary_alone(tmp_path: Path) -> None:
    """Seed 002: time per iteration is the batch over the samples per second; the row says where it is from."""
    (tmp_path / "hf.log").write_text(
        "***** Running training *****\n  Num examples = 1000\n  Instantaneous batch size per device = 8\n"
        "  Total train batch size (w. parallel, distributed & accumulation) = 512\n  Total optimization steps = 2\n"
        "{'train_runtime': 273.0, 'train_samples_per_second': 3.67, 'train_steps_per_second': 0.007, 'epoch': 1.0}\n"
    )
    row = rows(str(tmp_path))["hf"]
    assert row["seconds_per_iteration"] == pytest.approx(139.51, abs=0.005)
    assert row["notes"] == ["no iteration was logged", "from the Trainer's summary of 3.67 samples per second"]


@pytest.mark.parametrize(("trained", "size"), [("7,241,732,096", 7_241_732_096), ("41,943,040", None)])
def test_what_is_trained_is_the_model_where_it_is_no_adapter(tmp_path: Path, trained: str, size: int | None) -> None:
    """HF Trainer counts what it trains; the layers of the model's configuration tell a model from an adapter (LoRA)."""
    (tmp_path / "hf.log").write_text(
        "[INFO|configuration_utils.py:553] 2024-06-02 02:15:38,976 >> Model config MistralConfig {\n"
        '  "hidden_size": 4096,\n  "num_hidden_layers": 32\n}\n'
        "***** Running training *****\n  Num examples = 1000\n  Instantaneous batch size per device = 8\n"
        "  Total train batch size (w. parallel, distributed & accumulation) = 512\n  Total optimization steps = 2\n"
        f"  Number of trainable parameters = {trained}\n"
        "{'train_runtime': 273.0, 'train_samples_per_second': 3.67, 'train_steps_per_second': 0.007, 'epoch': 1.0}\n"
    )
    assert rows(str(tmp_path))["hf"].get("parameters") == size


def test_the_commands_of_docs_report_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ends well and says something, or writes its file; the columns that the page explains are there."""
    page = (Path(__file__).parents[3] / "docs" / "reports.md").read_text()
    monkeypatch.chdir(tmp_path)
    lines = [line for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    assert len(lines) > 5
    for line in lines:
        _, *arguments = shlex.split(line)
        result = command(*arguments[: arguments.index(">") if ">" in arguments else None])
        assert Path(arguments[-1]).exists() if "-o" in arguments else result.stdout
    text = invoke(".").stdout
    heads = text.splitlines()[0].strip("| ").split("|")
    named = {name for cell in re.findall(r"^\| ([A-Z][^|]*?) \|", page, re.MULTILINE) for name in cell.split(", ")}
    assert {"Sec/it", "Notes"} <= named <= {head.strip() for head in heads}


@pytest.mark.real_logs
@pytest.mark.parametrize(
    ("run", "seconds", "within"),
    [
        ("meg_gpt2_base_n4_dp1_tp4_pp4-1809579", 1.381, 0.0005),
        ("meg_gpt2_base_n8_dp1_tp4_pp8-1809562", 1.618, 0.0015),
    ],
)
def test_real_logs_give_the_tables_own_figures(run: str, seconds: float, within: float) -> None:
    """Seed 002 L59 and L60 were read from these very logs: 1.381 s and 1.618 s (a mean there, a median here)."""
    row = rows(f"{REAL_LOGS}/bigscience/{run}.out")[run]
    assert row["seconds_per_iteration"] == pytest.approx(seconds, abs=within)
    assert (row["tensor_parallel_size"], row["micro_batch_size"], row["global_batch_size"]) == (4, 1, 4)
