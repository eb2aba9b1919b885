"""Parts of the state of runs and attempts: values of a step, ends, saves, the Slurm job. Plain values."""

import dataclasses
from collections.abc import Callable
from typing import Final

from msgspec import Struct, field

from megatron_monitor.parsers.events import LogEvent


def nothing() -> None:
    """The default of `EventContext.settle`: do nothing."""


class EventContext(Struct, gc=False):
    """The context of an event that is folded."""

    source: str
    """Its file."""
    at: float
    """Instant at which its line was written (fold.py)."""
    live: bool
    clock: float | None
    """The line's stamp, on the log's clock."""
    entry: LogEvent
    settle: Callable[[], None] = nothing
    """Called before a step begins another attempt, or another step source takes over."""


@dataclasses.dataclass(slots=True)
class LatestValues:
    """The values of the last counted iteration, as printed."""

    iteration: int | None = None
    consumed_samples: int | None = None
    consumed_tokens: int | None = None
    learning_rate: float | None = None
    global_batch_size: int | None = None
    sequence_length: int | None = None
    lm_loss: float | None = None
    loss_scale: float | None = None
    grad_norm: float | None = None
    seconds_per_iteration: float | None = None
    """As printed, or from stamps."""
    samples_per_second: float | None = None
    tokens_per_second_per_gpu: float | None = None
    tflops: float | None = None
    mfu: float | None = None
    losses: dict[str, float] = dataclasses.field(default_factory=dict)
    tokens_per_second: float | None = None
    """Over all GPUs, as printed."""


class Experiment(Struct, frozen=True):
    """The experiment of a log that a run is."""

    log: str = ""
    """The run of the log's first experiment."""
    label: str = ""
    """Suffix of the run's name: the experiment's id, else its number; empty for the first."""


class AttemptEnd(Struct):
    """How an attempt ended, kept when the next one begins."""

    number: int
    failure: str
    message: str
    at: float
    started_at: float | None
    iterations: int
    last_iteration: int | None
    checkpoint: int | None
    """Iteration of the last complete checkpoint at its end."""
    planned: bool
    nodes: list[str] = field(default_factory=list)
    """The failed nodes, or all nodes of the attempt if no line names the failed one."""
    culprit: bool = False
    """True: `nodes` are the failed ones."""
    crashed: bool = False
    """True: a line reported a failure. Otherwise only the next attempt shows the end."""
    line: str = ""
    """The line that names the failure."""
    watched: bool = False
    """True: it ended while the log was followed."""


class MemoryPeaks(Struct):
    """Largest figures over the ranks that print them, in bytes, of one attempt."""

    allocated: int | None = None
    max_allocated: int | None = None
    reserved: int | None = None
    max_reserved: int | None = None
    host_used_ratio: float | None = None
    device_bytes: int | None = None
    """Memory of a GPU."""
    report: str = ""
    """Iteration and occasion of the report, as printed."""


class Checkpoints(Struct):
    """Saves of the run."""

    last_iteration: int | None = None
    save_seconds: float | None = None
    saves: int = 0
    durations: dict[int, float] = field(default_factory=dict)
    """Iteration -> seconds of the save after it, for the last saves."""


class Save(Struct):
    """The present or the last save of an attempt."""

    iteration: int | None = None
    started_at: float | None = None
    stamp: str | None = None
    """Stamp of the line that began it, as printed."""
    pending_async: bool = False
    """True: it continues in the background."""
    files_iteration: int | None = None
    """Iteration of the last reported checkpoint file."""


class Validation(Struct):
    """The last result of one validation set."""

    iteration: int | None = None
    loss: float | None = None


class SlurmJob(Struct):
    """Slurm's last answer about the run's job (run/job.py). Empty text is unknown; times are Unix seconds."""

    id: str
    state: str
    """Slurm's state: RUNNING, TIMEOUT, NODE_FAIL ..."""
    array_id: str = ""
    """`8_3`: task 3 of the array 8."""
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None
    user: str = ""
    uid: int | None = None
    name: str = ""
    partition: str = ""
    nodes: str = ""
    """Slurm's list of its present or last nodes."""
    excluded: str = ""
    """Excluded nodes."""
    restarts: int = 0
    """Number of requeues."""
    time_limit: float | None = None
    """Seconds; None: unlimited."""
    submitted_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    """For a running job: when its time limit ends."""
    ran: float | None = None
    """Seconds since it was started, without those in which it was suspended. None for a job of the accounting."""
    suspended_at: float | None = None
    """When it was last suspended, or resumed."""
    directory: str = ""
    command: str = ""
    """The batch script and its arguments."""
    options: list[str] = field(default_factory=list)
    """Options that Slurm shows, in the form of sbatch."""
    output: str = ""
    errors: str = ""
    comment: str = ""
    """The owner's comment."""
    batch: bool = False
    requeue: bool = False
    """It may be requeued."""
    components: bool = False
    """True: it is a part of a heterogeneous job."""
    cancelled_by: str = ""
    asked_at: float = 0.0
    """An instant."""
    ended_as: str = ""
    """For a requeued job: the state of its end before that, by the accounting. Empty: unknown."""
    ended_on: str = ""
    """Its nodes at that end."""

    @property
    def number(self) -> str:
        """Its id for people and for Slurm's clients: `8_3` for an array task."""
        return self.array_id or self.id


class FailedRestart(Struct):
    """A remediation that should have led to a new attempt, which does not begin."""

    why: str
    at: float
    """An instant."""
    remediation: str
    job: str
    actions: list[str] = field(default_factory=list)
    """The actions and their outcomes."""


# Sums over what a log prints.
#
# Each number of a log is bounded (parsers/engine/fields.py), but sums are not, and beyond 64 bits the state cannot be
# saved. No training reaches the bound, so a total at the bound is known to be wrong.

MOST: Final = 10**18


def plus(total: int, more: int) -> int:
    """Return the sum, at most MOST and at least -MOST."""
    total += more
    return total if -MOST <= total <= MOST else MOST if total > 0 else -MOST
