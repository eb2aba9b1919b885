"""What the state of a run is made of: its launches, failures, saves, its job ... Plain values, as in state.py."""

from __future__ import annotations

from dataclasses import dataclass, field

from monitor.nodes.collectives import Missing, Report


@dataclass(slots=True)
class Latest:
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
    params_norm: float | None = None
    num_zeros: float | None = None
    seconds_per_iteration: float | None = None
    """As printed, or as its stamps tell."""
    samples_per_second: float | None = None
    tokens_per_second_per_gpu: float | None = None
    tflops: float | None = None
    mfu: float | None = None
    hfu: float | None = None
    losses: dict[str, float] = field(default_factory=dict)
    tokens_per_second: float | None = None
    """Over all GPUs, as printed."""


@dataclass(slots=True)
class Attempt:
    """One launch of the run."""

    number: int = 0
    started_at: float | None = None
    first_iteration: int | None = None
    last_iteration: int | None = None
    iterations: int = 0
    first_iteration_seconds: float | None = None
    last_delta: int | None = None
    """Iterations between its last two lines."""
    launched_clock: float | None = None
    """When its launcher says that it began, on the log's own clock."""
    boundaries: dict[str, str] = field(default_factory=dict)
    """Set-up marks seen, kind -> its log time or source: tells a copy of the set-up from a second one."""
    nodes: dict[str, int] = field(default_factory=dict)
    """Names of nodes that stand before its lines -> lines seen, at most nodes.MOST of them."""
    node_list: str | None = None
    """Slurm's list of its nodes as it was when the launch first moved or failed: the next one's dump comes before its
    first line does."""
    rank_nodes: dict[int, str] = field(default_factory=dict)
    """Rank -> its node, where a line names both."""
    task_nodes: dict[int, str] = field(default_factory=dict)
    """srun's task -> its node. A task is a rank, or under torchrun a node."""
    faults: list[tuple[str, str | None, int | None]] = field(default_factory=list)
    """(kind, node, rank) of what the driver or the scheduler said of a node: `ecc`, `xid`, `node_failure`."""
    collectives: dict[str, Report] = field(default_factory=dict)
    """Rank and process group -> how far it had come as a collective timed out."""
    dumped: Missing | None = None
    """Whom the flight recorder's dumps name,"""
    dumped_stacks: dict[int, list[str]] = field(default_factory=dict)
    """and where those were, where it was recorded."""
    processes_ended: int = 0
    processes_terminated: int = 0
    failures: int = 0
    first_failure_at: float | None = None
    doubtful: bool = False
    """What failed at `first_failure_at` may have been caught: nothing has told yet that a process ended."""
    proved_at: float | None = None
    """When something told so of what was doubtful before."""
    uncaught_after: int | None = None
    """Iterations of this launch as a traceback came that nobody had caught."""
    alone: bool = False
    """A traceback that nobody had caught carries no rank: the process that writes this log has ended."""
    done_at: float | None = None
    """When the training loop said that it is done."""
    job_failed_at: float | None = None
    """When, after that, its job ended badly: the training's work is whole."""
    cut_at: float | None = None
    """When its processes, which should have ended since, were ended by force."""
    highest_before: int | None = None
    """The highest iteration that any launch before this one had reached."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """Which of a log's experiments a run is."""

    log: str = ""
    """The run of the log's first experiment."""
    number: int = 1
    label: str = ""
    """What the run's name has beside the log's: the experiment's own id, else its number; empty for the first."""


@dataclass(slots=True)
class FailureRecord:
    """The failure that ended an attempt, or the newest that may."""

    failure: str
    message: str
    at: float
    line: str = ""
    fatal: bool = True
    consequence: bool = False
    rank: int | None = None
    node: str | None = None
    logged_at: str | None = None
    exit_code: int | None = None
    helper: bool = False
    """Another program of the job told it, not the training."""
    after: int = 0
    """Iterations of the launch when it was told: what the launch went on from is not what ended it."""


@dataclass(slots=True)
class AttemptEnd:
    """How a launch ended, kept when the next one begins."""

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
    """The nodes that failed, or that the launch ran on where no line names the one."""
    culprit: bool = False
    """`nodes` are those that failed."""
    crashed: bool = False
    """A line told that it died; else the next launch only began where it had been."""
    line: str = ""
    """The line that names the failure."""
    watched: bool = False
    """It died while the log was followed."""


@dataclass(slots=True)
class Memory:
    """Largest figures over the ranks that print them, in bytes, of the current attempt."""

    allocated: int | None = None
    max_allocated: int | None = None
    reserved: int | None = None
    max_reserved: int | None = None
    host_used: int | None = None
    host_used_ratio: float | None = None
    report: str = ""
    """Which report the figures are of: iteration and occasion, as printed."""
    by_rank: dict[int, int] = field(default_factory=dict)
    """Rank -> max reserved, else max allocated, of the last report."""


@dataclass(slots=True)
class Checkpoints:
    """Saves of the run."""

    last_iteration: int | None = None
    last_at: float | None = None
    started_iteration: int | None = None
    started_at: float | None = None
    save_seconds: float | None = None
    started_stamp: str | None = None
    """The log's own time of the line that began the save, as printed."""
    pending_async: bool = False
    saves: int = 0
    took: dict[int, float] = field(default_factory=dict)
    """Iteration -> seconds of the save after it, of the last ones."""
    files_iteration: int | None = None
    """Of which the last file of a checkpoint was told."""


@dataclass(slots=True)
class Validation:
    """The last result of one validation set."""

    iteration: int | None = None
    loss: float | None = None
    perplexity: float | None = None


@dataclass(slots=True)
class Buffering:
    """Whether a launcher holds lines back and writes them in bursts (docs/incident-record.md, "How logs behave")."""

    burst_at: float | None = None
    burst_iterations: int = 0
    burst_seconds: float = 0.0
    silence_before: float = 0.0
    longest_silence: float | None = None
    """The longest silence that a burst explained."""


@dataclass(slots=True)
class Job:
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
    output: str = ""
    errors: str = ""
    batch: bool = False
    requeue: bool = False
    """It may be requeued."""
    components: bool = False
    """It is one of several jobs that run as one."""
    cancelled_by: str = ""
    asked_at: float = 0.0
    """An instant."""
