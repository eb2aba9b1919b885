"""Do the arguments add up? K02 to K07, K20, K27: a row is an inequality over the sizes that the log told; K21."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

from megatron_monitor.audit.checks import Finding, Severity
from megatron_monitor.model.sizes import parameters
from megatron_monitor.model.topology import Topology
from megatron_monitor.parsers.dialects import dialect_of
from megatron_monitor.parsers.engine.fields import whole
from megatron_monitor.run.state import RunState

_SIZES = {
    "tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "dp": "data_parallel_size",
    "cp": "context_parallel_size", "world": "world_size", "nodes": "nodes", "each": "processes_per_node",
    "micro": "micro_batch_size", "batch": "global_batch_size", "layers": "layers", "hidden": "hidden_size",
    "heads": "attention_heads", "ffn": "ffn_hidden_size", "channels": "kv_channels", "length": "sequence_length",
}  # fmt: skip
"""What rows call a field of `Topology`; its own name stands in the evidence."""
_WASTE = 0.10  # share of the pipeline's time that an uneven split may cost before it is reported
_BUBBLE = 0.10  # share of the time that pipeline stages may wait
_FUSED = range(17, 4097)  # sequence lengths for which Megatron's fused softmax has a kernel
_BATCHES = 100_000  # ramp-ups with more batch sizes are not checked one by one


class _Row(NamedTuple):
    """A finding where all of `needs` is known and `fails`, and none of `unless` is set; `told`: not worked out."""

    check: str
    about: str
    severity: Severity
    needs: str
    fails: Callable[[Any], object]
    text: Callable[[Any], str]
    evidence: str
    unless: str = ""
    told: str = ""


def _uneven(v: Any) -> str:
    return (
        f"{v.layers} layers do not divide among {v.pp} pipeline stages: the fullest holds {v.fullest}, "
        f"the others wait {v.waste:.0%} of their time"
    )


_ROWS: tuple[_Row, ...] = (
    _Row("K02", "", "warning", "tp pp dp world", lambda v: v.world not in (v.product, v.tp * v.pp * v.dp),
         lambda v: f"TP {v.tp} x PP {v.pp} x DP {v.dp}" + (f" x CP {v.cp}" if (v.cp or 1) > 1 else "")
         + f" = {v.product} is not the world size {v.world}", "product world", "other", "tp pp dp world"),
    # Nodes may differ, and each logs its own count
    _Row("K03", "", "info", "nodes each world", lambda v: v.nodes * v.each < v.world, lambda v:
         f"{v.nodes} nodes of {v.each} processes are {v.nodes * v.each}, but the world size is {v.world}",
         "nodes each world", told="nodes each world"),
    _Row("K04", "", "warning", "batch step", lambda v: v.batch % v.step, lambda v:
         f"global batch size {v.batch} is no multiple of micro batch {v.micro} x DP {v.dp} = {v.step} "
         f"(nearest: {v.batch // v.step * v.step or v.step} and {v.batch // v.step * v.step + v.step})",
         "batch micro dp", "early flexible other", "micro batch"),
    _Row("K04", "micro batches", "warning", "batch step micro_batches",
         lambda v: v.batch % v.step == 0 and v.micro_batches * v.step != v.batch, lambda v:
         f"{v.micro_batches} micro batches x micro batch {v.micro} x DP {v.dp} = {v.micro_batches * v.step}, "
         f"but the global batch size is {v.batch}",
         "batch micro dp micro_batches", "early flexible other rampup", "micro batch"),
    _Row("K05", "", "warning", "layers pp", lambda v: v.pp > 1 and v.layers < v.pp, lambda v:
         f"{v.layers} layers on {v.pp} pipeline stages: some stages are empty", "layers pp", "uneven"),
    _Row("K05", "", "warning", "rest", lambda v: v.even, _uneven, "layers pp", "uneven"),
    _Row("K05", "", "info", "rest", lambda v: not v.even and v.waste > _WASTE, _uneven, "layers pp", "uneven"),
    _Row("K06", "heads", "warning", "heads tp", lambda v: v.heads % v.tp, lambda v:
         f"{v.heads} attention heads do not divide among TP {v.tp}", "tp heads hidden"),
    _Row("K06", "hidden", "warning", "hidden tp", lambda v: v.hidden % v.tp, lambda v:
         f"hidden size {v.hidden} does not divide among TP {v.tp}", "tp heads hidden"),
    _Row("K06", "head size", "warning", "hidden heads", lambda v: v.channels is None and v.hidden % v.heads, lambda v:
         f"hidden size {v.hidden} is no multiple of {v.heads} attention heads", "tp heads hidden", "unusual"),
    _Row("K06", "nodes", "info", "tp each", lambda v: 1 < v.each < v.tp, lambda v:
         f"TP {v.tp} crosses nodes of {v.each} GPUs: tensor parallel traffic uses the slow network between nodes",
         "tp heads hidden each"),
    _Row("K07", "ffn", "info", "ffn hidden parameters", lambda v: v.plain and not 2 * v.hidden <= v.ffn <= 8 * v.hidden,
         lambda v: f"ffn_hidden_size {v.ffn} is {v.ffn / v.hidden:.3g} x hidden size {v.hidden}, "
         f"where 4 x = {4 * v.hidden} is usual", "parameters outside_embedding ffn"),
    _Row("K07", "counted", "info", "parameters counted",
         lambda v: not 0.95 * v.outside_embedding <= v.counted <= 1.05 * (v.parameters + 2 * v.embedding), lambda v:
         f"the ranks counted {_short(v.counted)} parameters, the arguments make {_short(v.parameters)}",
         "parameters outside_embedding ffn counted"),
    _Row("K20", "hidden", "info", "hidden heads", lambda v: v.hidden % 128, lambda v:
         f"hidden size {v.hidden} is no multiple of 128 (rest {v.hidden % 128}): matrix kernels fill their tiles badly",
         "hidden", "fp32"),
    _Row("K20", "head size", "info", "hidden heads head_size", lambda v: v.head_size % 8, lambda v:
         f"heads of {v.head_size} channels are no multiple of 8: attention is slower (25 % was measured)",
         "head_size", "fp32"),
    _Row("K20", "fused softmax", "info", "fused heads tp micro",
         lambda v: v.heads % v.tp == 0 and v.heads // v.tp * v.micro % 4, lambda v:
         f"({v.heads} heads / TP {v.tp}) x micro batch {v.micro} is no multiple of 4: the fused softmax is not used",
         "heads micro", "fp32"),
    _Row("K20", "fused softmax length", "info", "fused length", lambda v: v.length not in _FUSED, lambda v:
         f"{v.length} tokens are outside what the fused softmax can do", "length", "fp32"),
    _Row("K27", "", "info", "bubble", lambda v: v.bubble > _BUBBLE, lambda v:
         f"{v.pp} pipeline stages wait {v.bubble:.0%} of the time: {v.passed} micro batches do not fill them",
         "bubble passed", "uneven"),
)  # fmt: skip


def layout(state: RunState) -> Iterator[Finding]:
    """What fails. Batch and ramp-up wait for DP: during the set-up only half of the sizes are known."""
    topology = state.launch.topology
    values = _values(state)
    known = vars(values)
    for row in _ROWS:
        if not all(known[name] for name in row.needs.split()) or any(known[name] for name in row.unless.split()):
            continue
        if topology.told >= {_SIZES[name] for name in row.told.split()} and row.fails(values):
            evidence = {_SHOWN.get(name, name): known[name] for name in row.evidence.split()}
            yield Finding(row.check, row.severity, row.text(values), row.about, evidence)
    if values.step and values.batch and not (values.early or values.flexible or values.other):
        yield from _ramp(state, values)


_SHOWN = {**_SIZES, "passed": "micro_batches"}


def _values(state: RunState) -> SimpleNamespace:
    """The sizes by their short names, what follows from them (None where an input lacks), and what makes rows hold."""
    launch = state.launch
    topology = launch.topology
    v = SimpleNamespace(**{short: getattr(topology, name) for short, name in _SIZES.items()})
    v.early = not launch.iterations and "data_parallel_size" not in topology.told
    v.flexible, v.other, v.uneven = topology.flexible_batch, topology.other_parallelism, topology.uneven_pipeline
    v.unusual, v.rampup, v.fp32 = topology.unusual, topology.rampup, topology.dtype == "fp32"
    # Programs switch the fused softmax off by themselves where another attention kernel is chosen
    v.fused = topology.fused_softmax and topology.flash is False
    engine = topology.zero_stage is not None or any("deepspeed" in name.lower() for name in launch.software)
    v.even = dialect_of(topology.dialect).even_layers and not engine
    v.micro_batches = topology.micro_batches or topology.gradient_accumulation_steps
    _products(v)
    _pipeline(v, topology)
    _counts(v, state)
    return v


def _products(v: SimpleNamespace) -> None:
    v.product = whole(v.tp * v.pp * v.dp * (v.cp or 1)) if v.tp and v.pp and v.dp else None
    v.step = v.micro * v.dp if v.micro and v.dp else None
    v.head_size = v.channels or (v.hidden // v.heads if v.hidden and v.heads and v.hidden % v.heads == 0 else None)


def _pipeline(v: SimpleNamespace, topology: Topology) -> None:
    """`rest`: layers that do not divide; embedding and head may count as one each: BLOOM has 70 + 2 on 12 stages."""
    v.rest = v.fullest = v.waste = v.bubble = v.passed = None
    if not v.pp or v.pp < 2:
        return
    if v.layers and v.layers > v.pp and v.layers % v.pp and (v.layers + 2) % v.pp:
        v.rest, v.fullest = v.layers % v.pp, -(-v.layers // v.pp)
        v.waste = 1 - v.layers / (v.fullest * v.pp)
    if v.batch and v.step and v.batch % v.step == 0:
        v.passed = v.batch // v.step
        passes = v.passed * (topology.virtual_pipeline_size or 1)  # interleaved stages pass each micro batch again
        v.bubble = round((v.pp - 1) / (passes + v.pp - 1), 4)


def _counts(v: SimpleNamespace, state: RunState) -> None:
    """Parameters by the arguments and as counted: the ranks' sum if all have logged theirs, else the program's."""
    launch = state.launch
    topology = launch.topology
    v.parameters = v.outside_embedding = v.counted = None
    v.plain = topology.glu is False
    counts = parameters(topology)
    if counts is None or topology.unusual or topology.mtp_layers:
        return
    v.parameters, v.outside_embedding = counts
    v.embedding = (topology.padded_vocab_size or 0) * v.hidden
    if v.tp and v.pp and len(launch.parameters_by_rank) == v.tp * v.pp:
        v.counted = round(sum(launch.parameters_by_rank.values()))
    elif "parameters" in topology.told:
        v.counted = topology.parameters


def _short(count: float) -> str:
    return f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.0f}M"


def _ramp(state: RunState, v: SimpleNamespace) -> Iterator[Finding]:
    launch = state.launch
    start, increment, samples = v.rampup or (0, 0, 0)
    if min(start, increment) <= 0 or start >= v.batch or (v.batch - start) // increment > _BATCHES:
        return
    evidence = {"start": start, "increment": increment, "global_batch_size": v.batch, "step": v.step}
    if (v.batch - start) % increment:
        text = f"the batch size ramp-up from {start} by {increment} does not end at {v.batch}"
        yield Finding("K21", "warning", text, "steps", evidence)
        return
    wrong = [size for size in range(start, v.batch + 1, increment) if size % v.step]
    if not wrong:
        return
    now = launch.latest.global_batch_size or 0
    size = next((size for size in wrong if size > now), wrong[0])
    many = f"{len(wrong)} batch sizes of the ramp-up {start} + n x {increment} to {v.batch} are no multiple of micro "
    many += f"batch {v.micro} x DP {v.dp} = {v.step}"
    evidence["first_wrong"] = size
    if size > now and launch.iterations > 0:
        when = (size - start) * samples // (v.batch - start)
        text = f"{many}: the run will stop at batch size {size}, after about {when} samples"
        yield Finding("K21", "critical", text, evidence=evidence)
    else:
        yield Finding("K21", "warning", f"{many}, e.g. {size}", evidence=evidence)
