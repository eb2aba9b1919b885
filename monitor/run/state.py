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

from monitor.breakdown.account import Account
from monitor.charts.history import History
from monitor.charts.recent import Recent
from monitor.charts.steady import Sample, Steady
from monitor.model.topology import Topology
from monitor.nodes.record import Launch
from monitor.run.arrivals import Arrivals
from monitor.run.between import Between
from monitor.run.copies import Copies
from monitor.run.observed import Observed
from monitor.run.overflows import Overflows
from monitor.run.pace import Intervals, Pace
from monitor.run.parts import Parts
from monitor.run.phases import Phase
from monitor.run.records import (
    Attempt,
    AttemptEnd,
    Buffering,
    Checkpoints,
    Experiment,
    FailureRecord,
    Job,
    Latest,
    Memory,
    Validation,
)
from monitor.run.stopwatch import Stopwatch
from parsers.events import text_of


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
    """The last launch that computed something had done what was asked, though it may have failed on its way out."""
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
    """What the consistency checks need (monitor/audit/)."""
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
    def training_done(self) -> bool:
        """Whether the last iteration that was asked for is done."""
        last = self.latest.iteration
        return self.train_iterations is not None and last is not None and last >= self.train_iterations

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
