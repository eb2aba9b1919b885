"""TFLOP/s per GPU by the formulas of the field, each under its name, none mixed with another.

In: a run's `Topology`, seconds per iteration, samples per iteration, tokens per sample. Out: TFLOP/s per GPU, or FLOPs.
Law: every formula is what its program computes, faults included, so that a printed number can be found again; an input
that is not known gives None. A flag that the arguments do not have (GLU, grouped queries) is off: the program lacks it.

B batch, s sequence, l layers, h hidden, V padded vocabulary, f width of the MLP, n heads, G query groups, q and k
widths of the query and key projections, W ranks, t seconds, F passes: 3 (forward, two backward), 4 with recomputation.
NVIDIA's and gpt-neox's first formula count model FLOPs, the others hardware FLOPs: never compare one with the other.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

from monitor.model.sizes import Sizes, expert_width, sizes_of
from monitor.model.sizes import parameters as parameters
from monitor.model.topology import Topology
from parsers.dialects import dialect_of

Formula = Callable[[Topology, float, int, int], float | None]
_PRINTED_SINCE = 1_640_995_200.0  # 2022: programs of 2021 printed no TFLOPs, people worked them out by the notes' rule


def passes(topology: Topology) -> int | None:
    """F. Selective recomputation is not in it: those programs know all or nothing."""
    kind = topology.activation_checkpointing
    return None if kind is None else 4 if kind == "full" else 3


def rate(flops: float | None, topology: Topology, seconds: float) -> float | None:
    """FLOPs of one iteration as TFLOP/s per GPU."""
    world = topology.world_size
    return flops / (seconds * world * 1e12) if flops is not None and world and seconds > 0 else None


def seed(topology: Topology, seconds: float, batch: int, sequence: int) -> float | None:
    """BigScience's notes of 2021: 2 F P s B / (t W), P the size as people call it, else as told, else worked out."""
    factor, counted = passes(topology), parameters(topology)
    count = topology.nominal_parameters or topology.parameters or (counted[0] if counted else None)
    if not factor or not count:
        return None
    return rate(2 * factor * count * sequence * batch, topology, seconds)


def megatron_deepspeed_2021(topology: Topology, seconds: float, batch: int, sequence: int) -> float | None:
    """BigScience's log before PR 251: 2 F P s B / (t W), P the last rank's parameters outside the embedding x TP x PP.

    Biases and norms that are not sharded count TP times: P = TP PP [(l/PP)((12h^2 + 7h)/TP + 6h) + 4h] where f = 4h.
    """
    sizes, factor = sizes_of(topology), passes(topology)
    tensor, pipeline = topology.tensor_parallel_size, topology.pipeline_parallel_size
    if sizes is None or not factor or not tensor or not pipeline:
        return None
    hidden = sizes.hidden
    sharded = 4 * hidden**2 + sizes.matrices * hidden * sizes.ffn + 3 * hidden + (sizes.matrices - 1) * sizes.ffn
    count = sizes.layers * (sharded + 6 * hidden * tensor) + 4 * hidden * tensor * pipeline
    return rate(2 * factor * count * sequence * batch, topology, seconds)


def effective_tera_flops(topology: Topology, seconds: float, batch: int, sequence: int) -> float | None:
    """Megatron-DeepSpeed's flops_calculator (`Effective Tera Flops per GPU`): 8 P s B / (t W), checkpointing or not.

    It divides by the time of the whole log interval, so it is that much too small where the interval is above 1.
    """
    count, interval = topology.parameters, topology.log_interval
    if not count or not interval:
        return None
    return rate(8 * count * sequence * batch, topology, seconds * interval)


def bigscience(topology: Topology, seconds: float, batch: int, sequence: int) -> float | None:
    """BigScience since PR 251 (ae6277f5, 2022-02): 24 F B s l h^2 (1 + s/6h + V/16lh) / (t W), 32 for 24 with GLU.

    The vocabulary's share is right for F = 4 only: logits are never recomputed.
    """
    return _narayanan(topology, seconds, batch, sequence, 32 if topology.glu else 24, lambda _factor: 16)


def bigscience_true_vocabulary(topology: Topology, seconds: float, batch: int, sequence: int) -> float | None:
    """The same with V/12lh where F = 3: what the logits truly cost without checkpointing."""
    return _narayanan(topology, seconds, batch, sequence, 32 if topology.glu else 24, lambda factor: 4 * factor)


def _narayanan(
    topology: Topology,
    seconds: float,
    batch: int,
    sequence: int,
    coefficient: int,
    divisor: Callable[[int], int],
) -> float | None:
    """Narayanan et al. 2021 (arXiv 2104.04473), equation 3; the MLP is 4h wide whatever the arguments say."""
    factor, layers, hidden, vocab = (
        passes(topology), topology.layers, topology.hidden_size, topology.padded_vocab_size,
    )  # fmt: skip
    if not factor or not layers or not hidden or not vocab:
        return None
    shape = 1 + sequence / (6 * hidden) + vocab / (divisor(factor) * layers * hidden)
    return rate(coefficient * factor * batch * sequence * layers * hidden**2 * shape, topology, seconds)


def microsoft(topology: Topology, seconds: float, batch: int, sequence: int) -> float | None:
    """Microsoft's throughput_calculator as it stands: `2 // (n // kv_heads)` is 0 above 2, so keys and values are lost.

    Forward MACs B s [l ((2 + share) h^2 + 2hs + m f h topk) + V h], m = 3 with SwiGLU else 2; x 2 x (3, +1 when fully
    recomputed; selective adds the s^2 term). No causal halving.
    """
    return _throughput_calculator(topology, seconds, batch, sequence, lambda groups: 2 // groups)


def microsoft_corrected(topology: Topology, seconds: float, batch: int, sequence: int) -> float | None:
    """The same with 2 / (n // kv_heads)."""
    return _throughput_calculator(topology, seconds, batch, sequence, lambda groups: 2 / groups)


def _throughput_calculator(
    topology: Topology, seconds: float, batch: int, sequence: int, share: Callable[[int], float]
) -> float | None:
    sizes, vocab, recomputed = sizes_of(topology), topology.padded_vocab_size, topology.activation_checkpointing
    if sizes is None or not vocab or recomputed is None:
        return None
    hidden, many = sizes.hidden, topology.experts is not None and topology.experts > 1
    experts = topology.moe_top_k if many else 1
    if not experts:
        return None
    projections = (1 + share(sizes.query // sizes.key) + 1) * hidden**2
    core, mlp = 2 * hidden * sequence, sizes.matrices * sizes.ffn * hidden * experts
    forward = sizes.layers * (projections + core + mlp) + vocab * hidden
    again = {"full": forward, "selective": sizes.layers * core}.get(recomputed, 0)
    return rate(2 * (3 * forward + again) * batch * sequence, topology, seconds)


def megatron_lm_2023(topology: Topology, seconds: float, batch: int, sequence: int) -> float | None:
    """Megatron-LM from 2023-11: 60 B s l h^2 (1 + G/5n + s/5h + V/10lh); the MLP is 4h wide without GLU, always."""
    sizes, vocab = sizes_of(topology), topology.padded_vocab_size
    if sizes is None or not vocab:
        return None
    layers, hidden = sizes.layers, sizes.hidden
    shape = 1 + sizes.key / sizes.query / 5 + sequence / (5 * hidden) + vocab / (10 * layers * hidden)
    return rate(60 * batch * sequence * layers * hidden**2 * shape, topology, seconds)


def megatron_lm_2024(topology: Topology, seconds: float, batch: int, sequence: int) -> float | None:
    """Megatron-LM from 2024: 12 B s l h^2 [(1 + G/n + s/h) q/h + (f/h) topk (1.5 with SwiGLU) + V/2lh]."""
    sizes, width, vocab = sizes_of(topology), expert_width(topology), topology.padded_vocab_size
    if sizes is None or not width or not vocab:
        return None
    hidden = sizes.hidden
    attention = (1 + sizes.key / sizes.query + sequence / hidden) * sizes.query / hidden
    mlp = width / hidden * sizes.matrices / 2
    shape = attention + mlp + vocab / (2 * sizes.layers * hidden)
    return rate(12 * batch * sequence * sizes.layers * hidden**2 * shape, topology, seconds)


def megatron_lm_2026(topology: Topology, seconds: float, batch: int, sequence: int) -> float | None:
    """Megatron-LM from 2025: causal-halved core, B s [6hfml + 6(h(q + 2k + g) + qh)l + 6hV] + 6 B s^2 q l; g is q
    with an output gate in the attention, else 0.

    MoE puts topk f_moe in place of f, MTP adds its layers, 6(3h + 2h^2) and one logit each. The risk left: a model with
    some dense layers, shared experts, latent, linear or hybrid attention, or packed sequences prints another number.
    """
    sizes, width, vocab = sizes_of(topology), expert_width(topology), topology.padded_vocab_size
    if sizes is None or not width or not vocab:
        return None
    hidden, query, extra = sizes.hidden, sizes.query, topology.mtp_layers or 0
    layers = sizes.layers + extra
    linear = 6 * layers * (hidden * width * sizes.matrices + _projections(sizes))
    linear += 6 * extra * (3 * hidden + 2 * hidden**2) + 6 * hidden * vocab * (extra + 1)
    return rate(batch * sequence * (linear + sequence * 6 * query * layers), topology, seconds)


def _projections(sizes: Sizes) -> int:
    """MACs per token of one layer's query, key, value, gate and output projections."""
    return sizes.hidden * (sizes.query + 2 * sizes.key + sizes.gate) + sizes.query * sizes.hidden


def gpt_neox_2021(topology: Topology, seconds: float, batch: int, sequence: int) -> float | None:
    """gpt-neox until 2023-09-27: B s (6P + 60 s h l) / (t W), P all parameters as told."""
    layers, hidden, count = topology.layers, topology.hidden_size, topology.parameters
    if not layers or not hidden or not count:
        return None
    return rate(batch * sequence * (6 * count + 60 * sequence * hidden * layers), topology, seconds)


def gpt_neox_bracket(topology: Topology, seconds: float, batch: int, sequence: int) -> float | None:
    """gpt-neox from 2023-09-27 (5f364017) to 2023-12-06: a misplaced bracket loses the vocabulary."""
    factor, layers, hidden, vocab = (
        passes(topology), topology.layers, topology.hidden_size, topology.padded_vocab_size,
    )  # fmt: skip
    if not factor or not layers or not hidden or not vocab:
        return None
    flops = 24 * factor * batch * sequence * layers * hidden**2 * (1 + sequence / (6 * hidden))
    return rate(flops + vocab / (16 * layers * hidden), topology, seconds)


def gpt_neox(topology: Topology, seconds: float, batch: int, sequence: int) -> float | None:
    """gpt-neox since 2023-12-06 (050f560e): PR 251's, which counts no GLU here."""
    return _narayanan(topology, seconds, batch, sequence, 24, lambda _factor: 16)


EFFECTIVE = "effective_tera_flops"
FORMULAS: dict[str, Formula] = {
    formula.__name__: formula
    for formula in (
        bigscience, megatron_deepspeed_2021, microsoft, megatron_lm_2026, megatron_lm_2024, megatron_lm_2023, gpt_neox,
        gpt_neox_bracket, gpt_neox_2021, seed, bigscience_true_vocabulary, microsoft_corrected, effective_tera_flops,
    )
}  # fmt: skip
"""The order in which a printed number is explained: what programs print, then corrections that none prints."""


def formulas_of(dialect: str | None) -> tuple[str, ...]:
    """The formulas that a program has printed by, its newest first; empty for a program that is not known."""
    return dialect_of(dialect).formulas


def computed_tflops(
    topology: Topology,
    seconds: float,
    batch_size: int | None,
    sequence_length: int | None,
    dialect: str | None,
    formula: str | None = None,
    at: float | None = None,
) -> tuple[str, float] | None:
    """(formula, TFLOP/s per GPU): `formula` if it is given and computable, else the rule of 2021's notes for a log of
    that time, else the dialect's newest, else PR 251. `at`: Unix seconds by the log's own clock.
    """
    if not batch_size or not sequence_length:
        return None
    noted = "seed" if at is not None and at < _PRINTED_SINCE else None
    for name in (formula, noted, (*formulas_of(dialect), "bigscience")[0]):
        if name in FORMULAS:
            value = FORMULAS[name](topology, seconds, batch_size, sequence_length)
            if value is not None:
                return name, value
    return None


def explain_printed(
    printed: float, topology: Topology, seconds: float, batch_size: int | None, sequence_length: int | None
) -> str | None:
    """The formula that gives the printed TFLOP/s per GPU, those of the run's own program first; None if none does."""
    if not batch_size or not sequence_length or not 0 < printed < float("inf"):
        return None
    own = formulas_of(topology.dialect)
    for name in (*own, *(other for other in FORMULAS if other not in own)):
        value = FORMULAS[name](topology, seconds, batch_size, sequence_length)
        if value is not None and prints_as(value, printed):
            return name
    return None


def prints_as(value: float, printed: float) -> bool:
    """Does `value` show as `printed`: rounded or cut off, give or take 0.02 % for the seconds' own rounding?

    Python drops a last 0, so `43.0` and `43.00` both count as exact to 0.1.
    """
    exponent = Decimal(repr(printed)).as_tuple().exponent
    unit = 10.0**exponent if isinstance(exponent, int) else 0.0
    near = 2e-4 * printed
    return printed - unit / 2 - near <= value <= printed + unit + near


def model_flops_per_iteration(topology: Topology, batch: int, sequence: int) -> float | None:
    """FLOPs that the model needs, nothing recomputed, the core not halved: for MFU as PaLM defines it."""
    parts = _forward(topology, sequence)
    return 3 * batch * sequence * sum(parts) if parts else None


def hardware_flops_per_iteration(topology: Topology, batch: int, sequence: int) -> float | None:
    """FLOPs with what is recomputed: all layers once more ("full", never the logits) or the core ("selective")."""
    parts, recomputed = _forward(topology, sequence), topology.activation_checkpointing
    if not parts or recomputed is None:
        return None
    linear, core, _logits = parts
    again = {"full": linear + core, "selective": core}.get(recomputed, 0)
    return batch * sequence * (3 * sum(parts) + again)


def _forward(topology: Topology, sequence: int) -> tuple[int, int, int] | None:
    """FLOPs per token of one forward pass: (the layers' matrices, their attention core, the logits)."""
    sizes, width, vocab = sizes_of(topology), expert_width(topology), topology.padded_vocab_size
    if sizes is None or not width or not vocab:
        return None
    extra = topology.mtp_layers or 0
    layers = sizes.layers + extra
    linear = 2 * layers * (_projections(sizes) + sizes.hidden * width * sizes.matrices)
    linear += 2 * extra * 2 * sizes.hidden**2
    return linear, 4 * layers * sizes.query * sequence, 2 * sizes.hidden * vocab * (extra + 1)
