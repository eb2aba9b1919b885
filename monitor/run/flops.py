"""TFLOP/s per GPU by the formulas of the field, each named, none mixed with another.

B batch, s sequence, l layers, h hidden, V padded vocabulary, W GPUs, t seconds per iteration. Formulas with a factor F
count recomputed activations (F = 4 with full checkpointing, else 3): hardware FLOPs. NVIDIA's never count them.
"""

from __future__ import annotations

from collections.abc import Callable

from monitor.run.topology import Topology

Formula = Callable[[Topology, float, int, int], float | None]


def _factor(topology: Topology) -> int:
    return 3 if topology.activation_checkpointing in ("none", "selective") else 4


def bigscience(topology: Topology, seconds: float, batch: int, sequence: int) -> float | None:
    """BigScience PR 251 (ae6277f5): 24 F B s l h^2 (1 + s/6h + V/16lh) / (t W); 32 instead of 24 with GLU."""
    flops = bigscience_flops(topology, batch, sequence, _factor(topology))
    return _rate(flops, topology, seconds)


def bigscience_flops(topology: Topology, batch: int, sequence: int, factor: int) -> float | None:
    """FLOPs of one iteration by PR 251."""
    layers, hidden, vocab = topology.layers, topology.hidden_size, topology.padded_vocab_size
    if not layers or not hidden or not vocab:
        return None
    coefficient = 32 if topology.glu else 24
    shape = 1 + sequence / (6 * hidden) + vocab / (16 * layers * hidden)
    return coefficient * factor * batch * sequence * layers * hidden**2 * shape


def megatron_deepspeed_2021(topology: Topology, seconds: float, batch: int, sequence: int) -> float | None:
    """What BigScience logged before PR 251: non-embedding parameters of the last rank x TP x PP, 2 F P s B / (t W).

    P = TP PP [(l/PP)(12h^2/TP + 7h/TP + 6h) + 4h].
    """
    layers, hidden = topology.layers, topology.hidden_size
    tensor, pipeline = topology.tensor_parallel_size or 1, topology.pipeline_parallel_size or 1
    if not layers or not hidden:
        return None
    per_layer = 12 * hidden**2 / tensor + 7 * hidden / tensor + 6 * hidden
    parameters = tensor * pipeline * (layers / pipeline * per_layer + 4 * hidden)
    return _rate(2 * _factor(topology) * parameters * sequence * batch, topology, seconds)


def microsoft(topology: Topology, seconds: float, batch: int, sequence: int) -> float | None:
    """Microsoft's throughput_calculator as it is, integer division and all: `2 // g` drops the KV projections."""
    return _microsoft(topology, seconds, batch, sequence, lambda groups: 2 // groups)


def microsoft_corrected(topology: Topology, seconds: float, batch: int, sequence: int) -> float | None:
    """The same with 2 / g."""
    return _microsoft(topology, seconds, batch, sequence, lambda groups: 2 / groups)


def _microsoft(
    topology: Topology, seconds: float, batch: int, sequence: int, share: Callable[[int], float]
) -> float | None:
    layers, hidden, vocab, heads = (
        topology.layers, topology.hidden_size, topology.padded_vocab_size, topology.attention_heads,
    )  # fmt: skip
    if not layers or not hidden or not vocab or not heads:
        return None
    groups = heads // (topology.query_groups or heads)
    ffn = topology.ffn_hidden_size or 4 * hidden
    matrices = 3 if topology.glu else 2
    top_k = topology.moe_top_k if topology.experts and topology.experts > 1 and topology.moe_top_k else 1
    attention = batch * layers * (1 + share(groups) + 1) * hidden**2 * sequence
    core = batch * layers * 2 * hidden * sequence**2
    mlp = batch * layers * matrices * ffn * hidden * sequence * top_k
    logits = batch * vocab * hidden * sequence
    forward = attention + core + mlp + logits
    again = forward if topology.activation_checkpointing == "full" else 0.0
    again = core if topology.activation_checkpointing == "selective" else again
    return _rate(2 * (3 * forward + again), topology, seconds)


def megatron_lm_2023(topology: Topology, seconds: float, batch: int, sequence: int) -> float | None:
    """NVIDIA 2023-11: 60 B s l h^2 (1 + G/5n + s/5h + V/10lh); MLP fixed at 4h."""
    layers, hidden, vocab, heads = (
        topology.layers, topology.hidden_size, topology.padded_vocab_size, topology.attention_heads,
    )  # fmt: skip
    if not layers or not hidden or not vocab or not heads:
        return None
    groups = topology.query_groups or heads
    shape = 1 + groups / (5 * heads) + sequence / (5 * hidden) + vocab / (10 * layers * hidden)
    return _rate(60 * batch * sequence * layers * hidden**2 * shape, topology, seconds)


def megatron_lm_2024(topology: Topology, seconds: float, batch: int, sequence: int) -> float | None:
    """NVIDIA 2024: 12 B s l h^2 [(1 + G/n + s/h) q/h + (f/h) topk (1.5 with SwiGLU) + V/2lh], q = kv_channels n."""
    return _rate(megatron_lm_2024_flops(topology, batch, sequence), topology, seconds)


def megatron_lm_2024_flops(topology: Topology, batch: int, sequence: int) -> float | None:
    """FLOPs of one iteration: model FLOPs, nothing recomputed, no causal halving."""
    layers, hidden, vocab, heads = (
        topology.layers, topology.hidden_size, topology.padded_vocab_size, topology.attention_heads,
    )  # fmt: skip
    if not layers or not hidden or not vocab or not heads:
        return None
    groups = topology.query_groups or heads
    query = (topology.kv_channels or hidden // heads) * heads
    ffn = topology.ffn_hidden_size or 4 * hidden
    top_k = topology.moe_top_k if topology.experts and topology.experts > 1 and topology.moe_top_k else 1
    attention = (1 + groups / heads + sequence / hidden) * query / hidden
    mlp = ffn / hidden * top_k * (1.5 if topology.glu else 1.0)
    return 12 * batch * sequence * layers * hidden**2 * (attention + mlp + vocab / (2 * layers * hidden))


def megatron_lm_2026(topology: Topology, seconds: float, batch: int, sequence: int) -> float | None:
    """NVIDIA 2026, dense: causal-halved core, B s [6hfml + 6(h(q+2k)+qh)l + 6hV] + 6 B s^2 q l."""
    layers, hidden, vocab, heads = (
        topology.layers, topology.hidden_size, topology.padded_vocab_size, topology.attention_heads,
    )  # fmt: skip
    if not layers or not hidden or not vocab or not heads or (topology.experts or 0) > 1:
        return None
    channels = topology.kv_channels or hidden // heads
    query, key = channels * heads, channels * (topology.query_groups or heads)
    ffn = topology.ffn_hidden_size or 4 * hidden
    matrices = 3 if topology.glu else 2
    linear = 6 * hidden * ffn * matrices * layers + 6 * (hidden * (query + 2 * key) + query * hidden) * layers
    flops = batch * sequence * (linear + 6 * hidden * vocab) + batch * sequence**2 * 6 * query * layers
    return _rate(flops, topology, seconds)


def gpt_neox_bracket(topology: Topology, seconds: float, batch: int, sequence: int) -> float | None:
    """gpt-neox 2023-09-27 to 2023-12-06: a misplaced bracket loses the vocabulary (5f364017)."""
    layers, hidden = topology.layers, topology.hidden_size
    if not layers or not hidden:
        return None
    flops = 24 * _factor(topology) * batch * sequence * layers * hidden**2 * (1 + sequence / (6 * hidden))
    return _rate(flops, topology, seconds)


def gpt_neox_2023(topology: Topology, seconds: float, batch: int, sequence: int) -> float | None:
    """gpt-neox before 2023-09-27: B s (6P + 60 s h l)."""
    layers, hidden, count = topology.layers, topology.hidden_size, topology.parameters
    if not layers or not hidden or not count:
        return None
    return _rate(batch * sequence * (6 * count + 60 * sequence * hidden * layers), topology, seconds)


FORMULAS: dict[str, Formula] = {
    "bigscience": bigscience,
    "megatron_deepspeed_2021": megatron_deepspeed_2021,
    "microsoft": microsoft,
    "microsoft_corrected": microsoft_corrected,
    "megatron_lm_2026": megatron_lm_2026,
    "megatron_lm_2024": megatron_lm_2024,
    "megatron_lm_2023": megatron_lm_2023,
    "gpt_neox_bracket": gpt_neox_bracket,
    "gpt_neox_2023": gpt_neox_2023,
}
_OF_DIALECT = {
    "bigscience": ("bigscience",),
    "microsoft": ("microsoft",),
    "argonne": ("microsoft",),
    "megatron-lm": ("megatron_lm_2026", "megatron_lm_2024"),
    "primus": ("megatron_lm_2024",),
    "gpt-neox": ("bigscience",),
}


def _rate(flops: float | None, topology: Topology, seconds: float) -> float | None:
    world = topology.world_size
    return flops / (seconds * world * 1e12) if flops is not None and world and seconds > 0 else None


def computed_tflops(
    topology: Topology, seconds: float, batch_size: int | None, sequence_length: int | None, dialect: str | None,
    formula: str | None = None,
) -> tuple[str, float] | None:  # fmt: skip
    """(formula, TFLOP/s per GPU): `formula` if it is given and computable, else the one that the dialect prints."""
    if not batch_size or not sequence_length:
        return None
    names = ((formula,) if formula else ()) + _OF_DIALECT.get(dialect or "", ("bigscience",))
    for name in names:
        value = FORMULAS[name](topology, seconds, batch_size, sequence_length) if name in FORMULAS else None
        if value is not None:
            return name, value
    return None


def explain_printed(
    printed: float, topology: Topology, seconds: float, batch_size: int | None, sequence_length: int | None
) -> str | None:
    """The formula whose value is the printed one, to print precision or 0.02 %; None if there is none."""
    if not batch_size or not sequence_length:
        return None
    digits = len(repr(printed).partition(".")[2])
    tolerance = max(10.0**-digits, 2e-4 * printed)
    for name, formula in FORMULAS.items():
        value = formula(topology, seconds, batch_size, sequence_length)
        if value is not None and abs(value - printed) <= tolerance:
            return name
    return None


def model_flops_per_iteration(topology: Topology, batch: int, sequence: int) -> float | None:
    """Model FLOPs, nothing recomputed: for MFU. The exact shape where heads are known, else PR 251 with F = 3."""
    exact = megatron_lm_2024_flops(topology, batch, sequence)
    return exact if exact is not None else bigscience_flops(topology, batch, sequence, 3)


def hardware_flops_per_iteration(topology: Topology, batch: int, sequence: int) -> float | None:
    """Hardware FLOPs: the forward pass again where activations are recomputed; for HFU."""
    model = model_flops_per_iteration(topology, batch, sequence)
    if model is None:
        return None
    return model * 4 / 3 if topology.activation_checkpointing == "full" else model
