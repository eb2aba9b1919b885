"""The benchmark tables that people kept by hand, found again: a log is simulated for each row's configuration, with the
figures that the row prints, and `report` reads it.

`seed-rows.csv` holds the numbers of the measured rows of BigScience's notes (a column a figure; E-numbers below are
those of docs/development/benchmark-tables.md). 167 rows reproduce as printed by one of three formulas; nine
only with one input corrected.
"""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from megatron_monitor.model.topology import Topology
from megatron_monitor.simulate import Fault, Scenario
from megatron_monitor.simulate.lines import topology_of
from tests.commands import command, log_of

FILE = Path(__file__).with_name("seed-rows.csv")
with FILE.open(newline="") as stream:
    ROWS = {f"s{row['seed']}-L{row['line']}": row for row in csv.DictReader(stream)}
MIB = 2**20
COARSE = "s002-L75"  # its seconds have too few digits for the formula


def number(text: str) -> float:
    """A cell's number, 0 where the row does not tell."""
    return float(text) if text else 0.0


def scenario_of(row: dict[str, str], **more: Any) -> Scenario:
    """The row's configuration, printed as in the row, wrong cells included."""
    values = {name: int(number(row[name])) for name in ("world", "layers", "hidden", "heads", "vocab", "gbs")}
    tp, pp, mbs = (int(number(row[name])) or 1 for name in ("tp", "pp", "mbs"))
    seconds = number(row["seconds"]) or 100.0
    return Scenario(
        # seconds below 10 are printed with three digits: the fork that prints milliseconds has them
        format="bigscience" if seconds >= 10 else "microsoft",
        iterations=4, noise=0.0, save_interval=1000, seconds_per_iteration=seconds, world_size=values["world"],
        tp=tp, pp=pp, micro_batch_size=mbs, global_batch_size=values["gbs"], layers=values["layers"],
        hidden=values["hidden"], heads=values["heads"], sequence_length=int(row["sequence"]), vocab=values["vocab"],
        **more,
    )  # fmt: skip


def sizes_of(row: dict[str, str]) -> Topology:
    """The sizes that the row's log prints."""
    scenario = scenario_of(row)
    return replace(
        topology_of(scenario),
        data_parallel_size=int(number(row["dp"])) or scenario.dp,
        parameters=round(float(row["parameters_billions"]) * 1e9),
        activation_checkpointing="full" if row["checkpointing"] == "full" else "none",
    )


def as_in(row: dict[str, str], text: str) -> str:
    """The simulated log with the row's figures, also those that contradict each other."""
    sizes, seconds = sizes_of(row), scenario_of(row).seconds_per_iteration
    whole, tflops = 1024 * number(row["memory_gib"]), number(row["tflops"])
    text = re.sub(r"(data_parallel_size \.+|data-parallel-size:) \d+", rf"\1 {sizes.data_parallel_size}", text)
    if sizes.activation_checkpointing == "none":
        text = re.sub(r"(checkpoint_activations \.+) True", r"\1 False", text)
    if whole:
        text = re.sub(r"(\bm?a?x? ?(?:allocated|reserved)): [\d.]+", rf"\1: {whole}", text)
    if tflops:
        text = re.sub(
            r"(per iteration \((m?)s\): ([\d.]+) .*TFLOPs:) [\d.]+",
            lambda at: f"{at[1]} {tflops * seconds / (float(at[3]) / (1000 if at[2] else 1)):.2f}",
            text,
        )
    count = f"PARAMS={sizes.parameters} (1.000M)"
    engine = "[2022-02-21 10:00:00,000] [INFO] [engine.py:151:__init__] RANK=0 STAGE=0 LAYERS=9 [0, 9) "
    engine += f"STAGE_PARAMS=1 (0.000M) TOTAL_{count} UNIQUE_{count}\n"
    return text.replace("building GPT model ...\n", "building GPT model ...\n" + engine)


def rows_with(*verdicts: str) -> list[str]:
    """The names of the rows of these verdicts."""
    return [name for name, row in ROWS.items() if row["verdict"] in verdicts]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The rows of `report --json` by name: one simulated log each."""
    folder = tmp_path_factory.mktemp("seeds")
    faults = {"OOM": "crash_oom", "fail": "crash_python", "hang": "crash_nccl"}
    for name, row in ROWS.items():
        kind = faults.get(row["outcome"]) if row["verdict"] == "unmeasured" else None
        path = folder / f"{name}.log"
        log_of(path, scenario_of(row, faults=(Fault(kind, 1),) if kind else ()))
        path.write_text(as_in(row, path.read_text()))
    found = json.loads(command("report", folder, "--json").stdout)
    return {row["run"]: row for row in found["rows"]}


def test_the_counts_are_those_of_the_seed_check() -> None:
    """167 rows as printed: 64, 63 and 40 by formula; nine corrected; two that no formula gives."""
    exact = [ROWS[name]["formula"] for name in rows_with("exact")]
    counts = {name: exact.count(name) for name in ("seed", "bigscience", "megatron_deepspeed_2021")}
    assert counts == {"seed": 64, "bigscience": 63, "megatron_deepspeed_2021": 40}
    assert (len(rows_with("corrected")), len(rows_with("refused"))) == (9, 2)


@pytest.mark.parametrize("name", [name for name in rows_with("exact") if name != COARSE])
def test_a_row_is_reproduced(table: dict[str, dict[str, Any]], name: str) -> None:
    """Seconds, layout, memory and TFLOPs as the row prints them, and the formula that the seed check names."""
    want, got = ROWS[name], table[name]
    assert got["seconds_per_iteration"] == pytest.approx(float(want["seconds"]), abs=1e-9)
    assert got["tflops_formula"] == want["formula"]
    assert got["tflops"] == pytest.approx(float(want["tflops"]), abs=0.0051)
    assert got["tflops_computed"] == pytest.approx(float(want["tflops"]), rel=0.0067)
    assert got["samples_per_second"] == pytest.approx(float(want["gbs"]) / float(want["seconds"]))
    assert got["gpus"] == int(float(want["world"]))
    assert got["parameters"] == round(float(want["parameters_billions"]) * 1e9)
    if want["memory_gib"]:
        assert got["memory_bytes"] == pytest.approx(float(want["memory_gib"]) * 2**30, abs=MIB)


@pytest.mark.parametrize("name", rows_with("corrected", "refused"))
def test_a_wrong_row_has_no_formula(table: dict[str, dict[str, Any]], name: str) -> None:
    """E3, E5, E6, E10, E16 (half the sequence, twice the GPUs, another batch size), E8 and E9 print it."""
    assert table[name]["tflops"] == pytest.approx(float(ROWS[name]["tflops"]), abs=0.0051)
    assert table[name].get("tflops_formula") is None


def test_outcomes_have_their_words(table: dict[str, dict[str, Any]]) -> None:
    """OOM, hang and failure keep their rows, and say so, without a figure."""
    words = {"OOM": "OOM", "hang": "hang", "fail": "crash"}
    seen = set()
    for name in rows_with("unmeasured"):
        word = words[ROWS[name]["outcome"]]
        assert table[name]["outcome"] == word
        assert "seconds_per_iteration" not in table[name]
        assert re.match(rf"{word} before the first iteration", table[name]["notes"][0])
        seen.add(word)
    assert seen == {"OOM", "hang", "crash"}
