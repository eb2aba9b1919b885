"""What is reported beside the iterations: memory, timers, throughput, stragglers, overflows, saves and
loads; a site's own lines, and lines that did not parse.
"""

from typing import Literal

from msgspec import field

from megatron_monitor.parsers.events.base import Event, Remark


class MemoryReported(Event, frozen=True, kw_only=True, gc=False, tag="memory"):
    """Device or host memory. What the programs call MB and GB are MiB and GiB."""

    iteration: int | None = None
    occasion: str | None = None
    allocated_bytes: int | None = None
    max_allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    max_reserved_bytes: int | None = None
    device_used_bytes: int | None = None
    host_used_bytes: int | None = None
    host_used_ratio: float | None = None


class TimersReported(Event, frozen=True, kw_only=True, gc=False, tag="timers"):
    """Named timers in seconds, each (min, max) over the ranks; one number gives the same twice (parsers/timers.py).

    `speaker` tells Megatron's timers (averaged over the log interval) from DeepSpeed's (of one step, or summed over
    the steps since its last report).
    """

    speaker: Literal["megatron", "deepspeed"]
    timers: dict[str, tuple[float, float]]
    across: Literal["one", "range", "maximum"] = "one"
    """Whose time it is: one rank's, the least and the most of all ranks', or the most alone."""
    ranks: dict[int, float] = field(default_factory=dict)
    """Rank -> seconds, where the log prints each rank's: of the one timer that such an event names."""
    of_next: bool | None = None
    """True: all parts of the iteration that the next event reports, from its own line; what is none is out of its time.
    """


class StragglerReported(Event, frozen=True, kw_only=True, gc=False, tag="straggler"):
    """Megatron's StragglerDetector: name -> (value, rank). Power is milliwatts although labelled W."""

    values: dict[str, tuple[float, int]]


class ThroughputReported(Event, frozen=True, kw_only=True, gc=False, tag="throughput"):
    """TFLOPs or like figures that stand on a line of their own."""

    tflops: float | None = None
    parameters_billions: float | None = None
    samples_per_second: float | None = None
    seconds_per_step: float | None = None


class OverflowSkipped(Event, frozen=True, kw_only=True, gc=False, tag="overflow"):
    """A step was skipped because gradients overflowed. `new_loss_scale` equals the old while hysteresis is used up."""

    loss_scale: float | None = None
    new_loss_scale: float | None = None
    hysteresis: int | None = None


class LossScaleExhausted(Event, frozen=True, kw_only=True, gc=False, tag="loss_scale_exhausted"):
    """`Current loss scale already at minimum - cannot decrease scale anymore.` The program stops."""


class _Checkpoint(Event, frozen=True, kw_only=True, gc=False):
    iteration: int | None = None
    path: str | None = None


class CheckpointSaveStarted(_Checkpoint, frozen=True, kw_only=True, gc=False, tag="checkpoint_save_started"):
    """A save has begun."""


class CheckpointSaved(_Checkpoint, frozen=True, kw_only=True, gc=False, tag="checkpoint_saved"):
    """A save is whole."""

    seconds: float | None = None


class CheckpointSaveScheduled(_Checkpoint, frozen=True, kw_only=True, gc=False, tag="checkpoint_save_scheduled"):
    """An asynchronous save was handed over: its success may come many iterations later."""


class CheckpointFileWritten(_Checkpoint, frozen=True, kw_only=True, gc=False, tag="checkpoint_file"):
    """DeepSpeed writing or having written one file of a checkpoint: progress while saving."""

    finished: bool = False


class CheckpointLoadStarted(_Checkpoint, frozen=True, kw_only=True, gc=False, tag="checkpoint_load_started"):
    """A load has begun."""


class CheckpointLoaded(_Checkpoint, frozen=True, kw_only=True, gc=False, tag="checkpoint_loaded"):
    """A load is done."""


class CheckpointNotFound(Event, frozen=True, kw_only=True, gc=False, tag="checkpoint_not_found"):
    """The run starts from random weights."""

    path: str | None = None


class CustomProgressLogged(Remark, frozen=True, kw_only=True, gc=False, tag="custom_progress"):
    name: str


class Malformed(Remark, frozen=True, kw_only=True, gc=False, tag="malformed"):
    """A line that begins like a known one and does not parse: how we learn that upstream changed its format."""

    rule: str
    text: str


class LineDiscarded(Remark, frozen=True, kw_only=True, gc=False, tag="line_discarded"):
    """A line longer than the bound was thrown away up to its end."""

    bytes: int
