"""Every formula gives what its program printed; unknown inputs give None; printed numbers find their formula."""

from typing import Any

import pytest
from msgspec.structs import replace

from megatron_monitor.model import flops
from megatron_monitor.model.flops import FORMULAS, computed_tflops, explain_printed, parameters, prints_as
from megatron_monitor.model.topology import Topology

BLOOM = Topology(
    world_size=384, tensor_parallel_size=4, pipeline_parallel_size=12, layers=70, hidden_size=14336,
    attention_heads=112, sequence_length=2048, padded_vocab_size=250880, activation_checkpointing="full",
    format="bigscience",
)  # fmt: skip
QWEN = Topology(
    world_size=16, layers=28, hidden_size=3584, ffn_hidden_size=18944, attention_heads=28, query_groups=4,
    kv_channels=128, padded_vocab_size=152064, glu=True, activation_checkpointing="full", format="microsoft",
)  # fmt: skip
LLAMA_1B = Topology(
    world_size=1, layers=16, hidden_size=2048, ffn_hidden_size=8192, attention_heads=32, query_groups=8,
    kv_channels=64, padded_vocab_size=32896, glu=True, activation_checkpointing="none", format="megatron-lm",
)  # fmt: skip
PYTHIA_70M = Topology(
    world_size=8, layers=6, hidden_size=512, attention_heads=8, padded_vocab_size=50304, parameters=70426624,
    activation_checkpointing="full", format="gpt-neox",
)  # fmt: skip
ALL = (BLOOM, QWEN, LLAMA_1B, PYTHIA_70M)


def value(name: str, topology: Topology, seconds: float, batch: int, sequence: int) -> float:
    """The formula's value where it must have one."""
    found = FORMULAS[name](topology, seconds, batch, sequence)
    assert found is not None
    return found


NOTED = {"activation_checkpointing": "full", "layers": None, "hidden_size": None}
"""A row of BigScience's notes: the size as printed, nothing else of the model."""
SHAPE_2021 = Topology(hidden_size=14400, tensor_parallel_size=8, activation_checkpointing="full")


@pytest.mark.parametrize(
    ("name", "topology", "change", "seconds", "batch", "sequence", "expected", "within"),
    [
        # the one-liners of the notes, from the size as printed
        ("seed", BLOOM, {**NOTED, "parameters": 1_300_000_000, "world_size": 8}, 29, 512, 2048, 47.00513, 6e-5),
        ("seed", BLOOM, {**NOTED, "parameters": 1_300_000_000, "world_size": 8, "activation_checkpointing": "none"},
         23, 512, 2048, 44.45, 5e-3),
        ("seed", BLOOM, {**NOTED, "parameters": 104_000_000_000, "world_size": 128}, 633, 2048, 2048, 43.06947, 6e-5),
        ("seed", BLOOM, {**NOTED, "parameters": 104_000_000_000, "world_size": 256}, 155, 1048, 1024, 22.50157, 6e-5),
        ("seed", BLOOM, {**NOTED, "parameters": 48_000_000_000, "world_size": 64}, 139.52, 512, 1024, 22.54679, 6e-5),
        # PR 251: BLOOM's line of 149.02, the table rows of 2022-02, with and without checkpointing
        ("bigscience", BLOOM, {}, 105.22, 2048, 2048, 149.02, 7e-3),
        ("bigscience", BLOOM, {"layers": 72}, 143.31, 2048, 2048, 112.494, 5e-3),
        ("bigscience", BLOOM, {"layers": 72}, 121.48, 2048, 2048, 132.709, 6e-3),
        ("bigscience", BLOOM, {"layers": 6, "world_size": 8}, 130.43, 512, 2048, 143.48, 7e-3),
        ("bigscience", BLOOM, {"layers": 24, "hidden_size": 2048, "padded_vocab_size": 50688, "world_size": 4,
                               "activation_checkpointing": "none"}, 2533.0, 1024, 1024, 0.8609, 5e-5),
        ("bigscience", BLOOM, {"layers": 24, "hidden_size": 2048, "padded_vocab_size": 50304, "world_size": 1},
         11727.9, 1024, 1024, 0.99128, 5e-5),
        # before PR 251: the log's 108.47 and 97.07 TFLOPs
        ("megatron_deepspeed_2021", SHAPE_2021, {"layers": 8, "pipeline_parallel_size": 1, "world_size": 8},
         769.99, 2048, 2048, 108.472, 5e-4),
        ("megatron_deepspeed_2021", SHAPE_2021, {"layers": 80, "pipeline_parallel_size": 10, "world_size": 160},
         430.21, 2048, 2048, 97.072, 5e-4),
        # Qwen-7B: integer division drops the key and value projections of 7 query groups; 8.08 with them
        ("microsoft", QWEN, {}, 15.166, 16, 2048, 7.971, 6e-4),
        # Pythia 70M's first line: 13.3 by the version with the misplaced bracket, 21.5 by the right one
        ("gpt_neox_bracket", PYTHIA_70M, {}, 2.4771, 512, 2048, 13.3, 0.05),
        ("gpt_neox", PYTHIA_70M, {}, 2.4771, 512, 2048, 21.5, 0.05),
        ("gpt_neox_2021", PYTHIA_70M, {}, 2.4771, 512, 2048, 42.3329, 1e-3),
        ("megatron_lm_2026", LLAMA_1B, {}, 3.2311, 80, 2048, 337.0, 0.05),
        # the calculator divides by the whole log interval: ten times too small for 10
        ("effective_tera_flops", BLOOM, {"parameters": 1_300_000_000, "log_interval": 1, "world_size": 8},
         29, 512, 2048, 47.00513, 5e-5),
        ("effective_tera_flops", BLOOM, {"parameters": 1_300_000_000, "log_interval": 10, "world_size": 8},
         29, 512, 2048, 4.700513, 5e-6),
    ],
)  # fmt: skip
def test_a_formula_gives_what_its_program_printed(
    name: str, topology: Topology, change: dict[str, Any], seconds: float, batch: int, sequence: int, expected: float,
    within: float,
) -> None:  # fmt: skip
    """Each beside a figure that stands in a log or in the notes."""
    assert value(name, replace(topology, **change), seconds, batch, sequence) == pytest.approx(expected, abs=within)


def test_bigscience_glu() -> None:
    """GLU takes 32 for 24."""
    plain, gated = (
        value("bigscience", BLOOM, 100, 2048, 2048),
        value("bigscience", replace(BLOOM, glu=True), 100, 2048, 2048),
    )
    assert gated == pytest.approx(plain * 32 / 24)


def test_microsoft_recomputation() -> None:
    """Full recomputation is a third more, selective only the attention core, none neither."""
    none, selective, full = (
        value("microsoft", replace(QWEN, activation_checkpointing=kind), 15, 16, 2048)
        for kind in ("none", "selective", "full")
    )
    core = 2 * 16 * 28 * 2 * 3584 * 2048**2 / (15 * 16 * 1e12)
    assert full == pytest.approx(none * 4 / 3)
    assert selective - none == pytest.approx(core)


def test_megatron_lm_formulas() -> None:
    """One run of Megatron-LM by its three formulas: only the newest halves the core, only the oldest ignores SwiGLU."""
    new, middle, old = (value(f"megatron_lm_{year}", LLAMA_1B, 3.2311, 80, 2048) for year in (2026, 2024, 2023))
    assert prints_as(new, 337.0)
    core = 80 * 2048**2 * 6 * 2048 * 16 / (3.2311 * 1e12)
    assert middle - new == pytest.approx(core)
    assert old < middle
    plain = replace(LLAMA_1B, glu=False, query_groups=None)
    assert value("megatron_lm_2023", plain, 3, 80, 2048) == pytest.approx(value("megatron_lm_2024", plain, 3, 80, 2048))


def test_megatron_lm_experts_and_extra_predictions() -> None:
    """Top 2 of half-wide experts cost what one MLP costs; one MTP layer costs a layer, its projection and a logit."""
    experts = replace(LLAMA_1B, experts=8, moe_top_k=2, moe_ffn_hidden_size=4096)
    for name in ("megatron_lm_2024", "megatron_lm_2026"):
        assert value(name, experts, 3, 80, 2048) == pytest.approx(value(name, LLAMA_1B, 3, 80, 2048))
        assert FORMULAS[name](replace(experts, moe_top_k=None), 3, 80, 2048) is None
    predicted = value("megatron_lm_2026", replace(LLAMA_1B, mtp_layers=1), 3, 80, 2048)
    deeper = value("megatron_lm_2026", replace(LLAMA_1B, layers=17), 3, 80, 2048)
    extra = 6 * (3 * 2048 + 2 * 2048**2) + 6 * 2048 * 32896
    assert predicted - deeper == pytest.approx(80 * 2048 * extra / 3e12)


@pytest.mark.parametrize("name", FORMULAS)
def test_unknown_inputs_give_none(name: str) -> None:
    """No formula makes up an input: nothing known, no world size or no time passed gives None."""
    assert FORMULAS[name](Topology(), 10.0, 512, 2048) is None
    for topology in ALL:
        assert FORMULAS[name](replace(topology, world_size=None), 10.0, 512, 2048) is None
        assert FORMULAS[name](topology, 0.0, 512, 2048) is None


@pytest.mark.parametrize(
    ("topology", "format_name", "formula", "expected"),
    [
        (BLOOM, "bigscience", None, "bigscience"),
        (BLOOM, "bigscience", "megatron_deepspeed_2021", "megatron_deepspeed_2021"),
        (BLOOM, "bigscience", "gpt_neox_2021", "bigscience"),  # not computable: no told count
        (BLOOM, "bigscience", "no such formula", "bigscience"),
        (BLOOM, None, None, "bigscience"),
        (QWEN, "microsoft", None, "microsoft"),
        (QWEN, "argonne", None, "microsoft"),
        (LLAMA_1B, "megatron-lm", None, "megatron_lm_2026"),
        (LLAMA_1B, "primus", None, "megatron_lm_2026"),
        (PYTHIA_70M, "gpt-neox", None, "gpt_neox"),
        (PYTHIA_70M, "gpt-neox", "gpt_neox_bracket", "gpt_neox_bracket"),
    ],
)
def test_computed_tflops_names_its_formula(
    topology: Topology, format_name: str | None, formula: str | None, expected: str
) -> None:
    """The asked formula where it can be computed, else the newest of the format's program, with its value."""
    found = computed_tflops(topology, 10.0, 512, 2048, format_name, formula)
    assert found == (expected, FORMULAS[expected](topology, 10.0, 512, 2048))


@pytest.mark.parametrize("name", sorted(set(FORMULAS) - {"effective_tera_flops"}))
def test_explain_finds_the_formula_again(name: str) -> None:
    """What any formula gives, printed with two digits, is explained by a formula of the same value."""
    topology = replace(BLOOM, parameters=176_247_271_424, attention_heads=112, query_groups=8, glu=False)
    printed = round(value(name, topology, 105.22, 2048, 2048), 2)
    found = explain_printed(printed, topology, 105.22, 2048, 2048)
    assert found is not None
    assert prints_as(value(found, topology, 105.22, 2048, 2048), printed)


def test_explain_prefers_the_program_of_the_run() -> None:
    """gpt-neox's and BigScience's last formulas are equal: the run's format names the one."""
    printed = round(value("gpt_neox", PYTHIA_70M, 2.4771, 512, 2048), 1)
    assert explain_printed(printed, PYTHIA_70M, 2.4771, 512, 2048) == "gpt_neox"
    assert explain_printed(printed, replace(PYTHIA_70M, format=None), 2.4771, 512, 2048) == "bigscience"
    assert explain_printed(13.3, PYTHIA_70M, 2.4771, 512, 2048) == "gpt_neox_bracket"


@pytest.mark.parametrize(
    ("exact", "printed", "expected"),
    [
        (43.0695, 43.0, True),  # cut off
        (48.77, 48.7, True),
        (48.82, 48.7, False),
        (13.24, 13.3, False),
        (13.251, 13.3, True),
        (149.02, 149.04, True),  # 0.02 %: the seconds are rounded too
        (149.02, 149.06, False),
        (0.0000123, 1.2e-05, True),
    ],
)
def test_prints_as(exact: float, printed: float, expected: bool) -> None:
    """Rounding and cutting off both occur; beyond a unit of the last digit and 0.02 % neither explains."""
    assert prints_as(exact, printed) is expected


def test_model_flops() -> None:
    """BLOOM's MFU is 36.0 %; of Llama they are Megatron-LM's of 2024: same matrices, core not halved."""
    model = flops.model_flops(BLOOM, 2048, 2048)
    assert model is not None
    assert model / (312e12 * 384 * 105.22) == pytest.approx(0.360, abs=5e-4)
    model = flops.model_flops(LLAMA_1B, 80, 2048)
    assert model is not None
    assert model / 3e12 == pytest.approx(value("megatron_lm_2024", LLAMA_1B, 3, 80, 2048))


@pytest.mark.parametrize(
    ("topology", "total", "within"),
    [
        *((replace(BLOOM, layers=layers, hidden_size=hidden), total, 0.06) for layers, hidden, total in
          ((80, 14400, 202.7), (78, 14400, 197.7), (72, 14400, 182.8), (80, 13824, 186.97))),
        # four stages print 7.62 B with an untied head
        (replace(QWEN, sequence_length=2048), 4 * 1.904025088 - 152064 * 3584 / 1e9, 0.08),
    ],
)  # fmt: skip
def test_parameters(topology: Topology, total: float, within: float) -> None:
    """The sizes of BigScience's 200B candidates, and Qwen-7B's with GLU and groups, in billions."""
    counted = parameters(topology)
    assert counted is not None
    assert counted / 1e9 == pytest.approx(total, abs=within)


def test_parameters_unknown() -> None:
    """No count without a vocabulary, with a gated MLP of unknown width, or with experts."""
    known = replace(QWEN, sequence_length=2048)
    assert parameters(replace(known, padded_vocab_size=None)) is None
    assert parameters(replace(known, ffn_hidden_size=None)) is None
    assert parameters(replace(known, attention_heads=None)) is None
    assert parameters(replace(known, experts=8)) is None
    assert parameters(replace(known, experts=1)) == parameters(known)
