"""Does the layout of ranks, layers and batches add up? K02 to K06, K19, K21, K27."""

from __future__ import annotations

from collections.abc import Iterator

from monitor.audit.checks import Finding
from monitor.model.topology import Topology
from monitor.run.state import RunState
from parsers.dialects import dialect_of
from parsers.engine.fields import whole

_NEAR_POWER = 0.03  # 1048 is 2.3 % from 1024
_SMALLEST_SLIP = 256  # below, every number is near a power of two
_WASTE = 0.10  # share of the pipeline's time that an uneven split may cost before it is reported
_SIZES = 100_000  # ramp-ups with more batch sizes are not checked one by one
_BUBBLE = 0.10  # share of the time that pipeline stages may wait


def layout(state: RunState) -> Iterator[Finding]:
    """What fails. Batch and ramp-up wait for DP: during the set-up only half of the sizes are known."""
    launch = state.launch
    topology = launch.topology
    for check in (_world, _nodes, _slip, _tensor, _bubble):
        yield from check(topology)
    engine = topology.zero_stage is not None or any("deepspeed" in name.lower() for name in launch.software)
    yield from _layers(topology, dialect_of(topology.dialect).even_layers and not engine)
    if launch.iterations or "data_parallel_size" in topology.told:
        yield from _batch(topology)
        yield from _ramp(state)


def _world(topology: Topology) -> Iterator[Finding]:
    names = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "world_size")
    tensor, pipeline, data, world = (getattr(topology, name) for name in names)
    if (
        not (tensor and pipeline and data and world)
        or not topology.told.issuperset(names)
        or topology.other_parallelism
    ):
        return
    context = topology.context_parallel_size or 1
    product = tensor * pipeline * data * context
    if product == world or tensor * pipeline * data == world:
        return  # a program may count context parallel ranks among the data parallel ones
    factors = f"TP {tensor} x PP {pipeline} x DP {data}" + (f" x CP {context}" if context > 1 else "")
    yield Finding(
        "K02",
        "warning",
        f"{factors} = {product} is not the world size {world}",
        evidence={"product": whole(product), "world_size": world},
    )


def _nodes(topology: Topology) -> Iterator[Finding]:
    nodes, each, world = topology.nodes, topology.processes_per_node, topology.world_size
    if not (nodes and each and world) or not topology.told >= {"nodes", "processes_per_node", "world_size"}:
        return
    if nodes * each < world:
        yield Finding(
            "K03",
            "info",  # nodes may differ, and each logs its own count
            f"{nodes} nodes of {each} processes are {nodes * each}, but the world size is {world}",
            evidence={"nodes": nodes, "processes_per_node": each, "world_size": world},
        )


def _batch(topology: Topology) -> Iterator[Finding]:
    micro, data, batch = topology.micro_batch_size, topology.data_parallel_size, topology.global_batch_size
    if not (micro and data and batch) or not topology.told >= {"micro_batch_size", "global_batch_size"}:
        return
    if topology.flexible_batch or topology.other_parallelism:
        return
    evidence = {"global_batch_size": batch, "micro_batch_size": micro, "data_parallel_size": data}
    if batch % (micro * data):
        below = batch // (micro * data) * micro * data
        yield Finding(
            "K04",
            "warning",
            f"global batch size {batch} is no multiple of micro batch {micro} x DP {data} = {micro * data} "
            f"(nearest: {below or micro * data} and {below + micro * data})",
            evidence=evidence,
        )
        return
    logged = topology.micro_batches or topology.gradient_accumulation_steps
    if logged and topology.rampup is None and logged * micro * data != batch:
        yield Finding(
            "K04",
            "warning",
            f"{logged} micro batches x micro batch {micro} x DP {data} = {logged * micro * data}, "
            f"but the global batch size is {batch}",
            "micro batches",
            {**evidence, "micro_batches": logged},
        )


def _slip(topology: Topology) -> Iterator[Finding]:
    batch = topology.global_batch_size
    if not batch or "global_batch_size" not in topology.told or batch % 32 == 0 or batch % 50 == 0:
        return
    step = (topology.micro_batch_size or 1) * (topology.data_parallel_size or 1)
    power = 2 ** round(batch.bit_length() - 1)
    nearest = min((power, 2 * power), key=lambda value: abs(value - batch))
    if nearest >= _SMALLEST_SLIP and abs(batch / nearest - 1) <= _NEAR_POWER and nearest % step == 0:
        yield Finding(
            "K19",
            "info",  # a guess: 1008 may be meant
            f"global batch size {batch} looks like a typing error for {nearest} ({batch / nearest - 1:+.1%})",
            "batch",
            {"global_batch_size": batch, "likely": nearest},
        )


def _layers(topology: Topology, strict: bool) -> Iterator[Finding]:
    layers, stages = topology.layers, topology.pipeline_parallel_size
    if not layers or not stages or stages == 1 or topology.uneven_pipeline:
        return
    evidence = {"layers": layers, "pipeline_parallel_size": stages}
    if layers < stages:
        text = f"{layers} layers on {stages} pipeline stages: some stages are empty"
        yield Finding("K05", "warning", text, evidence=evidence)
        return
    if layers % stages == 0 or (layers + 2) % stages == 0:
        return  # embedding and head may count as one layer each: BLOOM has 70 + 2 on 12 stages
    most = -(-layers // stages)
    waste = 1 - layers / (most * stages)
    if strict or waste > _WASTE:
        yield Finding(
            "K05",
            "warning" if strict else "info",
            f"{layers} layers do not divide among {stages} pipeline stages: the fullest holds {most}, "
            f"the others wait {waste:.0%} of their time",
            evidence=evidence,
        )


def _tensor(topology: Topology) -> Iterator[Finding]:
    tensor, heads, hidden = topology.tensor_parallel_size, topology.attention_heads, topology.hidden_size
    evidence = {"tensor_parallel_size": tensor, "attention_heads": heads, "hidden_size": hidden}
    if heads and tensor and heads % tensor:
        text = f"{heads} attention heads do not divide among TP {tensor}"
        yield Finding("K06", "warning", text, "heads", evidence)
    if hidden and tensor and hidden % tensor:
        text = f"hidden size {hidden} does not divide among TP {tensor}"
        yield Finding("K06", "warning", text, "hidden", evidence)
    if hidden and heads and topology.kv_channels is None and hidden % heads and not topology.unusual:
        text = f"hidden size {hidden} is no multiple of {heads} attention heads"
        yield Finding("K06", "warning", text, "head size", evidence)
    each = topology.processes_per_node
    if tensor and each and each > 1 and tensor > each:
        text = f"TP {tensor} crosses nodes of {each} GPUs: tensor parallel traffic uses the slow network between nodes"
        yield Finding("K06", "info", text, "nodes", {**evidence, "processes_per_node": each})


def _ramp(state: RunState) -> Iterator[Finding]:
    launch = state.launch
    topology = launch.topology
    micro, data, end = topology.micro_batch_size, topology.data_parallel_size, topology.global_batch_size
    if topology.rampup is None or not (micro and data and end) or topology.flexible_batch or topology.other_parallelism:
        return
    start, increment, samples = topology.rampup
    if start <= 0 or increment <= 0 or start >= end or (end - start) // increment > _SIZES:
        return
    evidence = {"start": start, "increment": increment, "global_batch_size": end, "step": micro * data}
    if (end - start) % increment:
        text = f"the batch size ramp-up from {start} by {increment} does not end at {end}"
        yield Finding("K21", "warning", text, "steps", evidence)
        return
    now = launch.latest.global_batch_size or 0
    wrong = [size for size in range(start, end + 1, increment) if size % (micro * data)]
    ahead = [size for size in wrong if size > now]
    if not wrong:
        return
    stops = bool(ahead) and launch.iterations > 0
    size = ahead[0] if ahead else wrong[0]
    when = (size - start) * samples // (end - start)
    yield Finding(
        "K21",
        "critical" if stops else "warning",
        f"{len(wrong)} batch sizes of the ramp-up {start} + n x {increment} to {end} are no multiple of micro batch "
        f"{micro} x DP {data} = {micro * data}"
        + (f": the run will stop at batch size {size}, after about {when} samples" if stops else f", e.g. {size}"),
        evidence={**evidence, "first_wrong": size},
    )


def _bubble(topology: Topology) -> Iterator[Finding]:
    stages, batch = topology.pipeline_parallel_size, topology.global_batch_size
    micro, data, chunks = topology.micro_batch_size, topology.data_parallel_size, topology.virtual_pipeline_size or 1
    if not stages or stages < 2 or not (batch and micro and data) or topology.uneven_pipeline:
        return
    if batch % (micro * data):
        return
    passes = batch // (micro * data) * chunks  # interleaved stages pass each micro batch several times
    bubble = (stages - 1) / (passes + stages - 1)
    if bubble > _BUBBLE:
        yield Finding(
            "K27",
            "info",
            f"{stages} pipeline stages wait {bubble:.0%} of the time: {batch // (micro * data)} micro batches do not "
            "fill them",
            evidence={"bubble": round(bubble, 4), "micro_batches": batch // (micro * data)},
        )
