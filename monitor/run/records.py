"""What runs and attempts are made of: values of a step, failures, ends, saves, the job ... Plain values."""

import dataclasses
from collections.abc import Callable
from typing import Final

from msgspec import Struct, field

from megatron_monitor.parsers.events import LogEvent


def nothing() -> None:
    """Nobody waits for an attempt."""


class EventContext(Struct, gc=False):
    """What stands around an event that is folded."""

    source: str
    """The file it came from."""
    at: float
    """When its line was written (fold.py)."""
    live: bool
    clock: float | None
    """The line's own stamp, on the log's own clock."""
    entry: LogEvent
    settle: Callable[[], None] = nothing
    """To be called before a step begins another attempt, or another source counts."""


@dataclasses.dataclass(slots=True)
class LatestValues:
    """The values of the last iteration that counted, as the log says them."""

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
    """As printed, or as its stamps tell."""
    samples_per_second: float | None = None
    tokens_per_second_per_gpu: float | None = None
    tflops: float | None = None
    mfu: float | None = None
    hfu: float | None = None
    losses: dict[str, float] = dataclasses.field(default_factory=dict)
    tokens_per_second: float | None = None
    """Over all GPUs, as printed."""


class Experiment(Struct, frozen=True):
    """Which of a log's experiments a run is."""

    log: str = ""
    """The run of the log's first experiment."""
    label: str = ""
    """What the run's name has beside the log's: the experiment's own id, else its number; empty for the first."""


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
    """The last whole checkpoint at its end."""
    planned: bool
    nodes: list[str] = field(default_factory=list)
    """The nodes that failed, or that the attempt ran on where no line names the one."""
    culprit: bool = False
    """`nodes` are those that failed."""
    crashed: bool = False
    """A line told that it died; else the next attempt only began where it had been."""
    line: str = ""
    """The line that names the failure."""
    watched: bool = False
    """It died while the log was followed."""


class MemoryPeaks(Struct):
    """Largest figures over the ranks that print them, in bytes, of one attempt."""

    allocated: int | None = None
    max_allocated: int | None = None
    reserved: int | None = None
    max_reserved: int | None = None
    host_used_ratio: float | None = None
    report: str = ""
    """Which report the figures are of: iteration and occasion, as printed."""
    by_rank: dict[int, int] = field(default_factory=dict)
    """Rank -> max reserved, else max allocated, of the last report."""


class Checkpoints(Struct):
    """Saves of the run."""

    last_iteration: int | None = None
    save_seconds: float | None = None
    saves: int = 0
    durations: dict[int, float] = field(default_factory=dict)
    """Iteration -> seconds of the save after it, of the last ones."""


class Save(Struct):
    """The save that an attempt is at, or was last."""

    iteration: int | None = None
    started_at: float | None = None
    stamp: str | None = None
    """The log's own time of the line that began it, as printed."""
    pending_async: bool = False
    """It goes on in the background."""
    files_iteration: int | None = None
    """Of which the last file of a checkpoint was told."""


class Validation(Struct):
    """The last result of one validation set."""

    iteration: int | None = None
    loss: float | None = None


class Buffering(Struct):
    """Whether a launcher writes lines in bursts (docs/development/incident-record.md, "How logs behave")."""

    burst_iterations: int = 0
    burst_seconds: float = 0.0
    silence_before: float = 0.0


class SlurmJob(Struct):
    """What Slurm said of the run's job when it was last asked (run/job.py). Empty text is unknown; times are Unix
    seconds.
    """

    id: str
    state: str
    """As Slurm calls it: RUNNING, TIMEOUT, NODE_FAIL ..."""
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
    """Slurm's list of the nodes that it has, or had last."""
    excluded: str = ""
    """The nodes that it asked to leave out."""
    restarts: int = 0
    """How often it was requeued."""
    time_limit: float | None = None
    """Seconds; None: unlimited."""
    submitted_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    """While it runs: when its time limit comes."""
    suspended_at: float | None = None
    """When it was last suspended, or resumed."""
    directory: str = ""
    command: str = ""
    """The batch script and its arguments."""
    options: list[str] = field(default_factory=list)
    """What of its options Slurm tells, as sbatch takes them."""
    output: str = ""
    errors: str = ""
    comment: str = ""
    """What its owner wrote."""
    batch: bool = False
    requeue: bool = False
    """It may be requeued."""
    components: bool = False
    """It is one of several jobs that run as one."""
    cancelled_by: str = ""
    asked_at: float = 0.0
    """An instant."""
    ended_as: str = ""
    """Of one that was requeued: the state in which it ended before that, by the accounting. Empty: not known."""
    ended_on: str = ""
    """The nodes that it had then."""


class FailedRestart(Struct):
    """A remediation ended the run's job, or found it ended, and the attempt that it was to bring does not come."""

    why: str
    at: float
    """An instant."""
    remediation: str
    job: str
    actions: list[str] = field(default_factory=list)
    """What was done, and what came of it."""


# Sums over what a log prints.
#
# Each number of a log is bounded (parsers/engine/fields.py), a sum of many is not: beyond 64 bits the state could not
# be saved. No training counts as far as the bound, so a total that stands there is known to be wrong.

MOST: Final = 10**18


def plus(total: int, more: int) -> int:
    """The total with more, at most MOST and at least -MOST."""
    total += more
    return total if -MOST <= total <= MOST else MOST if total > 0 else -MOST
