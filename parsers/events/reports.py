"""Reports besides the iterations: memory, timers, throughput, stragglers, overflows, saves and loads, lines of a user's
format, and lines that could not be parsed.
"""

from typing import Literal

from msgspec import field

from megatron_monitor.parsers.events.base import Event, Remark


class MemoryReported(Event, frozen=True, kw_only=True, gc=False, tag="memory"):
    """Device or host memory. Values that programs print as MB and GB are MiB and GiB."""

    iteration: int | None = None
    occasion: str | None = None
    allocated_bytes: int | None = None
    max_allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    max_reserved_bytes: int | None = None
    device_bytes: int | None = None
    """Memory of the GPU."""
    host_used_bytes: int | None = None
    host_used_ratio: float | None = None


class TimersReported(Event, frozen=True, kw_only=True, gc=False, tag="timers"):
    """Named timers in seconds, each (minimum, maximum) over the ranks. A single number is both (parsers/timers.py).

    `speaker` distinguishes Megatron's timers (means over the log interval) from DeepSpeed's (of one step, or sums over
    the steps since its last report).
    """

    speaker: Literal["megatron", "deepspeed"]
    timers: dict[str, tuple[float, float]]
    across: Literal["one", "range", "maximum"] = "one"
    """The ranks of the times: one rank, minimum and maximum over all ranks, or only the maximum."""
    ranks: dict[int, float] = field(default_factory=dict)
    """Rank -> seconds, if the log prints the time of each rank. Such an event has one timer."""
    of_next: bool | None = None
    """True if the timers describe the iteration that the next event reports. Time without a timer belongs to
    no part.
    """


class StragglerReported(Event, frozen=True, kw_only=True, gc=False, tag="straggler"):
    """A comparison of the ranks' speed, in a unit of the report: of the slowest rank, which one it is, and of the
    fastest.
    """

    lowest: float
    slowest: int
    highest: float


class ThroughputReported(Event, frozen=True, kw_only=True, gc=False, tag="throughput"):
    """TFLOPs or similar figures on a line of their own."""

    tflops: float | None = None
    parameters_billions: float | None = None
    samples_per_second: float | None = None
    seconds_per_step: float | None = None


class OverflowSkipped(Event, frozen=True, kw_only=True, gc=False, tag="overflow"):
    """A step was skipped because gradients overflowed. `new_loss_scale` equals the old one until the hysteresis is used
    up.
    """

    loss_scale: float | None = None
    new_loss_scale: float | None = None
    hysteresis: int | None = None


class LossScaleExhausted(Event, frozen=True, kw_only=True, gc=False, tag="loss_scale_exhausted"):
    """`Current loss scale already at minimum - cannot decrease scale anymore.` The program then stops."""


class _Checkpoint(Event, frozen=True, kw_only=True, gc=False):
    iteration: int | None = None
    path: str | None = None


class CheckpointSaveStarted(_Checkpoint, frozen=True, kw_only=True, gc=False, tag="checkpoint_save_started"):
    """A save has begun."""


class CheckpointSaved(_Checkpoint, frozen=True, kw_only=True, gc=False, tag="checkpoint_saved"):
    """A save is complete."""

    seconds: float | None = None


class CheckpointSaveScheduled(_Checkpoint, frozen=True, kw_only=True, gc=False, tag="checkpoint_save_scheduled"):
    """An asynchronous save was started in the background. Its success may follow many iterations later."""


class CheckpointFileWritten(_Checkpoint, frozen=True, kw_only=True, gc=False, tag="checkpoint_file"):
    """DeepSpeed writes or has written one file of a checkpoint: progress during a save."""

    finished: bool = False


class CheckpointLoadStarted(_Checkpoint, frozen=True, kw_only=True, gc=False, tag="checkpoint_load_started"):
    """A load has begun."""


class CheckpointLoaded(_Checkpoint, frozen=True, kw_only=True, gc=False, tag="checkpoint_loaded"):
    """A load is complete."""


class CheckpointNotFound(Event, frozen=True, kw_only=True, gc=False, tag="checkpoint_not_found"):
    """No checkpoint exists: the run starts from random weights."""

    path: str | None = None


class CustomProgressLogged(Remark, frozen=True, kw_only=True, gc=False, tag="custom_progress"):
    name: str


class Malformed(Remark, frozen=True, kw_only=True, gc=False, tag="malformed"):
    """A line that begins like a known one and cannot be parsed. It shows that a program changed its format."""

    rule: str
    text: str


class LineDiscarded(Remark, frozen=True, kw_only=True, gc=False, tag="line_discarded"):
    """A line longer than the bound was dropped."""

    bytes: int
