"""Do the sizes suit the kernels? K20: shapes that cost speed. K27: how long a pipeline waits. All hints."""

from __future__ import annotations

from collections.abc import Iterator

from monitor.run.audit.finding import Finding
from monitor.run.state import RunState
from monitor.run.topology import Topology

_BUBBLE = 0.10
_FUSED = range(17, 4097)  # tokens for which Megatron's fused softmax has a kernel


def kernels(state: RunState) -> Iterator[Finding]:
    """The hints."""
    topology = state.topology
    yield from _shapes(topology)
    yield from _softmax(topology)
    yield from _bubble(topology)


def _shapes(topology: Topology) -> Iterator[Finding]:
    hidden, heads = topology.hidden_size, topology.attention_heads
    if not hidden or not heads or topology.dtype == "fp32":
        return
    if hidden % 128:
        text = f"hidden size {hidden} is no multiple of 128 (rest {hidden % 128}): matrices fill their tiles badly"
        yield Finding("K20", "info", text, "hidden", {"hidden_size": hidden})
    size = topology.kv_channels or (hidden // heads if hidden % heads == 0 else None)
    if size and size % 8:
        text = f"heads of {size} channels are no multiple of 8: attention is slow (25 % were measured)"
        yield Finding("K20", "info", text, "head size", {"head_size": size})


def _softmax(topology: Topology) -> Iterator[Finding]:
    """Megatron's fused softmax; flash attention needs none."""
    heads, tensor, micro = topology.attention_heads, topology.tensor_parallel_size, topology.micro_batch_size
    if topology.fused_softmax is None or topology.flash is not False or topology.dtype == "fp32":
        return
    if not topology.fused_softmax:
        return  # programs switch it off by themselves where another attention kernel is chosen
    if heads and tensor and micro and heads % tensor == 0 and heads // tensor * micro % 4:
        text = f"({heads} heads / TP {tensor}) x micro batch {micro} is no multiple of 4: the fused softmax is not used"
        yield Finding("K20", "info", text, "fused softmax", {"attention_heads": heads, "micro_batch_size": micro})
    length = topology.sequence_length
    if length and length not in _FUSED:
        text = f"{length} tokens are outside what the fused softmax can do"
        yield Finding("K20", "info", text, "fused softmax length", {"sequence_length": length})


def _bubble(topology: Topology) -> Iterator[Finding]:
    stages, batch = topology.pipeline_parallel_size, topology.global_batch_size
    micro, data, chunks = topology.micro_batch_size, topology.data_parallel_size, topology.virtual_pipeline_size or 1
    if not stages or stages < 2 or not (batch and micro and data) or topology.uneven_pipeline:
        return
    if batch % (micro * data):
        return
    passes = batch // (micro * data) * chunks
    bubble = (stages - 1) / (passes + stages - 1)
    if bubble > _BUBBLE:
        yield Finding(
            "K27",
            "info",
            f"{stages} pipeline stages wait {bubble:.0%} of the time: {batch // (micro * data)} micro batches do not "
            "fill them",
            evidence={"bubble": round(bubble, 4), "micro_batches": batch // (micro * data)},
        )
