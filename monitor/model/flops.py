"""TFLOP/s per GPU by the formulas of the programs. Each has a name, and none is mixed with another.

Input: a run's `Topology`, seconds per iteration, samples per iteration, tokens per sample. Output: TFLOP/s per GPU, or
FLOPs. Each formula computes what its program computes, errors included, so that a printed number can be reproduced. An
unknown input gives None. A setting that the arguments do not have (GLU, grouped queries) is off.

B batch, s sequence, l layers, h hidden, V padded vocabulary, f width of the MLP, n heads, G query groups, q and k
widths of the query and key projections, W ranks, t seconds, F passes: 3 (forward, two backward), 4 with recomputation.
NVIDIA's formulas and gpt-neox's first one count model FLOPs, the others hardware FLOPs. Never compare the two kinds.
"""

from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeVar

from msgspec import Struct

from megatron_monitor.model.topology import Topology
from megatron_monitor.parsers.programs import program_of

N = TypeVar("N", int, float)
# 2022: programs of 2021 printed no TFLOPs, and people computed them by the rule of the notes.
_PRINTED_SINCE = 1_640_995_200.0


class Sizes(Struct, frozen=True):
    """Widths in elements. `matrices` is the number of MLP matrices: 2, or 3 with GLU."""

    layers: int
    hidden: int
    ffn: int
    query: int
    key: int
    matrices: int
    gate: int = 0
    """Width of the attention's output gate. With a gate it is as wide as the query."""


class _Inputs:
    """The inputs of a formula: a topology's fields and derived values. Raises LookupError for an unknown one."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.topology, name)
        if not value:
            raise LookupError(name)
        return value

    @property
    def sizes(self) -> Sizes:
        """The widths with Megatron's defaults: MLP 4h (not with GLU), channels h / n, one group per head."""
        known, hidden = self.topology, self.hidden_size
        # with GLU the programs' defaults differ
        ffn = self.ffn_hidden_size if known.glu or known.ffn_hidden_size is not None else 4 * hidden
        query = key = hidden
        if known.kv_channels is not None or known.query_groups is not None:
            channels = known.kv_channels or hidden // self.attention_heads
            query, key = channels * self.attention_heads, channels * (known.query_groups or self.attention_heads)
        if not 0 < key <= query:
            raise LookupError("query_groups")
        return Sizes(self.layers, hidden, ffn, query, key, 3 if known.glu else 2, query if known.output_gate else 0)

    @property
    def chosen(self) -> int:
        """MLPs that a token passes. All layers are assumed to have experts, and none a shared expert (Megatron-LM's
        default): no argument here says more.
        """
        return self.moe_top_k if (self.topology.experts or 0) > 1 else 1

    @property
    def width(self) -> int:
        """Width of the MLP that one token passes: the MLP's own, or the sum of the chosen experts."""
        experts = (self.topology.experts or 0) > 1
        return self.chosen * ((self.topology.moe_ffn_hidden_size if experts else None) or self.sizes.ffn)

    @property
    def passes(self) -> int:
        """F. Selective recomputation is ignored: those programs know all or nothing."""
        return 4 if self.activation_checkpointing == "full" else 3

    @property
    def size(self) -> int:
        """The number of parameters: the nominal size, else as printed, else computed."""
        known = self.topology
        return known.nominal_parameters or known.parameters or _parameters(self)


def _known(compute: Callable[[_Inputs], N], topology: Topology) -> N | None:
    """Return the result, or None if an input is unknown."""
    try:
        return compute(_Inputs(topology))
    except LookupError:
        return None


def _parameters(v: _Inputs) -> int:
    if (v.topology.experts or 0) > 1:
        raise LookupError("experts")
    sizes, hidden, ffn = v.sizes, v.sizes.hidden, v.sizes.ffn
    attention = hidden * (2 * sizes.query + 2 * sizes.key + sizes.gate) + sizes.query + 2 * sizes.key + hidden
    mlp = sizes.matrices * hidden * ffn + (sizes.matrices - 1) * ffn + hidden
    return int(sizes.layers * (attention + mlp + 4 * hidden) + (v.padded_vocab_size + v.sequence_length + 2) * hidden)


def parameters(topology: Topology) -> int | None:
    """Return the parameters: l (4h^2 + 2hf + 9h + f) + V h + s h + 2h, with GLU and grouped queries.

    For Megatron's GPT with biases, LayerNorms, learned positions and a tied embedding. A model without them has a
    little less. None for a mixture of experts, because it is unknown which layers have experts.
    """
    return _known(_parameters, topology)


def _seed(v: _Inputs, batch: int, sequence: int) -> float:
    """BigScience's notes of 2021: 2 F P s B / (t W)."""
    return float(2 * v.passes * v.size * sequence * batch)


def _megatron_deepspeed_2021(v: _Inputs, batch: int, sequence: int) -> float:
    """BigScience's log before PR 251: 2 F P s B / (t W), P the last rank's parameters outside the embedding x TP x PP.

    Biases and norms that are not sharded count TP times: P = TP PP [(l/PP)((12h^2 + 7h)/TP + 6h) + 4h] for f = 4h.
    """
    sizes, hidden, tensor = v.sizes, v.sizes.hidden, v.tensor_parallel_size
    sharded = 4 * hidden**2 + sizes.matrices * hidden * sizes.ffn + 3 * hidden + (sizes.matrices - 1) * sizes.ffn
    count = sizes.layers * (sharded + 6 * hidden * tensor) + 4 * hidden * tensor * v.pipeline_parallel_size
    return float(2 * v.passes * count * sequence * batch)


def _effective_tera_flops(v: _Inputs, batch: int, sequence: int) -> float:
    """Megatron-DeepSpeed's flops_calculator (`Effective Tera Flops per GPU`): 8 P s B / (t W), with and without
    recomputation.

    It divides by the time of the whole log interval, so that it is too small by this factor for intervals above 1.
    """
    return float(8 * v.parameters * sequence * batch / v.log_interval)


def _narayanan(v: _Inputs, batch: int, sequence: int, coefficient: int) -> float:
    """Narayanan et al. 2021 (arXiv 2104.04473), equation 3; the MLP is 4h wide whatever the arguments say.

    BigScience since PR 251 (ae6277f5, 2022-02): 24 F B s l h^2 (1 + s/6h + V/16lh) / (t W), 32 for 24 with GLU. The
    share of the vocabulary is correct only for F = 4, because logits are never recomputed. gpt-neox since 2023-12-06
    (050f560e): the same, without GLU.
    """
    layers, hidden = v.layers, v.hidden_size
    shape = 1 + sequence / (6 * hidden) + v.padded_vocab_size / (16 * layers * hidden)
    return float(coefficient * v.passes * batch * sequence * layers * hidden**2 * shape)


def _microsoft(v: _Inputs, batch: int, sequence: int) -> float:
    """Microsoft's throughput_calculator as written: `2 // (n // kv_heads)` is 0 above 2, so that keys and values are
    lost.

    Forward MACs B s [l ((2 + share) h^2 + 2hs + m f h topk) + V h], m = 3 with SwiGLU else 2; x 2 x (3, +1 with full
    recomputation; selective adds the s^2 term). No causal halving.
    """
    share = 2 // (v.sizes.query // v.sizes.key)
    sizes, hidden = v.sizes, v.sizes.hidden
    projections = (1 + share + 1) * hidden**2
    core, mlp = 2 * hidden * sequence, sizes.matrices * sizes.ffn * hidden * v.chosen
    forward = sizes.layers * (projections + core + mlp) + v.padded_vocab_size * hidden
    again = {"full": forward, "selective": sizes.layers * core}.get(v.activation_checkpointing, 0)
    return float(2 * (3 * forward + again) * batch * sequence)


def _megatron_lm_2023(v: _Inputs, batch: int, sequence: int) -> float:
    """Megatron-LM from 2023-11: 60 B s l h^2 (1 + G/5n + s/5h + V/10lh). The MLP is always 4h wide without GLU."""
    layers, hidden = v.layers, v.hidden_size
    shape = 1 + v.sizes.key / v.sizes.query / 5 + sequence / (5 * hidden) + v.padded_vocab_size / (10 * layers * hidden)
    return float(60 * batch * sequence * layers * hidden**2 * shape)


def _megatron_lm_2024(v: _Inputs, batch: int, sequence: int) -> float:
    """Megatron-LM from 2024: 12 B s l h^2 [(1 + G/n + s/h) q/h + (f/h) topk (1.5 with SwiGLU) + V/2lh]."""
    sizes, hidden = v.sizes, v.sizes.hidden
    attention = (1 + sizes.key / sizes.query + sequence / hidden) * sizes.query / hidden
    mlp = v.width / hidden * sizes.matrices / 2
    shape = attention + mlp + v.padded_vocab_size / (2 * sizes.layers * hidden)
    return float(12 * batch * sequence * sizes.layers * hidden**2 * shape)


def _megatron_lm_2026(v: _Inputs, batch: int, sequence: int) -> float:
    """Megatron-LM from 2025, with a causal-halved core: B s [6hfml + 6(h(q + 2k + g) + qh)l + 6hV] + 6 B s^2 q l; g is
    q with an output gate in the attention, else 0.

    MoE puts topk f_moe in place of f. MTP adds its layers, 6(3h + 2h^2) and one logit each. Known limit: a model with
    some dense layers, shared experts, latent, linear or hybrid attention, or packed sequences prints another number.
    """
    sizes, hidden, extra = v.sizes, v.sizes.hidden, v.topology.mtp_layers or 0
    layers = sizes.layers + extra
    linear = 6 * layers * (hidden * v.width * sizes.matrices + _projections(sizes))
    linear += 6 * extra * (3 * hidden + 2 * hidden**2) + 6 * hidden * v.padded_vocab_size * (extra + 1)
    return float(batch * sequence * (linear + sequence * 6 * sizes.query * layers))


def _projections(sizes: Sizes) -> int:
    """Return the MACs per token of one layer's query, key, value, gate and output projections."""
    return sizes.hidden * (sizes.query + 2 * sizes.key + sizes.gate) + sizes.query * sizes.hidden


def _gpt_neox_2021(v: _Inputs, batch: int, sequence: int) -> float:
    """gpt-neox until 2023-09-27: B s (6P + 60 s h l) / (t W), P all parameters as printed."""
    return float(batch * sequence * (6 * v.parameters + 60 * sequence * v.hidden_size * v.layers))


def _gpt_neox_bracket(v: _Inputs, batch: int, sequence: int) -> float:
    """gpt-neox from 2023-09-27 (5f364017) to 2023-12-06: a misplaced bracket omits the vocabulary."""
    layers, hidden = v.layers, v.hidden_size
    flops = 24 * v.passes * batch * sequence * layers * hidden**2 * (1 + sequence / (6 * hidden))
    return float(flops + v.padded_vocab_size / (16 * layers * hidden))


Formula = Callable[[Topology, float, int, int], float | None]
"""Topology, seconds and samples per iteration, tokens per sample -> TFLOP/s per GPU. None: an input is missing."""


def _formula(flops: Callable[[_Inputs, int, int], float]) -> Formula:
    def tflops(topology: Topology, seconds: float, batch: int, sequence: int) -> float | None:
        if not seconds > 0:
            return None
        return _known(lambda v: flops(v, batch, sequence) / float(seconds * v.world_size * 1e12), topology)

    return tflops


EFFECTIVE = "effective_tera_flops"
FORMULAS: dict[str, Formula] = {
    "bigscience": _formula(lambda v, batch, sequence: _narayanan(v, batch, sequence, 32 if v.topology.glu else 24)),
    "megatron_deepspeed_2021": _formula(_megatron_deepspeed_2021),
    "microsoft": _formula(_microsoft),
    "megatron_lm_2026": _formula(_megatron_lm_2026),
    "megatron_lm_2024": _formula(_megatron_lm_2024),
    "megatron_lm_2023": _formula(_megatron_lm_2023),
    "gpt_neox": _formula(lambda v, batch, sequence: _narayanan(v, batch, sequence, 24)),
    "gpt_neox_bracket": _formula(_gpt_neox_bracket),
    "gpt_neox_2021": _formula(_gpt_neox_2021),
    "seed": _formula(_seed),
    EFFECTIVE: _formula(_effective_tera_flops),
}
"""In the order in which they are tried on a printed number."""


def computed_tflops(
    topology: Topology, seconds: float, batch_size: int | None, sequence_length: int | None, format_name: str | None,
    formula: str | None = None, at: float | None = None,
) -> tuple[str, float] | None:  # fmt: skip
    """Return (formula, TFLOP/s per GPU): `formula` if it is given and computable, else the rule of the notes for a log
    of 2021, else the newest of the format's program, else PR 251. `at`: Unix seconds by the log's own clock.
    """
    if not batch_size or not sequence_length:
        return None
    noted = "seed" if at is not None and at < _PRINTED_SINCE else None
    for name in (formula, noted, (*program_of(format_name).formulas, "bigscience")[0]):
        if name in FORMULAS:
            value = FORMULAS[name](topology, seconds, batch_size, sequence_length)
            if value is not None:
                return name, value
    return None


def explain_printed(
    printed: float, topology: Topology, seconds: float, batch_size: int | None, sequence_length: int | None
) -> str | None:
    """Return the formula that gives the printed TFLOP/s per GPU, first trying those of the run's program. None: no
    formula does.
    """
    if not batch_size or not sequence_length or not 0 < printed < float("inf"):
        return None
    own = program_of(topology.format).formulas
    for name in (*own, *(other for other in FORMULAS if other not in own)):
        value = FORMULAS[name](topology, seconds, batch_size, sequence_length)
        if value is not None and prints_as(value, printed):
            return name
    return None


def prints_as(value: float, printed: float) -> bool:
    """Return True if `value` prints as `printed`: rounded or truncated, within 0.02 % for the rounding of the seconds.

    Python omits a last 0, so that `43.0` and `43.00` are both exact to 0.1.
    """
    exponent = Decimal(repr(printed)).as_tuple().exponent
    unit = 10.0**exponent if isinstance(exponent, int) else 0.0
    near = 2e-4 * printed
    return printed - unit / 2 - near <= value <= printed + unit + near


def model_flops(topology: Topology, batch: int | None, sequence: int | None) -> int | None:
    """Return the FLOPs of an iteration that the model needs, without recomputation and causal halving (MFU as defined
    by PaLM).
    """
    if not batch or not sequence:
        return None

    def flops(v: _Inputs) -> int:
        sizes, extra = v.sizes, topology.mtp_layers or 0
        layers = sizes.layers + extra
        linear = 2 * layers * (_projections(sizes) + sizes.hidden * v.width * sizes.matrices)
        linear += 2 * extra * 2 * sizes.hidden**2
        core, logits = 4 * layers * sizes.query * sequence, 2 * sizes.hidden * v.padded_vocab_size * (extra + 1)
        return int(3 * batch * sequence * (linear + core + logits))

    return _known(flops, topology)


def mfu(
    topology: Topology, seconds: float | None, batch: int | None, sequence: int | None, peak: float | None
) -> float | None:
    """Return the MFU, 0 to 1: the model's FLOPs over the peak (TFLOP/s of one rank)."""
    available = (peak or 0.0) * 1e12 * (topology.world_size or 0) * (seconds or 0.0)
    needed = model_flops(topology, batch, sequence)
    return needed / available if needed and available else None
