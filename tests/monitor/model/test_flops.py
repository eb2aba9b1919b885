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
    dialect="bigscience",
)  # fmt: skip
QWEN = Topology(
    world_size=16, layers=28, hidden_size=3584, ffn_hidden_size=18944, attention_heads=28, query_groups=4,
    kv_channels=128, padded_vocab_size=152064, glu=True, activation_checkpointing="full", dialect="microsoft",
)  # fmt: skip
LLAMA_1B = Topology(
    world_size=1, layers=16, hidden_size=2048, ffn_hidden_size=8192, attention_heads=32, query_groups=8,
    kv_channels=64, padded_vocab_size=32896, glu=True, activation_checkpointing="none", dialect="megatron-lm",
)  # fmt: skip
PYTHIA_70M = Topology(
    world_size=8, layers=6, hidden_size=512, attention_heads=8, padded_vocab_size=50304, parameters=70426624,
    activation_checkpointing="full", dialect="gpt-neox",
)  # fmt: skip
ALL = (BLOOM, QWEN, LLAMA_1B, PYTHIA_70M)


def value(name: str, topology: Topology, seconds: float, batch: int, sequence: int) -> float:
    """The formula's value where it must have one."""
    found = FORMULAS[name](topology, seconds, batch, sequence)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("billions", "factor", "sequence", "batch", "seconds", "world", "expected"),
    [
        (1.3, 4, 2048, 512, 29, 8, 47.00513),
        (1.3, 3, 2048, 512, 23, 8, 44.45),
        (104, 4, 2048, 2048, 633, 128, 43.06947),
        (104, 4, 1024, 1048, 256, 128, 27.24800),
        (104, 4, 1024, 1048, 155, 256, 22.50157),
        (48, 4, 1024, 1024, 127, 64, 49.53902),
        (48, 4, 1024, 768, 122, 64, 38.67698),
        (48, 4, 1024, 512, 139.52, 64, 22.54679),
    ],
)
def test_seed_formula(
    billions: float, factor: int, sequence: int, batch: int, seconds: float, world: int, expected: float
) -> None:
    """The one-liners of BigScience's notes, from the size as printed."""
    checkpointing = "full" if factor == 4 else "none"
    topology = Topology(parameters=round(billions * 1e9), activation_checkpointing=checkpointing, world_size=world)
    assert value("seed", topology, seconds, batch, sequence) == pytest.approx(
        expected, abs=6e-5 if factor == 4 else 5e-3
    )


def test_seed_formula_counts_the_parameters_where_no_size_is_told() -> None:
    """Without a told size the sizes are counted: 1.3 B is 24 x 2048."""
    topology = replace(BLOOM, layers=24, hidden_size=2048, padded_vocab_size=50304, world_size=8)
    counted = parameters(topology)
    assert counted is not None
    told = replace(topology, parameters=counted[0])
    assert value("seed", topology, 29, 512, 2048) == value("seed", told, 29, 512, 2048)


@pytest.mark.parametrize(
    ("change", "seconds", "batch", "sequence", "expected"),
    [
        ({}, 105.22, 2048, 2048, 149.02),
        ({"layers": 72}, 143.31, 2048, 2048, 112.494),
        ({"layers": 72}, 123.69, 2048, 2048, 130.338),
        ({"layers": 72}, 121.48, 2048, 2048, 132.709),
        ({"layers": 6, "world_size": 8}, 130.43, 512, 2048, 143.48),
        (
            {"layers": 24, "hidden_size": 2048, "padded_vocab_size": 50688, "world_size": 4,
             "activation_checkpointing": "none"}, 2533.0, 1024, 1024, 0.8609,
        ),
        (
            {"layers": 24, "hidden_size": 2048, "padded_vocab_size": 50304, "world_size": 1}, 11727.9, 1024, 1024,
            0.99128,
        ),
    ],
)  # fmt: skip
def test_bigscience_formula(change: dict[str, Any], seconds: float, batch: int, sequence: int, expected: float) -> None:
    """PR 251: BLOOM's line of 149.02, the table rows of 2022-02, with and without checkpointing."""
    found = value("bigscience", replace(BLOOM, **change), seconds, batch, sequence)
    assert found == pytest.approx(expected, rel=5e-5)


def test_bigscience_glu() -> None:
    """GLU takes 32 for 24."""
    plain, gated = (
        value("bigscience", BLOOM, 100, 2048, 2048),
        value("bigscience", replace(BLOOM, glu=True), 100, 2048, 2048),
    )
    assert gated == pytest.approx(plain * 32 / 24)


def test_megatron_deepspeed_2021_formula() -> None:
    """Before PR 251: the counts 19.9134 and 199.1336 B behind the log's 108.47 and 97.07 TFLOPs."""
    shape = Topology(hidden_size=14400, tensor_parallel_size=8, activation_checkpointing="full")
    small = replace(shape, layers=8, pipeline_parallel_size=1, world_size=8)
    large = replace(shape, layers=80, pipeline_parallel_size=10, world_size=160)
    assert value("megatron_deepspeed_2021", small, 769.99, 2048, 2048) == pytest.approx(108.472, abs=5e-4)
    assert value("megatron_deepspeed_2021", large, 430.21, 2048, 2048) == pytest.approx(97.072, abs=5e-4)
    counts = [
        value("megatron_deepspeed_2021", topology, 1, 1, 1) * topology.world_size * 1e12 / 8 / 1e9
        for topology in (small, large)
        if topology.world_size
    ]
    assert counts == [pytest.approx(19.9134, abs=5e-5), pytest.approx(199.1336, abs=5e-5)]


def test_microsoft_formula_with_its_fault() -> None:
    """Qwen-7B's 7.97: integer division drops the key and value projections of 7 query groups; 8.08 with them."""
    assert value("microsoft", QWEN, 15.166, 16, 2048) == pytest.approx(7.971, abs=6e-4)


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


def test_gpt_neox_eras() -> None:
    """Pythia 70M's first line: 13.3 by the version with the misplaced bracket, 21.5 by the right one."""
    assert prints_as(value("gpt_neox_bracket", PYTHIA_70M, 2.4771, 512, 2048), 13.3)
    assert prints_as(value("gpt_neox", PYTHIA_70M, 2.4771, 512, 2048), 21.5)
    tokens, each = 512 * 2048, 6 * 70426624 + 60 * 2048 * 512 * 6
    assert value("gpt_neox_2021", PYTHIA_70M, 2.4771, 512, 2048) == pytest.approx(tokens * each / (2.4771 * 8 * 1e12))


def test_effective_tera_flops_divides_by_the_whole_interval() -> None:
    """The disabled flops_calculator is right for a log interval of 1 and ten times too small for 10."""
    topology = Topology(parameters=1_300_000_000, log_interval=1, world_size=8)
    once = value("effective_tera_flops", topology, 29, 512, 2048)
    assert once == pytest.approx(47.00513, abs=5e-5)
    assert value("effective_tera_flops", replace(topology, log_interval=10), 29, 512, 2048) == pytest.approx(once / 10)


@pytest.mark.parametrize("name", FORMULAS)
def test_unknown_inputs_give_none(name: str) -> None:
    """No formula makes up an input: nothing known, no world size or no time passed gives None."""
    assert FORMULAS[name](Topology(), 10.0, 512, 2048) is None
    for topology in ALL:
        assert FORMULAS[name](replace(topology, world_size=None), 10.0, 512, 2048) is None
        assert FORMULAS[name](topology, 0.0, 512, 2048) is None


@pytest.mark.parametrize(
    ("topology", "dialect", "formula", "expected"),
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
    topology: Topology, dialect: str | None, formula: str | None, expected: str
) -> None:
    """The asked formula where it can be computed, else the newest of the dialect's program, with its value."""
    found = computed_tflops(topology, 10.0, 512, 2048, dialect, formula)
    assert found == (expected, FORMULAS[expected](topology, 10.0, 512, 2048))


def test_computed_tflops_needs_batch_and_sequence() -> None:
    """Without a batch size, a sequence length or the model's sizes there is nothing to compute."""
    assert computed_tflops(BLOOM, 105.22, None, 2048, "bigscience") is None
    assert computed_tflops(BLOOM, 105.22, 2048, None, "bigscience") is None
    assert computed_tflops(Topology(world_size=8), 105.22, 2048, 2048, "bigscience") is None


@pytest.mark.parametrize("name", sorted(set(FORMULAS) - {"effective_tera_flops"}))
def test_explain_finds_the_formula_again(name: str) -> None:
    """What any formula gives, printed with two digits, is explained by a formula of the same value."""
    topology = replace(BLOOM, parameters=176_247_271_424, attention_heads=112, query_groups=8, glu=False)
    printed = round(value(name, topology, 105.22, 2048, 2048), 2)
    found = explain_printed(printed, topology, 105.22, 2048, 2048)
    assert found is not None
    assert prints_as(value(found, topology, 105.22, 2048, 2048), printed)


def test_explain_prefers_the_program_of_the_run() -> None:
    """gpt-neox's and BigScience's last formulas are equal: the run's dialect names the one."""
    printed = round(value("gpt_neox", PYTHIA_70M, 2.4771, 512, 2048), 1)
    assert explain_printed(printed, PYTHIA_70M, 2.4771, 512, 2048) == "gpt_neox"
    assert explain_printed(printed, replace(PYTHIA_70M, dialect=None), 2.4771, 512, 2048) == "bigscience"
    assert explain_printed(13.3, PYTHIA_70M, 2.4771, 512, 2048) == "gpt_neox_bracket"


def test_explain_knows_when_nothing_fits() -> None:
    """A number that no formula gives, or that is no number, has no explanation."""
    assert explain_printed(149.02, BLOOM, 105.22, 2048, 2048) == "bigscience"
    for printed in (140.0, 0.0, -1.0, float("nan"), float("inf")):
        assert explain_printed(printed, BLOOM, 105.22, 2048, 2048) is None
    assert explain_printed(149.02, BLOOM, 105.22, None, 2048) is None
    assert explain_printed(149.02, BLOOM, 0.0, 2048, 2048) is None


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


def test_model_and_hardware_flops_of_bloom() -> None:
    """BLOOM's HFU is the log's 149.02 of 312; its MFU, with a quarter less but for the logits, is 36.0 %."""
    model = flops.per_iteration(BLOOM, 2048, 2048)[0]
    hardware = flops.per_iteration(BLOOM, 2048, 2048)[1]
    assert model is not None
    assert hardware is not None
    available = 312e12 * 384 * 105.22
    assert hardware / available == pytest.approx(149.02 / 312, rel=5e-5)
    assert model / available == pytest.approx(0.360, abs=5e-4)
    logits = 6 * 14336 * 250880 * 2048 * 2048
    assert (hardware - logits) == pytest.approx((model - logits) * 4 / 3)


def test_hardware_flops_of_a_narrow_mlp() -> None:
    """The mis-set runs of the 104B tuning (f = 20480, h = 16384): the true values 30.0, 24.8, 26.2 and 25.5."""
    topology = Topology(
        layers=32, hidden_size=16384, ffn_hidden_size=20480, padded_vocab_size=50688, activation_checkpointing="full"
    )
    rows = [(1024, 256, 128), (1024, 155, 256), (2048, 586, 128), (2048, 301, 256)]
    found = [
        hardware / (seconds * world * 1e12)
        for batch, seconds, world in rows
        if (hardware := flops.per_iteration(topology, batch, 2048)[1])
    ]
    assert found == pytest.approx([30.0, 24.8, 26.2, 25.5], abs=0.06)


def test_hardware_flops_by_checkpointing() -> None:
    """None is the model's, selective adds the core once, and unknown is unknown while the model's stay known."""
    model = flops.per_iteration(LLAMA_1B, 80, 2048)[0]
    kinds = {
        kind: flops.per_iteration(replace(LLAMA_1B, activation_checkpointing=kind), 80, 2048)[1]
        for kind in ("none", "selective", None)
    }
    assert model is not None
    core = 80 * 2048 * 16 * 4 * 2048 * 2048
    assert kinds == {"none": model, "selective": model + core, None: None}
    assert flops.per_iteration(replace(LLAMA_1B, activation_checkpointing=None), 80, 2048)[0] == model


def test_model_flops_follow_megatron_lm() -> None:
    """Model FLOPs are Megatron-LM's of 2024: same matrices, core not halved."""
    model = flops.per_iteration(LLAMA_1B, 80, 2048)[0]
    assert model is not None
    assert model / 3e12 == pytest.approx(value("megatron_lm_2024", LLAMA_1B, 3, 80, 2048))


@pytest.mark.parametrize(
    ("layers", "hidden", "total", "outside"),
    [(80, 14400, 202.7, 199.1), (78, 14400, 197.7, 194.1), (72, 14400, 182.8, 179.2), (80, 13824, 186.97, 183.473)],
)
def test_parameters(layers: int, hidden: int, total: float, outside: float) -> None:
    """The sizes of BigScience's 200B candidates, with and without the embedding."""
    counted = parameters(Topology(layers=layers, hidden_size=hidden, padded_vocab_size=250880, sequence_length=2048))
    assert counted is not None
    assert [count / 1e9 for count in counted] == pytest.approx([total, outside], abs=0.06)


def test_parameters_of_a_narrow_mlp() -> None:
    """32 x 16384 with f = 20480 is 56.7 B, not 104 B."""
    narrow = Topology(
        layers=32, hidden_size=16384, ffn_hidden_size=20480, padded_vocab_size=50688, sequence_length=2048
    )
    for width, billions in ((20480, 56.7), (65536, 103.9)):
        counted = parameters(replace(narrow, ffn_hidden_size=width))
        assert counted is not None
        assert counted[0] / 1e9 == pytest.approx(billions, abs=0.06)


def test_parameters_with_glu_and_groups() -> None:
    """Qwen-7B's shape: within 1 % of the 7.62 B that four stages print (no biases but three, an untied head)."""
    counted = parameters(replace(QWEN, sequence_length=2048))
    assert counted is not None
    assert counted[1] + 2 * 152064 * 3584 == pytest.approx(4 * 1904025088, rel=0.01)


def test_parameters_unknown() -> None:
    """No count without a vocabulary, with a gated MLP of unknown width, or with experts."""
    known = replace(QWEN, sequence_length=2048)
    assert parameters(replace(known, padded_vocab_size=None)) is None
    assert parameters(replace(known, ffn_hidden_size=None)) is None
    assert parameters(replace(known, attention_heads=None)) is None
    assert parameters(replace(known, experts=8)) is None
    assert parameters(replace(known, experts=1)) == parameters(known)
