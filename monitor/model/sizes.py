"""The sizes of a standard GPT that FLOPs and parameter counts need, and its parameter count. Pure.

In: a run's `Topology`. Out: counts, or None where one is not known. A flag that the arguments do not have is off.
"""

from msgspec import Struct

from megatron_monitor.model.topology import Topology


class Sizes(Struct, frozen=True):
    """Widths in elements; `matrices` are the MLP's: 2, with GLU 3."""

    layers: int
    hidden: int
    ffn: int
    query: int
    key: int
    matrices: int
    gate: int = 0
    """Width of the attention's output gate: as wide as the query where there is one."""


def sizes_of(topology: Topology) -> Sizes | None:
    """Widths as Megatron fills its arguments in: the MLP 4h (not with GLU), channels h / n, as many groups as heads."""
    layers, hidden, heads = topology.layers, topology.hidden_size, topology.attention_heads
    ffn = topology.ffn_hidden_size
    if not layers or not hidden:
        return None
    if ffn is None:
        if topology.glu:
            return None  # programs differ in what they then take
        ffn = 4 * hidden
    query = key = hidden
    if topology.kv_channels is not None or topology.query_groups is not None:
        if not heads:
            return None
        channels = topology.kv_channels or hidden // heads
        query, key = channels * heads, channels * (topology.query_groups or heads)
    if not 0 < key <= query:
        return None
    return Sizes(layers, hidden, ffn, query, key, 3 if topology.glu else 2, query if topology.output_gate else 0)


def expert_width(topology: Topology) -> int | None:
    """Width of the MLP that one token passes: the MLP's own, or with experts those of the chosen ones together.

    Every layer is taken to have experts and none to share one (Megatron-LM's default): no argument here tells more.
    """
    sizes = sizes_of(topology)
    if sizes is None:
        return None
    if topology.experts is None or topology.experts <= 1:
        return sizes.ffn
    chosen = topology.moe_top_k
    return chosen * (topology.moe_ffn_hidden_size or sizes.ffn) if chosen else None


def parameters(topology: Topology) -> tuple[int, int] | None:
    """(all, those outside the embedding): l (4h^2 + 2hf + 9h + f) [+ V h + s h + 2h], GLU and grouped queries counted.

    For the GPT of Megatron with biases, LayerNorms, learned positions and a tied embedding; a model without them has
    a little less. None for a mixture of experts: which of its layers have them is not known.
    """
    sizes, vocab, sequence = sizes_of(topology), topology.padded_vocab_size, topology.sequence_length
    if sizes is None or not vocab or not sequence or (topology.experts or 0) > 1:
        return None
    hidden, ffn = sizes.hidden, sizes.ffn
    attention = hidden * (2 * sizes.query + 2 * sizes.key + sizes.gate) + sizes.query + 2 * sizes.key + hidden
    mlp = sizes.matrices * hidden * ffn + (sizes.matrices - 1) * ffn + hidden
    outside = sizes.layers * (attention + mlp + 4 * hidden)
    return outside + (vocab + sequence + 2) * hidden, outside
