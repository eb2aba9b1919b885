"""The state of a run, with the lifetime of each part. Plain values.

    RunState         a named training with all its attempts: totals, history, sources
    Attempt          one start of the training: step source, phase, pace, last values, ending
    LearnedBehavior  what attempts of one program teach about the next: silences, pace, saves
    SlurmJob         Slurm's facts about the job of the present attempt (records.py)
    StreamPosition   the position of one source in the present attempt (steps/copies.py)

A restart creates a new `Attempt` (attempts.py), so nothing is reset by hand and everything unreported is unknown.
fold.py writes the state; a rule writes its own memory (`memory_of`), the evaluation `hung`, and the core what only it
knows: sources, unreadable sources, the last read, whether the run is live, the job.

Instants are seconds of the daemon's steady clock (system/clock.py), durations are seconds; `unix` converts an instant.
None is unknown. All values can be written as JSON.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from megatron_monitor.breakdown.account import TimerReports
from megatron_monitor.charts.history import History
from megatron_monitor.model.topology import Topology
from megatron_monitor.nodes.collectives import Report
from megatron_monitor.parsers.events import AnyEvent, text_of
from megatron_monitor.run import records
from megatron_monitor.run.ending import RUNNING, Ending, Evidence
from megatron_monitor.run.phases import Parts, Phase
from megatron_monitor.run.silence import Coverage, Intervals, Silences
from megatron_monitor.run.steps.copies import CountedSteps, Overflows
from megatron_monitor.run.steps.pace import Histogram, Pace, Steady
from megatron_monitor.run.steps.sources import EngineState, StepSource, TrainerState
from megatron_monitor.run.steps.timing import StepTimer

_REPORTS = 64  # reports without a step: as many ranks may repeat their last line in turn


@dataclass(slots=True)
class Attempt:
    """One attempt of a run, from its first line to the first line of the next attempt."""

    number: int = 0
    started_at: float | None = None
    boundaries: dict[str, str] = field(default_factory=dict)
    """Kind of set-up mark -> its stamp or source: distinguishes a copy of the set-up from a second set-up."""
    setup_events: list[AnyEvent] = field(default_factory=list)
    """The set-up events since its last step: they belong to the next attempt if one begins now."""
    phase: Phase = "starting"
    phase_since: float = 0.0
    progress_clock: float | None = None
    """Time of the last progress by its line's stamp, or a stamp since the step before; None without stamps."""
    stamped_at: int | None = None
    """Number of counted iterations at the last stamped line."""
    hung: bool = False
    """Result of the last evaluation: a gap that ends while hung is not a normal gap."""

    arguments: dict[str, str] = field(default_factory=dict)
    """The arguments that describe the training (monitor/model/arguments.py)."""
    arguments_changed: list[tuple[str, str, str]] = field(default_factory=list)
    """(name, old, new) of arguments that differ from the last attempt with arguments."""
    topology: Topology = field(default_factory=Topology)
    environment: dict[str, str] = field(default_factory=dict)
    software: dict[str, str] = field(default_factory=dict)
    parameters_by_rank: dict[str, int] = field(default_factory=dict)
    train_iterations: int | None = None
    loaded: int | None = None
    """Iteration of the loaded checkpoint."""

    inferred: list[tuple[str, str]] = field(default_factory=list)
    """(numbers, losses) of the last reports whose step is unknown."""
    step_source: StepSource | None = None
    """The kind of lines that count iterations (steps/sources.py)."""
    trainer: TrainerState = field(default_factory=TrainerState)
    engine: EngineState = field(default_factory=EngineState)
    format: str | None = None
    latest: records.LatestValues = field(default_factory=records.LatestValues)
    resumed: bool = False
    """True: its first iteration has shown how much work the end of the attempt before cost."""
    from_zero: bool = False
    """True: its program counts iterations from 0, even if this attempt began with a later one."""
    first_iteration: int | None = None
    last_iteration: int | None = None
    iterations: int = 0
    seconds: float = 0.0
    """Duration of these iterations."""
    first_iteration_seconds: float | None = None
    begun: tuple[int, float] | None = None
    """(iterations, seconds) since the begin of the bar that reported its first iteration, until a pace is measured."""
    last_report: tuple[int, float | None] | None = None
    """(iteration, loss) of the last report of a loss, unless one line has all values of a step."""
    others: int = 0
    """Number of the other training's steps since the last counted one."""
    last_delta: int | None = None
    """Iterations between its last two lines."""
    log_interval: int | None = None
    """The usual number of iterations between two lines."""
    last_raw: bytes = b""
    """The last iteration line, unchanged."""
    unexplained: int = 0
    """Lines with printed TFLOPs that no formula explains: after a few the search ends."""
    overflows: Overflows = field(default_factory=Overflows)
    """Matches overflow lines and counters of the same step."""

    pace: Pace = field(default_factory=Pace)
    pure_seconds: float | None = None
    """Seconds of the last iteration without evaluation and saving."""
    step_seconds: float | None = None
    """The same for the last step alone; None if unknown: the first step of an attempt, or one with an evaluation."""
    effective_tflops: float | None = None
    """The last value of a separate line (`Effective Tera Flops per GPU`)."""
    summary_rate: float | None = None
    """Samples per second of the whole training, in the last line of HF's Trainer."""
    tflops_formula: str | None = None
    """The formula that reproduces the printed TFLOPs."""
    gap_ratios: Intervals = field(default_factory=Intervals)
    """Training gaps divided by predicted ones: usual hiccups of the data loader."""
    step_timer: StepTimer = field(default_factory=StepTimer)
    """The time since the last report of a step."""
    timers: TimerReports = field(default_factory=TimerReports)
    """Timers of the last iteration line."""
    parts: Parts = field(default_factory=Parts)
    """The parts of a step of reinforcement learning."""

    evaluation_interval: int | None = None
    evaluation_due: bool = False
    """True: the loop evaluates after the last iteration, and no line shows it yet."""
    evaluation_silent: bool = False
    """True: the loop continued without a line of the evaluation: none happens, or none is printed."""
    silent_work: str | None = None
    """Kind of work that may follow the last iteration without a line; None: nothing."""
    evaluation_sets: int | None = None
    """Validation results in the last complete evaluation: after so many the loop continues."""
    validations_since: int = 0
    """Validation results since the last iteration line."""
    validations: dict[str, records.Validation] = field(default_factory=dict)
    save: records.Save = field(default_factory=records.Save)
    seconds_since_checkpoint: float = 0.0
    memory: records.MemoryPeaks = field(default_factory=records.MemoryPeaks)

    nodes: dict[str, int] = field(default_factory=dict)
    """Node named before lines -> number of lines; a bounded number of nodes."""
    node_list: str | None = None
    """Slurm's node list at the attempt's first progress or failure: the next attempt's environment is printed before
    its first line."""
    rank_nodes: dict[int, str] = field(default_factory=dict)
    """Rank -> its node, from lines that name both."""
    task_nodes: dict[int, str] = field(default_factory=dict)
    """Task of srun -> its node. A task is a rank, or under torchrun a node."""
    collectives: dict[str, Report] = field(default_factory=dict)
    """Rank and process group -> the rank's state when a collective timed out."""

    evidence: list[Evidence] = field(default_factory=list)
    """Evidence of an end since its last step (evidence.py)."""
    ending: Ending = RUNNING
    """The conclusion from the evidence, recomputed at each change (ending.py)."""
    counted: bool = False
    """True: its failure is in the run's total."""

    def is_new(self, report: tuple[str, str]) -> bool:
        """Record a report whose step is unknown. Return False for a copy."""
        if report in self.inferred:
            return False
        self.inferred = [*self.inferred[1 - _REPORTS :], report]
        return True

    def forget(self) -> None:
        """Drop the evidence: the attempt did not end."""
        self.evidence, self.ending = [], RUNNING

    @property
    def failure(self) -> Evidence | None:
        """The evidence that is the cause of its end; while it runs, the probable cause if it ended now."""
        return self.ending.cause

    @property
    def foreign(self) -> bool:
        """True if the only evidence of an end comes from a step before the training."""
        return self.failure is not None and self.failure.sort == "exit" and self.failure.helper

    @property
    def failed(self) -> bool:
        """True if a failure has ended it, even if the program may still catch the failure."""
        return self.ending.since is not None

    @property
    def unconfirmed(self) -> bool:
        """True if it has failed and the program may have caught the failure: no process is known to have ended."""
        return self.ending.state == "crashed" and not self.ending.certain

    @property
    def watchdog_ranks(self) -> list[int]:
        """Ranks with a watchdog time-out, in order."""
        return list(dict.fromkeys(row.rank for row in self._watchdogs() if row.rank is not None))

    @property
    def watchdog_nodes(self) -> list[str]:
        """Nodes of these ranks, as far as named."""
        return list(dict.fromkeys(row.node for row in self._watchdogs() if row.node))

    def _watchdogs(self) -> list[Evidence]:
        return [row for row in self.evidence if row.sort == "watchdog"]

    @property
    def every(self) -> int:
        """The usual number of iterations between two lines; 1 if unknown."""
        return self.log_interval or 1

    @property
    def expected_gap(self) -> float | None:
        """Seconds between two lines by the predicted pace; None if unknown."""
        seconds = self.pace.predicted()
        return None if seconds is None else seconds * self.every

    @property
    def training_done(self) -> bool:
        """True if the last requested iteration is done. If the first is 0, the last is one less."""
        last, first = self.latest.iteration, int(self.from_zero)
        return self.train_iterations is not None and last is not None and last + first >= self.train_iterations

    @property
    def resumes_as(self) -> Phase:
        """Phase after an evaluation or a save: `exiting` after the last step or the loop's end, otherwise training."""
        return "exiting" if self.training_done or self.ending.done_at is not None else "training"

    @property
    def last_line(self) -> str:
        """The last iteration line as text."""
        return text_of(self.last_raw)


@dataclass(slots=True)
class LearnedBehavior:
    """What attempts of one program teach about the next. Attempts of another program start without it."""

    programs: list[str] = field(default_factory=list)
    """Programs with counted steps, by `program_name`: a loop may use DeepSpeed's engine."""
    step_source: StepSource | None = None
    """The step source that counted."""
    has_engine_steps: bool = False
    """True: a loop counts, and DeepSpeed's engine reports the same steps."""
    log_interval: int | None = None
    """Iterations between two lines, of the attempt before."""
    baseline: float | None = None
    """Normal seconds per iteration of the attempts before."""
    from_zero: bool = False
    """True: its iterations count from 0."""
    highest_iteration: int | None = None
    epochs: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Epoch -> (iterations before it, its last number), if lines count within epochs of unknown length."""
    silences: Silences = field(default_factory=Silences)
    checkpoints: records.Checkpoints = field(default_factory=records.Checkpoints)


@dataclass(slots=True)
class RunState:
    """One run. The module's docstring says who writes what."""

    name: str
    proven: bool = False
    """True: a line proved that this is a training. Before, it has no series."""
    document: bool = False
    """True: its file is a document that quotes logs: a failure in it does not prove a training."""
    progress_at: float | None = None
    """Instant at which the last line with progress was written, or read if it was live."""
    first_at: float | None = None
    updated_at: float = 0.0
    live: bool = False
    """True once lines came live. Before, the log is history."""
    lost: bool = False
    """True: no source of the run can be read."""
    sources: dict[str, None] = field(default_factory=dict)
    """Names of the sources in order of appearance. There may be thousands."""
    wall_offset: float = 0.0
    """Unix time minus instant, seconds: 0 unless the wall clock was set."""
    read_at: float = 0.0
    """Instant at which the monitor last read an event of the run."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Source -> the system's error message."""
    experiment: records.Experiment = field(default_factory=records.Experiment)
    job: records.SlurmJob | None = None
    """The Slurm job of the present attempt by an accepted answer of Slurm. Written by the core."""
    second_job: str = ""
    """Another running job that also writes this run. Written by the core."""
    unrestarted: records.FailedRestart | None = None
    """Why a remediation's restart led to no attempt. Written by the core."""
    remediated: set[str] | None = None
    """Ids of the executed remediations whose end is known to people; None: those so far are. Written by the core."""

    attempt: Attempt = field(default_factory=Attempt)
    computed: Attempt | None = None
    """The last earlier attempt that finished an iteration: reports of a finished log use it."""
    learned: LearnedBehavior = field(default_factory=LearnedBehavior)
    first_iteration: int | None = None
    """First iteration of the run's first attempt."""
    restarts: int = 0
    ends: list[records.AttemptEnd] = field(default_factory=list)
    """How the last attempts ended."""
    unplanned_ends: int = 0
    plan: dict[str, str] = field(default_factory=dict)
    """The last arguments that distinguish experiments (experiments.py)."""
    arguments: dict[str, str] = field(default_factory=dict)
    """Arguments of the last attempt that printed them."""
    mixed: bool = False
    """True: two trainings have written into the same log at the same time. Then no end and no lost work is known."""
    after_finish: bool = False
    """True: the last attempt with steps completed the training, even if it failed while exiting."""

    iterations_total: int = 0
    skipped_iterations_total: int = 0
    nan_iterations_total: int = 0
    overflows_total: int = 0
    failures_total: dict[str, int] = field(default_factory=dict)
    lost_iterations_total: int = 0
    lost_seconds_total: dict[str, float] = field(default_factory=dict)
    productive_seconds: float = 0.0
    gpu_seconds: float = 0.0
    """Seconds of all iterations times their GPUs, repeated iterations included."""
    seconds: Histogram = field(default_factory=Histogram)
    """Seconds of all iterations."""

    steady: Steady = field(default_factory=Steady)
    history: History = field(default_factory=History)
    """Data of the charts."""
    phase_before: str = ""
    """The phase before the present one."""
    memory_of: dict[str, Any] = field(default_factory=dict)
    """Rule -> its own state."""

    copies: CountedSteps = field(default_factory=CountedSteps)
    log_clock_first: float | None = None
    log_clock_last: float | None = None
    arrived: float | None = None
    """Instant at which the present line arrived, if that is the time of writing: it was the only iteration line of the
    read and the last line of the file. None: a buffer, a slow file system or a backlog may have delayed it.
    """
    coverage: Coverage = field(default_factory=Coverage)
    """How long the run was observed: only observed time since the last progress is silence. Written by the core."""
    no_heartbeat: bool = False
    """True: its agents send no heartbeats, so its silence may be theirs."""

    def reported(self) -> RunState:
        """Return the state for a report: with the last attempt that finished an iteration."""
        if self.attempt.iterations or self.computed is None:
            return self
        shown = copy.copy(self)
        shown.attempt = self.computed
        return shown

    @property
    def suspended(self) -> bool:
        """True if Slurm has suspended the job, which explains its silence."""
        return self.job is not None and self.job.state in ("SUSPENDED", "STOPPED")

    def silent_since(self, at: float | None = None) -> float | None:
        """Return the instant from which silence counts: the last progress plus unobserved time, or the end of the job's
        suspension. None without progress.
        """
        job = self.job
        if self.progress_at is None:
            return None
        since = self.progress_at + self.coverage.unobserved(at)
        if job is None or job.suspended_at is None or job.state != "RUNNING":
            return since
        return max(since, job.suspended_at - self.wall_offset)

    def add_seconds(self, seconds: float) -> None:
        """Add computing time. Repeated work was subtracted when the attempt began."""
        attempt = self.attempt
        attempt.seconds += seconds
        self.productive_seconds += seconds
        self.gpu_seconds += seconds * (attempt.topology.world_size or 0)
        attempt.seconds_since_checkpoint += seconds

    @property
    def last_baseline(self) -> float | None:
        """Normal seconds per iteration of this attempt, or else of the one before."""
        return self.attempt.pace.baseline or self.learned.baseline

    def unix(self, instant: float | None) -> float | None:
        """Return an instant as Unix seconds."""
        return None if instant is None else instant + self.wall_offset
