"""What is known of one run: plain values.

The fold writes them; a detector writes its own memory (`memory_of`), the judgement `hung` and `fired`, and the core
which sources the run has, which of them cannot be read, whether it is live, when it was read, whether a line arrived
alone, and its Slurm job.

A run is a named training: several attempts (launches), each with phases; its lines may come from several sources.
Instants are seconds of the daemon's steady clock (monitor/clock.py), durations seconds; `unix` translates an instant
for whoever reads it. `None` is unknown. Everything here can be written as JSON.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from monitor.nodes.collectives import Missing, Report
from monitor.nodes.record import Launch
from monitor.run.arrivals import Arrivals
from monitor.run.between import Between
from monitor.run.breakdown.account import Account
from monitor.run.copies import Copies
from monitor.run.history import History
from monitor.run.observed import Observed
from monitor.run.overflows import Overflows
from monitor.run.pace import Intervals, Pace
from monitor.run.parts import Parts
from monitor.run.phases import Phase
from monitor.run.recent import Recent
from monitor.run.steady import Sample, Steady
from monitor.run.stopwatch import Stopwatch
from monitor.run.topology import Topology
from parsers.events import text_of


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


@dataclass(slots=True)
class RunState:
    """One run. See the module's law."""

    name: str
    proven: bool = False
    """Some line proved that this is a training: before that there are no series."""
    phase: Phase = "starting"
    phase_since: float = 0.0
    progress_at: float | None = None
    """When the last line that proves progress was written (read, while it comes live)."""
    first_at: float | None = None
    updated_at: float = 0.0
    live: bool = False
    """False until something came while we watched: until then the log is history."""
    hung: bool = False
    """The judgement of the last tick: the gap that ends now is no example of a good one."""
    lost: bool = False
    """No source of the run can be read."""
    sources: list[str] = field(default_factory=list)
    wall_offset: float = 0.0
    """Unix time less an instant, seconds: 0 unless the wall clock was set since the run was first seen."""
    read_at: float = 0.0
    """When the monitor last read a line of the run that said something."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Source -> what the system said."""

    experiment: Experiment = field(default_factory=Experiment)
    plan: dict[str, str] = field(default_factory=dict)
    """What the arguments of the last launch say that tells experiments apart (experiments.py)."""
    arguments: dict[str, str] = field(default_factory=dict)
    """Of the last launch that told them, those that say what is trained (settings.py),"""
    arguments_of: int = -1
    """the number of that launch, and what it has changed."""
    arguments_changed: list[tuple[str, str, str]] = field(default_factory=list)
    latest: Latest = field(default_factory=Latest)
    attempt: Attempt = field(default_factory=Attempt)
    restarts: int = 0
    ends: list[AttemptEnd] = field(default_factory=list)
    """How the last launches ended."""
    launches: list[Launch] = field(default_factory=list)
    """Launches that have ended, for the record of the nodes: the core takes them out."""
    unplanned_ends: int = 0
    topology: Topology = field(default_factory=Topology)
    environment: dict[str, str] = field(default_factory=dict)
    environment_seen: dict[str, int] = field(default_factory=dict)
    """Variable -> iterations counted when it was last seen: what a restart does not show again is unknown again."""
    software: dict[str, str] = field(default_factory=dict)
    parameters_by_rank: dict[str, int] = field(default_factory=dict)
    train_iterations: int | None = None
    dialect: str | None = None
    driver: str | None = None
    """Who counts the iterations: `iteration` (the training loop), else `trainer`, else `engine`."""
    tflops_formula: str | None = None
    """The formula that reproduces the printed TFLOPs."""

    iterations_total: int = 0
    highest_iteration: int | None = None
    skipped_iterations_total: int = 0
    nan_iterations_total: int = 0
    overflows_total: int = 0
    overflows: Overflows = field(default_factory=Overflows)
    """Which overflow lines and counters of this launch tell the same step."""
    failures_total: dict[str, int] = field(default_factory=dict)
    counted_attempt: int = -1
    """The last attempt whose failure was counted."""
    lost_to: str = "unknown"
    """What the last launch ended by: its lost work is counted under this name."""
    after_finish: bool = False
    """The launch before the present one had finished: what it did is not lost."""
    lost_iterations_total: int = 0
    lost_seconds_total: dict[str, float] = field(default_factory=dict)

    pace: Pace = field(default_factory=Pace)
    steady: Steady = field(default_factory=Steady)
    pure_seconds: float | None = None
    """Seconds of the last iteration, evaluation and saving taken out."""
    step_seconds: float | None = None
    """The same of this very step; None where it cannot be told: the first of a launch, an evaluation within."""
    log_interval: int | None = None
    """Iterations between the last two lines."""
    log_interval_before: int | None = None
    """The same of the launch before."""
    baseline_before: float | None = None
    """Normal seconds per iteration of the launches before."""
    engine_seconds: float = 0.0
    """Seconds of this launch that DeepSpeed's engine reported before the loop's own line came."""
    printed_rates: Sample = field(default_factory=Sample)
    """Samples per second as DeepSpeed's engine prints them where no loop counts."""
    rates_of_loop: bool = False
    """They are those of a loop around several engines."""
    effective_tflops: float | None = None
    """The last one that stood on a line of its own (`Effective Tera Flops per GPU`)."""
    tflops_key: list[int | str | None] = field(default_factory=list)
    """What `tflops_seconds` was worked out for."""
    tflops_seconds: float | None = None
    """TFLOP a GPU in one iteration: over its seconds it is the computed rate."""
    gaps: dict[str, Intervals] = field(default_factory=dict)
    """Phase -> gaps between its signs of progress."""
    gap_ratios: Intervals = field(default_factory=Intervals)
    """Training gaps over what was predicted: data hiccups that were always there."""
    overhead_until: float | None = None
    """Live: when the last evaluation or save since the last iteration line ended."""
    overhead_iteration: int | None = None
    """After which iteration that evaluation or save came, where its line tells."""
    timed_overhead: float = 0.0
    """Evaluation and save seconds that timers told since the last iteration line."""
    evaluated_at: int | None = None
    """The iteration of this launch behind which the last evaluation came."""
    impure: bool = False
    """An evaluation or save happened since the last iteration line."""
    last_iteration_at: float | None = None
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    arrivals: Arrivals = field(default_factory=Arrivals)
    """The same by when lines arrived, where they print no time at all."""
    arrived: float | None = None
    """When the line that is folded was written, as far as its arrival tells: it was the only one of an iteration in
    what was read, and the last of its file. Else None: a buffer, a slow file system or a backlog let it go late.
    """
    counts_steps: bool = False
    """A number that may count samples counts steps."""
    evaluation_interval: int | None = None
    evaluation_due: bool = False
    """The last iteration is one after which the loop evaluates, and nothing of that has been seen yet."""
    evaluation_silent: bool = False
    """The loop went on and nothing had been seen: this launch evaluates nothing, or does not say so."""
    silent_work: str | None = None
    """What may go on behind the last iteration line without a word: key of its gaps, None for nothing."""
    evaluation_sets: int | None = None
    """Validation results in the last whole evaluation: after so many the loop goes on."""
    validations_since: int = 0
    """Validation results since the last iteration line."""
    productive_seconds: float = 0.0
    gpu_seconds: float = 0.0
    """Seconds of all iterations times the GPUs that computed them, those computed again included."""
    seconds_since_checkpoint: float = 0.0
    recent: Recent = field(default_factory=Recent)
    """Lowest and highest figures of the last minute."""
    log_clock_first: float | None = None
    log_clock_last: float | None = None

    memory: Memory = field(default_factory=Memory)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    validations: dict[str, Validation] = field(default_factory=dict)
    custom_values: dict[str, float] = field(default_factory=dict)
    failure: FailureRecord | None = None
    watchdog_ranks: list[int] = field(default_factory=list)
    watchdog_nodes: list[str] = field(default_factory=list)
    buffering: Buffering = field(default_factory=Buffering)
    copies: Copies = field(default_factory=Copies)
    observed: Observed = field(default_factory=Observed)
    """What the consistency checks need (monitor/run/audit/)."""
    last_raw: bytes = b""
    """The last iteration line as it stands in the file."""
    trainer_total: int | None = None
    trainer_declared: bool = False
    trainer_bar: tuple[int, int] | None = None
    """(step, total) of the last progress bar: a metric dict may not name its step."""
    phase_history: list[tuple[float, str]] = field(default_factory=list)
    """The last phase changes, for the page."""
    history: History = field(default_factory=History)
    """What the charts draw."""
    fired: list[tuple[str, str]] = field(default_factory=list)
    """(incident, severity) of all that ever fired: their series stay as 0, they must not vanish between scrapes."""
    memory_of: dict[str, Any] = field(default_factory=dict)
    """Detectors' own memories, by detector name."""
    job: Job | None = None
    """The Slurm job of the present launch, where Slurm was asked and its answer believed; written by the core."""
    progress_clock: float | None = None
    """When the last progress was by the line's own stamp; None where the last step prints none."""
    account: Account = field(default_factory=Account)
    """Timers of the last iteration line."""
    parts: Parts = field(default_factory=Parts)
    """The parts of a step of reinforcement learning."""
    between: Between = field(default_factory=Between)
    """What DeepSpeed's engine does not time, where it alone counts the steps."""
    unheard: float = 0.0
    """Seconds since the last progress in which nobody listened to the log: they are no silence."""
    deaf_since: float | None = None
    """Since when nobody listens; None while somebody does. The run is judged at this instant."""

    def heard_until(self, now: float) -> float:
        """Until when the log is known to have been read."""
        return now if self.deaf_since is None else min(now, self.deaf_since)

    @property
    def last_baseline(self) -> float | None:
        """The last known normal seconds per iteration, of this launch or the one before."""
        return self.pace.baseline or self.baseline_before

    @property
    def last_line(self) -> str:
        """The last iteration line, as evidence."""
        return text_of(self.last_raw)

    def unix(self, instant: float | None) -> float | None:
        """The instant as Unix seconds: for what people and other programs read."""
        return None if instant is None else instant + self.wall_offset
