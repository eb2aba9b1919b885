"""The model and its layout over the GPUs, from the arguments dump and the lines around it. Pure.

Each field may be unknown (None). A printed value is never replaced by a computed one. Argument names are those of
Megatron-LM, its forks, gpt-neox, and DeepSpeedExamples of 2021.
"""

import ast
from collections.abc import Callable
from math import isfinite
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from megatron_monitor.model import arguments
from megatron_monitor.parsers import events
from megatron_monitor.parsers.engine.fields import integer, whole
from megatron_monitor.parsers.events import Event
from megatron_monitor.parsers.programs import GPT_NEOX


class Topology(Struct):
    """Sizes of a model and its layout. `rampup` is (start, increment, samples)."""

    world_size: int | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    data_parallel_size: int | None = None
    context_parallel_size: int | None = None
    expert_parallel_size: int | None = None
    nodes: int | None = None
    processes_per_node: int | None = None
    micro_batch_size: int | None = None
    global_batch_size: int | None = None
    gradient_accumulation_steps: int | None = None
    layers: int | None = None
    hidden_size: int | None = None
    ffn_hidden_size: int | None = None
    attention_heads: int | None = None
    query_groups: int | None = None
    kv_channels: int | None = None
    sequence_length: int | None = None
    sequence_grows: bool = False
    """True if the arguments let the number of tokens per layer grow (random-LTD), possibly without a line."""
    vocab_size: int | None = None
    padded_vocab_size: int | None = None
    train_iterations: int | None = None
    log_interval: int | None = None
    save_interval: int | None = None
    eval_interval: int | None = None
    eval_iters: int | None = None
    learning_rate: float | None = None
    dtype: str | None = None
    zero_stage: int | None = None
    activation_checkpointing: str | None = None
    """full, selective or none."""
    glu: bool | None = None
    experts: int | None = None
    moe_top_k: int | None = None
    moe_ffn_hidden_size: int | None = None
    mtp_layers: int | None = None
    parameters: int | None = None
    trainable_parameters: int | None = None
    """As HF Trainer counts them: for an adapter (LoRA) a small part of the model."""
    nominal_parameters: int | None = None
    """The size that people call the model by: `MSIZE=18` in the trace of a job's script."""
    output_gate: bool | None = None
    """True if the attention's output has a gate."""
    engine_world_size: int | None = None
    """DeepSpeed's own: the ranks that share the batch."""
    trainer: bool | None = None
    """True for HF's Trainer: each GPU has the whole model or its ZeRO share."""
    gpu_name: str | None = None
    format: str | None = None
    own_batch: bool | None = None
    """True if the loop's own arguments have the batch size. Then the value in DeepSpeed's configuration is not used."""
    rampup: tuple[int, int, int] | None = None
    other_parallelism: list[str] = field(default_factory=list)
    """Arguments of parallel dimensions that are not counted here."""
    flexible_batch: bool | None = None
    saves: bool | None = None
    """True if the arguments have a directory for checkpoints."""
    schedule: str | None = None
    """The arguments that change when a person begins a new phase, as text: equal text is an equal plan."""
    reported: set[str] = field(default_factory=set)
    """Fields with printed values. The others are computed from them."""

    def labels(self) -> dict[str, str]:
        """Return the label values of `megatron_run_info`, empty if unknown."""
        values = {label: getattr(self, name) for label, name in _LABELS.items()}
        return {label: "" if value is None else str(value) for label, value in values.items()}


_LABELS = {
    "world_size": "world_size", "tp": "tensor_parallel_size", "pp": "pipeline_parallel_size",
    "dp": "data_parallel_size", "mbs": "micro_batch_size", "layers": "layers", "hidden": "hidden_size",
    "heads": "attention_heads", "seq_len": "sequence_length", "dtype": "dtype", "zero_stage": "zero_stage",
    "format": "format",
}  # fmt: skip
_PRECISIONS = (
    ("bfloat16", "bf16"), ("bf16", "bf16"), ("fp16", "fp16"), ("float16", "fp16"), ("half", "fp16"),
    ("float32", "fp32"), ("fp32", "fp32"),
)  # fmt: skip
_BATCH = frozenset({"global_batch_size", "micro_batch_size", "gradient_accumulation_steps"})
_MINIMUM = {"zero_stage": 0, "eval_iters": 0}  # all others 1
NOMINAL_SIZES = frozenset({"MSIZE", "MODEL_SIZE"})
"""Variables with which job scripts name the model's size in billions."""
_LARGEST_NOMINAL = 1e5  # billions


def apply(topology: Topology, event: Event) -> Topology | None:
    """Return the topology with the values of the event, or None if it has nothing new."""
    read = _READ.get(type(event), lambda _: {})
    known = topology.reported if isinstance(event, events.SizesReported) and event.default else ()
    if topology.own_batch and isinstance(event, events.ModelSettingLogged) and event.name in _BATCH:
        return None
    reported = {name: value for name, value in read(event).items() if value is not None and name not in known}
    if all(getattr(topology, name) == value and name in topology.reported for name, value in reported.items()):
        return None
    others = topology.reported - _BATCH if reported.get("own_batch") and not topology.own_batch else topology.reported
    kept = {name: getattr(topology, name) for name in others}
    return _derive(replace(Topology(), **{**kept, **reported}, reported=others | set(reported)))


def sizes_from_arguments(values: dict[str, str]) -> dict[str, Any]:
    """Return the sizes in an arguments dump by field of Topology."""
    reported: dict[str, Any] = {}
    found = {name: _first(values, spellings) for name, spellings in arguments.ARGUMENTS["size"].items()}
    reported |= {name: size for name, size in found.items() if size >= _MINIMUM.get(name, 1)}
    reported["own_batch"] = True if "global_batch_size" in reported else None
    if _flag(values, "group_query_attention") is False:
        reported.pop("query_groups", None)
    reported["dtype"] = _dtype(values)
    reported["activation_checkpointing"] = _checkpointing(values)
    reported["glu"] = _glu(values)
    reported["output_gate"] = _flag(values, "attention_output_gate")
    if {*reported.values()} - {None}:
        reported.update(arguments.traits_of(values))
    reported["learning_rate"] = _decimal(values.get("lr"))
    ramp = _parsed(values.get("rampup_batch_size"))
    sizes = tuple(_whole(str(size)) for size in ramp) if isinstance(ramp, list | tuple) else ()
    if len(sizes) == 3 and None not in sizes:
        reported["rampup"] = sizes
    match _parsed(values.get("zero_optimization")):
        case {"stage": int(stage)}:
            reported.setdefault("zero_stage", stage)
    if GPT_NEOX.argument in values:
        reported["format"] = GPT_NEOX.name
        # gpt-neox counts a model parallel size of 0 pipeline stages as one
        if _whole(values.get("pipe_parallel_size")) == 0:
            reported["pipeline_parallel_size"] = 1
    multiple = (_whole(values.get("make_vocab_size_divisible_by")) or 0) * reported.get("tensor_parallel_size", 1)
    if multiple and "vocab_size" in reported:
        reported.setdefault("padded_vocab_size", whole(-(-reported["vocab_size"] // multiple) * multiple))
    return reported


def _first(values: dict[str, str], spellings: tuple[str, ...]) -> int:
    """Return the number of the first of these names that has one, or -1."""
    return next((number for spelling in spellings if (number := _whole(values.get(spelling))) is not None), -1)


def _from_variable(event: events.EnvironmentVariableSeen) -> dict[str, Any]:
    billions = _decimal(event.value.rstrip("bB")) if event.name in NOMINAL_SIZES else None
    return {"nominal_parameters": round(billions * 1e9)} if billions and 0 < billions < _LARGEST_NOMINAL else {}


_SETTINGS = frozenset(
    {"padded_vocab_size", "global_batch_size", "micro_batch_size", "world_size",
     "gradient_accumulation_steps", "zero_stage", "engine_world_size"}
)  # fmt: skip
_TRAINER = {
    "instantaneous batch size per device": "micro_batch_size", "total train batch size": "global_batch_size",
    "gradient accumulation steps": "gradient_accumulation_steps", "total optimization steps": "train_iterations",
    "number of trainable parameters": "trainable_parameters",
}  # fmt: skip
"""HF Trainer's name for a field. For the batch size it also states how it is counted."""


def _from_setting(event: events.ModelSettingLogged) -> dict[str, Any]:
    name, value = event.name, event.value
    if isinstance(value, str):
        if name == "gpu_name":
            return {"gpu_name": value}
        return {"dtype": name} if name in ("fp16", "bf16") and value == "True" else {}
    if name in ("parameters_billions", "unique_parameters"):
        return {"parameters": whole(value * 1e9 if name == "parameters_billions" else value)}
    return {name: whole(value)} if name in _SETTINGS else {}


def _from_trainer(event: events.TrainerSetting) -> dict[str, Any]:
    field = _TRAINER.get(event.name.partition(" (")[0])
    if field is None or not isinstance(event.value, int | float):
        return {}
    return {field: whole(event.value)} | ({} if field == "train_iterations" else {"trainer": True})


def _from_sizes(event: events.SizesReported) -> dict[str, Any]:
    reported: dict[str, Any] = dict(event.values)
    if "recomputes" in reported:
        reported["activation_checkpointing"] = "full" if reported.pop("recomputes") else "none"
    if "glu" in reported:
        reported["glu"] = bool(reported["glu"])
    if "micro_batch_size" in reported:
        reported["trainer"] = True
    return reported


_READ: dict[type[Event], Callable[[Any], dict[str, Any]]] = {
    events.ArgumentsDumped: lambda event: sizes_from_arguments(event.values),
    events.TopologyLogged: lambda event: {
        name: getattr(event, name) for name in event.__struct_fields__ if name in Topology.__struct_fields__
    },
    events.ModelSettingLogged: _from_setting,
    events.BatchSizeRampupPlanned: lambda event: {
        "rampup": (event.start, event.increment, event.samples),
        "global_batch_size": event.end,
    },
    events.TrainerSetting: _from_trainer,
    events.SizesReported: _from_sizes,
    events.EnvironmentVariableSeen: _from_variable,
}


def _derive_trainer(new: Topology) -> None:
    """Derive sizes for DeepSpeed alone or HF's Trainer: no rank has a part of another's layer."""
    trained, layers, hidden = new.trainable_parameters, new.layers, new.hidden_size
    if new.parameters is None and trained and layers and hidden and trained > 6 * layers * hidden**2:
        new.parameters = trained  # more than half of the layers' parameters: the model is trained, not an adapter
    context = new.context_parallel_size or 1
    derive_ranks(new, context)
    if new.data_parallel_size is None:
        if new.engine_world_size and context == 1:
            new.data_parallel_size = new.engine_world_size
        elif new.global_batch_size and new.micro_batch_size and new.gradient_accumulation_steps:
            step = new.micro_batch_size * new.gradient_accumulation_steps
            if new.global_batch_size % step == 0:
                new.data_parallel_size = new.global_batch_size // step
    derive_ranks(new, context)


def _derive(new: Topology) -> Topology:
    """Derive the values that follow with certainty from the printed ones."""
    tensor, pipeline, context = new.tensor_parallel_size, new.pipeline_parallel_size, new.context_parallel_size or 1
    if new.trainer or new.engine_world_size:
        if tensor is None and pipeline is None:
            _derive_trainer(new)
        elif new.data_parallel_size is None and context == 1:
            new.data_parallel_size = new.engine_world_size
    if tensor and pipeline:
        derive_ranks(new, tensor * pipeline * context)
    if new.global_batch_size is None:
        _derive_batch(new)
    return new


def _derive_batch(new: Topology) -> None:
    """Without model parallelism each rank is a replica."""
    single = {new.tensor_parallel_size, new.pipeline_parallel_size} <= {None, 1}
    ranks = new.data_parallel_size or (new.world_size if single else None)
    step = (new.micro_batch_size or 0) * (new.gradient_accumulation_steps or 0) * (ranks or 0)
    new.global_batch_size = whole(step) if step else None


def derive_ranks(new: Topology, replica: int) -> None:
    """Derive data parallel size and world size from each other by the ranks per replica."""
    if new.world_size and new.data_parallel_size is None and new.world_size % replica == 0:
        new.data_parallel_size = new.world_size // replica
    elif new.data_parallel_size and new.world_size is None:
        new.world_size = whole(new.data_parallel_size * replica)


def _whole(text: str | None) -> int | None:
    if isinstance(listed := _parsed(text), list | tuple) and listed:
        text = str(listed[0])  # microsoft's fork prints num_experts as [1]
    # `8 of them` is not a number, although a field of an iteration line may continue after one
    return integer(text) if text is not None and _decimal(text) is not None else None


def _decimal(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else None
    except ValueError:
        return None
    return value if value is not None and isfinite(value) else None


def _parsed(text: str | None) -> Any:
    if text is None or text[:1] not in "[{(" or len(text) > 2000:
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _flag(values: dict[str, str], name: str) -> bool | None:
    return {"True": True, "False": False}.get(values.get(name, ""))


def _dtype(values: dict[str, str]) -> str | None:
    fp16 = values.get("fp16", "")
    if _flag(values, "bf16"):
        return "bf16"
    if fp16 == "True" or fp16.startswith("{'fp16': True") or "'enabled': True" in fp16:
        return "fp16"
    precision = values.get("precision") or values.get("params_dtype", "")
    named = next((name for word, name in _PRECISIONS if word in precision), None)
    return named or ("fp32" if _flag(values, "bf16") is False and fp16 == "False" else None)


def _checkpointing(values: dict[str, str]) -> str | None:
    granularity, all_of_it = values.get("recompute_granularity"), _flag(values, "checkpoint_activations")
    if granularity in ("full", "selective"):
        return granularity
    return "full" if all_of_it else "none" if granularity == "None" or all_of_it is False else None


def _glu(values: dict[str, str]) -> bool | None:
    swiglu, glu = _flag(values, "swiglu"), values.get("glu_activation")
    return swiglu if swiglu or glu is None else glu not in ("None", "False", "")
