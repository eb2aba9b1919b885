"""Every fact that a training log can state.

Events are past-tense facts: frozen, slotted, keyword-only. A value that the line did not carry is `None`, never 0.
Units are seconds, bytes, samples, TFLOP/s per GPU; the parsers convert at their edge. This file imports nothing
of ours, so that everything may import it.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import field

from parsers.dialects import MEGATRON_LM
from parsers.redaction import masked

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
"""Colours and other escapes of a terminal."""
MAX_TEXT = 2000
"""Characters of a line that are kept as evidence."""

Failure = Literal[
    "cuda_oom",
    "host_oom",
    "nccl",
    "cuda_error",
    "ecc",
    "bus_error",
    "segfault",
    "python_exception",
    "node_failure",
    "time_limit",
    "preempted",
    "disk_full",
    "killed",
    "stopped",
    "unknown",
]
"""How a run can end before it is done; the closed set of the label `failure`. `stopped`: by a person (Ctrl-C, scancel,
SIGTERM).
"""

Milestone = Literal[
    "launched",
    "initialized",
    "model_built",
    "dataloaders_built",
    "setup_done",
    "training_started",
    "before_training_step",
    "training_done",
]
"""Set-up steps that the training loop announces, in their usual order."""

ExitReason = Literal["finished", "iterations", "duration", "signal", "kill_switch", "unknown"]


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """One fact. `rank` is global where the log tells it; `logged_at` is ISO 8601 as printed, zone only if printed."""

    kind: ClassVar[str] = ""
    proves_training: ClassVar[bool] = True
    """False for lines that programs other than a training print too: they alone make no run."""
    redrawn: ClassVar[bool] = False
    """True where the same line once more says nothing new: who judges does not read it again."""

    rank: int | None = None
    node: str | None = None
    logged_at: str | None = None


# --- progress of the training loop ----------------------------------------------------------------------------------


class IterationLogged(Event, frozen=True, kw_only=True, gc=False):
    """The training loop's own line (Megatron and its forks, gpt-neox)."""

    kind: ClassVar[str] = "iteration"

    iteration: int
    train_iterations: int | None = None
    consumed_samples: int | None = None
    consumed_tokens: int | None = None
    seconds_per_iteration: float | None = None
    learning_rate: float | None = None
    global_batch_size: int | None = None
    lm_loss: float | None = None
    loss_scale: float | None = None
    grad_norm: float | None = None
    params_norm: float | None = None
    num_zeros: float | None = None
    skipped_iterations: int | None = None
    nan_iterations: int | None = None
    samples_per_second: float | None = None
    tokens_per_second_per_gpu: float | None = None
    tokens_per_second: float | None = None
    """Over all GPUs."""
    in_tokens: bool | None = None
    """True: `iteration` counts tokens,"""
    in_samples: bool | None = None
    """or samples: how many there are in an iteration stands on another line."""
    elapsed_seconds: float | None = None
    """Since the start of the training: the time of an iteration is the difference of two."""
    tflops: float | None = None
    sequence_length: int | None = None
    mfu: float | None = None
    hfu: float | None = None
    losses: dict[str, float] = field(default_factory=dict)
    extra: dict[str, float | str] = field(default_factory=dict)
    dialect: str = MEGATRON_LM.name


class EngineStepLogged(Event, frozen=True, kw_only=True, gc=False):
    """A DeepSpeed engine's report of one step, or the bar of NeMo. `form`: which line it was."""

    kind: ClassVar[str] = "engine_step"

    form: Literal["steps", "step", "throughput"]
    step: int
    loss: float | None = None
    losses: dict[str, float] = field(default_factory=dict)
    seconds_per_step: float | None = None
    samples_per_second: float | None = None
    average_samples_per_second: float | None = None
    learning_rate: float | None = None
    skipped_steps: int | None = None
    """Cumulative, unlike Megatron's count per interval."""
    epoch: int | None = None
    micro_step: int | None = None
    train_steps: int | None = None
    dialect: str | None = None
    """None: DeepSpeed's."""
    allocated_bytes: int | None = None
    max_allocated_bytes: int | None = None


class TrainerLogged(Event, frozen=True, kw_only=True, gc=False):
    """A metric dict of HF Trainer (transformers.trainer, `log`)."""

    kind: ClassVar[str] = "trainer_log"

    step: int | None = None
    max_steps: int | None = None
    epoch: float | None = None
    loss: float | None = None
    eval_loss: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    seconds_per_step: float | None = None
    memory_bytes: int | None = None
    extra: dict[str, float | str] = field(default_factory=dict)


class TrainerProgressed(Event, frozen=True, kw_only=True, gc=False):
    """A tqdm bar in iterations. Many programs draw bars: the run decides which one is the training."""

    kind: ClassVar[str] = "trainer_progress"
    proves_training: ClassVar[bool] = False
    redrawn: ClassVar[bool] = True

    step: int
    total: int
    seconds_per_step: float | None = None
    elapsed_seconds: float | None = None
    remaining_seconds: float | None = None
    description: str = ""


class TrainerSummary(Event, frozen=True, kw_only=True, gc=False):
    """HF Trainer's final dict or its `***** train metrics *****` block. Each node may print its own."""

    kind: ClassVar[str] = "trainer_summary"

    train_runtime_seconds: float | None = None
    samples_per_second: float | None = None
    steps_per_second: float | None = None
    train_loss: float | None = None
    epoch: float | None = None


class TrainerSetting(Event, frozen=True, kw_only=True, gc=False):
    """One line under `***** Running training *****`, and that heading itself with an empty name."""

    kind: ClassVar[str] = "trainer_setting"

    name: str
    value: float | str | None = None


class ValidationLogged(Event, frozen=True, kw_only=True, gc=False):
    """A validation or test result. `iteration` is None for the one at the end of training."""

    kind: ClassVar[str] = "validation"

    iteration: int | None = None
    dataset: str = "validation"
    losses: dict[str, float] = field(default_factory=dict)
    perplexities: dict[str, float] = field(default_factory=dict)
    samples: int | None = None


class EvaluationProgressed(Event, frozen=True, kw_only=True, gc=False):
    """`Evaluating iter 3/10`."""

    kind: ClassVar[str] = "evaluation_progress"

    done: int
    total: int
    finished: bool | None = None
    """True: the line says that the evaluation is over."""


# --- set-up ---------------------------------------------------------------------------------------------------------


class ArgumentsDumped(Event, frozen=True, kw_only=True, gc=False):
    """The whole arguments dump, once it has ended. Values stand as printed, gpt-neox's origin word cut off."""

    kind: ClassVar[str] = "arguments"

    values: dict[str, str]
    complete: bool = True


class TopologyLogged(Event, frozen=True, kw_only=True, gc=False):
    """`using world size: 64, data-parallel-size: 1, ...`, DeepSpeed's and the launchers' forms of it."""

    kind: ClassVar[str] = "topology"

    world_size: int | None = None
    data_parallel_size: int | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    context_parallel_size: int | None = None
    nodes: int | None = None
    processes_per_node: int | None = None


class ModelSettingLogged(Event, frozen=True, kw_only=True, gc=False):
    """One more input of the model told outside the arguments dump, e.g. `padded_vocab_size`, `micro_batches`,
    `parameters_billions`, `zero_stage`; `name` is Megatron's argument name where there is one.
    """

    kind: ClassVar[str] = "model_setting"

    name: str
    value: float | str


class SizesTold(Event, frozen=True, kw_only=True, gc=False):
    """Sizes of a launch or its model that programs which do not train print too, by the names of `Topology`."""

    kind: ClassVar[str] = "sizes"
    proves_training: ClassVar[bool] = False

    values: dict[str, int]
    default: bool = False
    """Holds only where nothing else tells."""


class ParametersCounted(Event, frozen=True, kw_only=True, gc=False):
    """` > number of parameters on (tensor, pipeline) model parallel rank (0, 0): 1236`."""

    kind: ClassVar[str] = "parameters"

    parameters: int
    tensor_rank: int | None = None
    pipeline_rank: int | None = None


class BatchSizeRampupPlanned(Event, frozen=True, kw_only=True, gc=False):
    """The global batch size will grow during the run: a legal slowdown."""

    kind: ClassVar[str] = "batch_size_rampup"

    start: int
    end: int
    increment: int
    samples: int


class MilestoneReached(Event, frozen=True, kw_only=True, gc=False):
    """A set-up step was announced."""

    kind: ClassVar[str] = "milestone"

    milestone: Milestone


class IterationsSkipped(Event, frozen=True, kw_only=True, gc=False):
    """BigScience's `--skip-train-iteration-range`: the iteration jumps forward legally."""

    kind: ClassVar[str] = "iterations_skipped"

    first: int
    last: int


class TimeShown(Event, frozen=True, kw_only=True, gc=False):
    """A line that says nothing that is known here, but when it was written: a site's status line, a library's note."""

    kind: ClassVar[str] = "time"
    proves_training: ClassVar[bool] = False


class SoftwareSeen(Event, frozen=True, kw_only=True, gc=False):
    """A version that ds_report or a banner tells."""

    kind: ClassVar[str] = "software"
    proves_training: ClassVar[bool] = False

    name: str
    version: str


class EnvironmentVariableSeen(Event, frozen=True, kw_only=True, gc=False):
    """One variable of the allow-list (environment.py). Secrets stand in the same dumps: never by wildcard."""

    kind: ClassVar[str] = "environment"
    proves_training: ClassVar[bool] = False

    name: str
    value: str


# --- checkpoints ----------------------------------------------------------------------------------------------------


class CheckpointSaveStarted(Event, frozen=True, kw_only=True, gc=False):
    kind: ClassVar[str] = "checkpoint_save_started"

    iteration: int | None = None
    path: str | None = None


class CheckpointSaved(Event, frozen=True, kw_only=True, gc=False):
    kind: ClassVar[str] = "checkpoint_saved"

    iteration: int | None = None
    path: str | None = None
    seconds: float | None = None


class CheckpointSaveScheduled(Event, frozen=True, kw_only=True, gc=False):
    """An asynchronous save was handed over: its success may come many iterations later."""

    kind: ClassVar[str] = "checkpoint_save_scheduled"

    iteration: int | None = None
    path: str | None = None


class CheckpointFileWritten(Event, frozen=True, kw_only=True, gc=False):
    """DeepSpeed writing or having written one file of a checkpoint: progress while saving."""

    kind: ClassVar[str] = "checkpoint_file"

    iteration: int | None = None
    path: str | None = None
    finished: bool = False


class CheckpointLoadStarted(Event, frozen=True, kw_only=True, gc=False):
    kind: ClassVar[str] = "checkpoint_load_started"

    iteration: int | None = None
    path: str | None = None


class CheckpointLoaded(Event, frozen=True, kw_only=True, gc=False):
    kind: ClassVar[str] = "checkpoint_loaded"

    iteration: int | None = None
    path: str | None = None


class CheckpointNotFound(Event, frozen=True, kw_only=True, gc=False):
    """The run starts from random weights."""

    kind: ClassVar[str] = "checkpoint_not_found"

    path: str | None = None


# --- reports --------------------------------------------------------------------------------------------------------


class MemoryReported(Event, frozen=True, kw_only=True, gc=False):
    """Device or host memory. What the programs call MB and GB are MiB and GiB."""

    kind: ClassVar[str] = "memory"

    iteration: int | None = None
    occasion: str | None = None
    allocated_bytes: int | None = None
    max_allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    max_reserved_bytes: int | None = None
    device_used_bytes: int | None = None
    host_used_bytes: int | None = None
    host_used_ratio: float | None = None


class TimersReported(Event, frozen=True, kw_only=True, gc=False):
    """Named timers in seconds, each (min, max) over the ranks; one number gives the same twice (parsers/timers.py).

    `speaker` tells Megatron's timers (averaged over the log interval) from DeepSpeed's (of one step, or summed over
    the steps since its last report).
    """

    kind: ClassVar[str] = "timers"

    speaker: Literal["megatron", "deepspeed"]
    timers: dict[str, tuple[float, float]]
    across: Literal["one", "range", "maximum"] = "one"
    """Whose time it is: one rank's, the least and the most of all ranks', or the most alone."""
    ranks: dict[int, float] = field(default_factory=dict)
    """Rank -> seconds, where the log prints each rank's: of the one timer that such an event names."""


class StragglerReported(Event, frozen=True, kw_only=True, gc=False):
    """Megatron's StragglerDetector: name -> (value, rank). Power is milliwatts although labelled W."""

    kind: ClassVar[str] = "straggler"

    values: dict[str, tuple[float, int]]


class ThroughputReported(Event, frozen=True, kw_only=True, gc=False):
    """TFLOPs or like figures that stand on a line of their own."""

    kind: ClassVar[str] = "throughput"

    tflops: float | None = None
    parameters_billions: float | None = None
    samples_per_second: float | None = None
    seconds_per_step: float | None = None


class OverflowSkipped(Event, frozen=True, kw_only=True, gc=False):
    """A step was skipped because gradients overflowed. `new_loss_scale` equals the old while hysteresis is used up."""

    kind: ClassVar[str] = "overflow"

    loss_scale: float | None = None
    new_loss_scale: float | None = None
    hysteresis: int | None = None


class LossScaleExhausted(Event, frozen=True, kw_only=True, gc=False):
    """`Current loss scale already at minimum - cannot decrease scale anymore.` The program stops."""

    kind: ClassVar[str] = "loss_scale_exhausted"


# --- ends and failures ----------------------------------------------------------------------------------------------


class ProgramExited(Event, frozen=True, kw_only=True, gc=False):
    """The training loop ended by itself: a clean end."""

    kind: ClassVar[str] = "exit"

    reason: ExitReason
    iteration: int | None = None


class ProcessExited(Event, frozen=True, kw_only=True, gc=False):
    """A launcher saw one process end. A negative code is the signal."""

    kind: ClassVar[str] = "process_exit"
    proves_training: ClassVar[bool] = False

    exit_code: int | None = None
    pid: int | None = None
    local_rank: int | None = None
    tasks: str | None = None
    """Slurm's task list as printed, e.g. `0-1,3`."""
    launch: bool = False
    """The whole launch has ended: the script or the program that started it says so."""


class ProcessTerminated(Event, frozen=True, kw_only=True, gc=False):
    """A launcher or scheduler ended processes because something else had failed: a consequence, never the cause."""

    kind: ClassVar[str] = "process_terminated"
    proves_training: ClassVar[bool] = False

    pid: int | None = None


class FailureSeen(Event, frozen=True, kw_only=True, gc=False):
    """A line that names a failure. `consequence` marks a victim (SIGTERM by torchrun): not the cause."""

    kind: ClassVar[str] = "failure"
    proves_training: ClassVar[bool] = False

    failure: Failure
    message: str
    fatal: bool = True
    """False where the text alone does not prove that the run ends."""
    consequence: bool = False
    exit_code: int | None = None
    requested_bytes: int | None = None
    device_bytes: int | None = None
    pattern: str | None = None
    """The configured pattern's name, for a site's own failures."""


class WatchdogTimedOut(Event, frozen=True, kw_only=True, gc=False):
    """PyTorch's NCCL watchdog gave up on a collective. `group_rank` counts within the process group."""

    kind: ClassVar[str] = "nccl_watchdog"

    group_rank: int | None = None
    group: str | None = None
    sequence: int | None = None
    operation: str | None = None
    timeout_seconds: float | None = None
    waited_seconds: float | None = None


class CollectiveStatus(Event, frozen=True, kw_only=True, gc=False):
    """How far a rank had come in a process group as a collective timed out, there or on another rank. `work` is the one
    that it gave up waiting for; all are counted within the group, `group` is the name that its ranks share.
    """

    kind: ClassVar[str] = "nccl_status"
    proves_training: ClassVar[bool] = False

    group: str | None = None
    group_name: str | None = None
    group_rank: int | None = None
    work: int | None = None
    enqueued: int
    completed: int


class TracebackSeen(Event, frozen=True, kw_only=True, gc=False):
    """The last line of a Python traceback. It may belong to a helper (wandb): the run decides."""

    kind: ClassVar[str] = "traceback"
    proves_training: ClassVar[bool] = False

    exception: str
    message: str
    script: str | None = None
    """The file of the outermost frame, where it was seen."""
    top_level: bool | None = None
    """True if it begins at a program's own module: nobody has caught it."""


# --- a site's own lines, and lines that did not parse ---------------------------------------------------------------


class CustomValueLogged(Event, frozen=True, kw_only=True, gc=False):
    kind: ClassVar[str] = "custom_value"
    proves_training: ClassVar[bool] = False

    name: str
    value: float


class CustomProgressLogged(Event, frozen=True, kw_only=True, gc=False):
    kind: ClassVar[str] = "custom_progress"
    proves_training: ClassVar[bool] = False

    name: str


class Malformed(Event, frozen=True, kw_only=True, gc=False):
    """A line that begins like a known one and does not parse: how we learn that upstream changed its format."""

    kind: ClassVar[str] = "malformed"
    proves_training: ClassVar[bool] = False

    rule: str
    text: str


class LineDiscarded(Event, frozen=True, kw_only=True, gc=False):
    """A line longer than the bound was thrown away up to its end."""

    kind: ClassVar[str] = "line_discarded"
    proves_training: ClassVar[bool] = False

    bytes: int


class LogEvent(msgspec.Struct, gc=False):
    """An event and where it stood: physical line (counted by newlines, from 1), the rule that read it, the line."""

    line: int
    rule: str
    event: Event
    raw: bytes | str

    @property
    def text(self) -> str:
        """The line as a person reads it."""
        return text_of(self.raw)


def text_of(raw: bytes | str) -> str:
    """A line without terminal colours, secrets and the blanks around it, at most MAX_TEXT characters."""
    text = raw if isinstance(raw, str) else raw.decode("utf-8", "replace")
    if "\x1b" in text:
        text = ANSI.sub("", text)
    return masked(text).strip()[:MAX_TEXT]


EVENT_TYPES: dict[str, type[Event]] = {
    cls.kind: cls
    for cls in list(globals().values())
    if isinstance(cls, type) and issubclass(cls, Event) and cls is not Event
}


def to_fields(event: Event) -> dict[str, Any]:
    """The event as plain data, absent values and empty collections left out, for `parse --json`."""
    out: dict[str, Any] = {"event": event.kind}
    for name in event.__struct_fields__:
        value = getattr(event, name)
        if value is None or value == {} or value == "":
            continue
        out[name] = value
    return out
