"""`flops` as people call it, and the tables behind it."""

import json
from pathlib import Path
from typing import Any

import pytest

from megatron_monitor.model import flops
from megatron_monitor.model.misprints import wrong_input
from megatron_monitor.model.topology import Topology
from megatron_monitor.reports import columns, formulas
from megatron_monitor.reports.rows import Row
from megatron_monitor.simulate import Scenario
from tests.commands import command, log_of

A181B = (
    "--layers", "72", "--hidden", "14336", "--padded-vocab", "250880", "--seq", "2048", "--gbs", "2048", "--gpus",
    "384", "--tp", "8", "--pp", "12", "--mbs", "1", "--seconds", "143.31",
)  # fmt: skip


def run(*arguments: str, expect: int = 0) -> str:
    """Standard output of a call that must end so."""
    return command("flops", *arguments, code=expect).stdout


def answer(*arguments: str) -> dict[str, Any]:
    """The JSON answer."""
    found: dict[str, Any] = json.loads(run(*arguments, "--json"))
    return found


def test_all_formulas_with_inputs_and_utilisation() -> None:
    """One row of seed 004: its own formula, the others beside it, MFU by PaLM's rule, the bubble."""
    found = answer(*A181B, "--gpu", "NVIDIA A100-SXM4-80GB", "--printed", "112.49", "--iterations", "95367")
    rows = {row["formula"]: row["tflops"] for row in found["formulas"]}
    assert set(rows) == set(flops.FORMULAS)
    assert rows["bigscience"] == pytest.approx(112.494, abs=5e-4)
    assert rows["gpt_neox_2021"] is None
    assert found["printed"]["formula"] == "bigscience"
    assert found["inputs"]["layers"] == 72
    assert found["peak_tflops"] == 312.0
    model = 3 * 2048 * 2048 * (72 * (24 * 14336**2 + 4 * 14336 * 2048) + 2 * 14336 * 250880)
    assert found["mfu"] == pytest.approx(model / (312e12 * 384 * 143.31))
    assert found["micro_batches"] == 512
    assert found["pipeline_bubble"] == pytest.approx(11 / 523)
    assert found["days"] == pytest.approx(95367 * 143.31 / 86400)


def test_the_peak_of_a_gpu_by_its_name() -> None:
    """One rank's share: an MI250X is two ranks. None is guessed: an unknown GPU is a usage error."""
    for name, peak in (("AMD Instinct MI250X", 191.5), ("AMD Instinct MI300X", 1307.4)):
        assert answer(*A181B, "--gpu", name)["peak_tflops"] == peak
    command("flops", *A181B, "--gpu", "TPU v5", code=2)


def test_text_names_what_each_formula_lacks() -> None:
    """The seed's rule needs only a size; the others say what they need."""
    text = run("--size", "104B", "--seq", "2048", "--gbs", "2048", "--gpus", "128", "--seconds", "633")
    assert "43.07" in text
    assert "needs layers, hidden_size, padded_vocab_size" in text


@pytest.mark.parametrize("name", flops.FORMULAS)
def test_needs_are_exactly_what_a_formula_cannot_do_without(name: str) -> None:
    """With its needs alone it gives a figure; without any one of them it does not."""
    values: dict[str, Any] = {
        "layers": 24, "hidden_size": 2048, "padded_vocab_size": 50304, "parameters": 10**9, "log_interval": 1,
        "activation_checkpointing": "full", "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "world_size": 8,
    }  # fmt: skip
    told = {need for need in flops.FORMULAS[name].needs if need in values} | {"world_size"}
    needs = told | ({"parameters"} if name == "seed" else set())
    full = {need: values[need] for need in needs}
    assert flops.FORMULAS[name](Topology(**full), 1.0, 512, 2048) is not None
    assert formulas.lacking(name, Topology(**full)) == ()
    for need in needs:
        topology = Topology(**{other: value for other, value in full.items() if other != need})
        assert flops.FORMULAS[name](topology, 1.0, 512, 2048) is None
        assert need in formulas.lacking(name, topology)


def test_inputs_from_a_log(tmp_path: Path) -> None:
    """What is not given comes from the log: sizes, the median time, the figure that it prints."""
    path = log_of(tmp_path / "a.log", Scenario(iterations=20, noise=0.0))
    found = answer("--log", str(path))
    assert found["inputs"]["layers"] == 70
    assert found["inputs"]["seconds"] == pytest.approx(105.22)
    assert found["printed"] == {
        "tflops": 149.02,
        "formula": "bigscience",
        "causes": [],
        "nearest": found["printed"]["nearest"],
    }
    doubled = answer("--log", str(path), "--gpus", "768", "--seconds", "60")
    assert doubled["inputs"]["data_parallel_size"] == 16
    rows = {row["formula"]: row["tflops"] for row in doubled["formulas"]}
    assert rows["bigscience"] == pytest.approx(149.02 * 105.22 / 60 / 2, rel=1e-4)
    assert "printed" not in doubled


def test_what_utilisation_compute_alone_has(tmp_path: Path) -> None:
    """By the log's timers; only where they tell compute from waiting, and for the log's own time."""
    texts = {}
    for timers in ("range", "passes", ""):
        scenario = Scenario(dialect="megatron-lm", iterations=60, timers=timers, seed=2)
        path = log_of(tmp_path / f"{timers}.log", scenario)
        texts[timers] = answer("--log", str(path), "--gpu", "A100-SXM4-80GB")
    told = texts["range"]
    parts, compute = told["time"]["parts"], told["time"]["parts"]["compute"]
    share = told["time"]["compute_share"]
    assert sum(told["time"]["parts"].values()) == pytest.approx(told["inputs"]["seconds"], rel=0.02)
    assert share == pytest.approx(compute / sum(parts.values()))
    assert 0.5 < share < 1
    assert told["time"]["mfu_of_compute"] == pytest.approx(told["mfu"] * told["inputs"]["seconds"] / compute)
    assert texts["passes"]["time"]["mfu_of_compute"] is None
    assert "time" not in texts[""]
    path = str(tmp_path / "range.log")
    assert "time" not in answer("--log", path, "--seconds", "60")
    text = run("--log", path, "--gpu", "A100-SXM4-80GB")
    assert f"MFU while computing: {told['time']['mfu_of_compute']:.1%}" in text


def test_plan_exit_status_and_reason() -> None:
    """A layout that cannot ramp says why and fails; one that can is listed."""
    ramp = ("plan", "--gbs", "2048", "--rampup", "32", "32", "10000000")
    assert "batch size 32 % (MBS 8 x DP 8 = 64) = 32" in run(*ramp, "--mbs", "8", "--dp", "8", expect=1)
    assert "layers 72 % PP 48 = 24" in run(*ramp, "--pp", "48", "--layers", "72", expect=1)
    found = json.loads(run(*ramp, "--tp", "8", "--pp", "12", "--gpus", "384", "--json"))
    assert found["problems"] == []
    assert found["layouts"][0]["gpus"] == 384


@pytest.mark.parametrize(
    ("iterations", "seconds", "days"),
    [(362000, 1, 4.1898), (362000, 10, 41.8981), (362000, 14.5, 60.7523), (362000, 162.5, 680.8449),
     (362000, 210.0, 879.8611), (95365, 769.99, 849.89)],
)  # fmt: skip
def test_days(iterations: int, seconds: float, days: float) -> None:
    """Seed 003's days, untruncated, and seed 004's."""
    assert formulas.days(iterations, None, seconds, None, None) == pytest.approx(days, abs=6e-3)
    tokens = iterations * 2048 * 2048
    assert formulas.days(None, tokens, seconds, 2048, 2048) == pytest.approx(days, abs=6e-3)


@pytest.mark.parametrize(
    ("tflops", "nodes", "petaflops"),
    [(0.99, 1, 0.00097), (1.10, 1, 0.00107), (0.90, 4, 0.00352), (0.86, 64, 0.05375), (0.59, 1024, 0.59),
     (0.86, 4, 0.00336), (0.84, 64, 0.0525), (0.76, 4, 0.00297)],
)  # fmt: skip
def test_aggregate_petaflops(tflops: float, nodes: int, petaflops: float) -> None:
    """Seed 003's rule: / 1024, a node being the unit there."""
    assert columns.petaflops(Row("cpu", "ok", tflops=tflops, gpus=nodes)) == pytest.approx(petaflops, abs=6e-6)


def test_pipeline_scaling() -> None:
    """K15: seconds at another batch size from the filling of the pipeline; the outlier of seed 004 stands out."""
    assert formulas.scaled_seconds(117.07, 12, 128, 98) == pytest.approx(91.8, abs=0.05)
    assert formulas.scaled_seconds(128.82, 12, 256, 196) == pytest.approx(99.9, abs=0.05)
    assert formulas.scaled_seconds(114.11, 6, 64, 49) == pytest.approx(89.3, abs=0.05)


def test_bubble_and_scaling() -> None:
    """K27's shares at four micro-batches; doubling GPUs for 1.964 times the rate keeps 98.2 %."""
    shares = [round(100 * formulas.bubble(stages, 4)) for stages in (4, 8, 16, 32, 64)]
    assert shares == [43, 64, 79, 89, 94]
    base, twice = Row("a", "ok", samples_per_second=2.424, gpus=80), Row("b", "ok", samples_per_second=4.760, gpus=160)
    assert columns.efficiency(twice, base) == pytest.approx(0.982, abs=5e-4)


def test_causes_are_named_only_where_they_give_the_figure() -> None:
    """Seed 002, E10: twice the formula is a doubled sequence or half the GPUs; a figure of nothing has no cause."""
    topology = Topology(parameters=23_000_000_000, world_size=16, activation_checkpointing="full")
    found = wrong_input(25.66, topology, 58.72, 64, 1024)
    assert "seed: sequence length 2048, not 1024" in found
    assert "seed: 8 GPUs, not 16" in found
    assert wrong_input(15.55, topology, 58.72, 64, 1024) == []
