"""Who lives how long: a run, its present attempt, what its attempts have taught. Plain values.

    RunState   a named training: its totals, its history, its sources; all of its attempts
    Attempt     all that begins with an attempt: who counts its steps, phase and pace, what it printed last, how it ends
    Past       what attempts of one program have taught: silences, pace, saves; another program's attempt has none of it
    Job        what the scheduler says of the job that the present attempt runs in (records.py)
    Stream     one source of a run (streams.py): where it stands in the present attempt

A restart is a new `Attempt` (attempts.py): nothing of the one before is reset by hand, and what the new one has not
said is unknown. The fold writes these; a detector writes its own memory (`memory_of`), the judgement `hung`, and the
core what it alone knows: sources, what of them is unreadable, when they were read, if the run is live, the job.

Instants are seconds of the daemon's steady clock (system/clock.py), durations seconds; `unix` translates an instant
for whoever reads it. `None` is unknown. Everything here can be written as JSON.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from megatron_monitor.breakdown.account import TimerReports
from megatron_monitor.charts.history import History
from megatron_monitor.charts.steady import Steady
from megatron_monitor.model.topology import Topology
from megatron_monitor.nodes.collectives import Missing, Report
from megatron_monitor.parsers.events import text_of
from megatron_monitor.run.coverage import Coverage
from megatron_monitor.run.ending import RUNNING, Ending, Evidence
from megatron_monitor.run.phases import Parts, Phase
from megatron_monitor.run.records import (
    AttemptEnd,
    Buffering,
    Checkpoints,
    Experiment,
    FailedRestart,
    LatestValues,
    MemoryPeaks,
    Save,
    SlurmJob,
    Validation,
)
from megatron_monitor.run.silence import Intervals, Silences
from megatron_monitor.run.steps.copies import CountedSteps, Overflows
from megatron_monitor.run.steps.pace import Histogram, Pace
from megatron_monitor.run.steps.sources import EngineState, StepSource, TrainerState
from megatron_monitor.run.steps.timing import StepTimer


@dataclass(slots=True)
class Attempt:
    """One attempt of a run, from its first word to the next one's."""

    number: int = 0
    started_at: float | None = None
    launcher_clock: float | None = None
    """When its launcher says that it began, on the log's own clock."""
    boundaries: dict[str, str] = field(default_factory=dict)
    """Set-up marks seen, kind -> its log time or source: tells a copy of the set-up from a second one."""
    setup_events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """What was said of the set-up since its last step: the next attempt's, if one begins now."""
    phase: Phase = "starting"
    phase_since: float = 0.0
    progress_clock: float | None = None
    """When the last progress was by the line's own stamp, or by one since the step before; None where there is none."""
    stamped_at: int | None = None
    """How many iterations had been counted when a line last had a stamp."""
    hung: bool = False
    """The judgement of the last tick: the gap that ends now is no example of a good one."""

    arguments: dict[str, str] = field(default_factory=dict)
    """Those of its arguments that say what is trained (monitor/model/arguments.py),"""
    arguments_changed: list[tuple[str, str, str]] = field(default_factory=list)
    """and what of them differs from the attempt before that told its own."""
    topology: Topology = field(default_factory=Topology)
    environment: dict[str, str] = field(default_factory=dict)
    software: dict[str, str] = field(default_factory=dict)
    parameters_by_rank: dict[str, int] = field(default_factory=dict)
    train_iterations: int | None = None
    loaded: int | None = None
    """The iteration of the checkpoint that it goes on from."""

    inferred: list[tuple[str, str]] = field(default_factory=list)
    """The last lines that look like steps and that nobody reads: their numbers and their losses."""
    step_source: StepSource | None = None
    """Who counts the iterations (sources.py),"""
    counts_steps: bool = False
    """A number of the loop's line that may count samples counts steps."""
    trainer: TrainerState = field(default_factory=TrainerState)
    engine: EngineState = field(default_factory=EngineState)
    """and what is known of each that may."""
    dialect: str | None = None
    latest: LatestValues = field(default_factory=LatestValues)
    resumed: bool = False
    """Its first iteration has told how much work the end of the attempt before cost."""
    from_zero: bool = False
    """Iterations of its program count from 0: it may have gone on with a later one."""
    first_iteration: int | None = None
    last_iteration: int | None = None
    iterations: int = 0
    seconds: float = 0.0
    """That those took."""
    first_iteration_seconds: float | None = None
    mixed: bool = False
    """Another training writes into the same log at the same time,"""
    others: int = 0
    """and so many of its steps came since the last one that counted."""
    last_delta: int | None = None
    """Iterations between its last two lines."""
    log_interval: int | None = None
    """The same, as it usually is."""
    last_raw: bytes = b""
    """The last iteration line as it stands in the file."""
    unexplained: int = 0
    """Lines whose printed TFLOPs no formula gave: after a few of them the search ends."""
    overflows: Overflows = field(default_factory=Overflows)
    """Which overflow lines and counters tell the same step."""

    pace: Pace = field(default_factory=Pace)
    pure_seconds: float | None = None
    """Seconds of the last iteration, evaluation and saving taken out."""
    step_seconds: float | None = None
    """The same of this very step; None where it cannot be told: the first of an attempt, an evaluation within."""
    effective_tflops: float | None = None
    """The last one that stood on a line of its own (`Effective Tera Flops per GPU`)."""
    tflops_formula: str | None = None
    """The formula that reproduces the printed TFLOPs."""
    tflops_key: list[int | str | None] = field(default_factory=list)
    """What `tflops_seconds` was worked out for."""
    tflops_seconds: float | None = None
    """TFLOP a GPU in one iteration: over its seconds it is the computed rate."""
    gap_ratios: Intervals = field(default_factory=Intervals)
    """Training gaps over what was predicted: data hiccups that were always there."""
    step_timer: StepTimer = field(default_factory=StepTimer)
    """The time since the last report of a step."""
    timers: TimerReports = field(default_factory=TimerReports)
    """Timers of the last iteration line."""
    parts: Parts = field(default_factory=Parts)
    """The parts of a step of reinforcement learning."""

    evaluation_interval: int | None = None
    evaluation_due: bool = False
    """The last iteration is one after which the loop evaluates, and nothing of that has been seen yet."""
    evaluation_silent: bool = False
    """The loop went on and nothing had been seen: it evaluates nothing, or does not say so."""
    silent_work: str | None = None
    """What may go on behind the last iteration line without a word: the kind of its silence, None for nothing."""
    evaluation_sets: int | None = None
    """Validation results in the last whole evaluation: after so many the loop goes on."""
    validations_since: int = 0
    """Validation results since the last iteration line."""
    validations: dict[str, Validation] = field(default_factory=dict)
    save: Save = field(default_factory=Save)
    seconds_since_checkpoint: float = 0.0
    memory: MemoryPeaks = field(default_factory=MemoryPeaks)

    nodes: dict[str, int] = field(default_factory=dict)
    """Names of nodes that stand before its lines -> lines seen, at most nodes.MOST of them."""
    node_list: str | None = None
    """Slurm's list of its nodes as it was when the attempt first moved or failed: the next one's dump comes before its
    first line does."""
    rank_nodes: dict[int, str] = field(default_factory=dict)
    """Rank -> its node, where a line names both."""
    task_nodes: dict[int, str] = field(default_factory=dict)
    """srun's task -> its node. A task is a rank, or under torchrun a node."""
    collectives: dict[str, Report] = field(default_factory=dict)
    """Rank and process group -> how far it had come as a collective timed out."""
    dumped: Missing | None = None
    """Whom the flight recorder's dumps name,"""
    dumped_stacks: dict[int, list[str]] = field(default_factory=dict)
    """and where those were, where it was recorded."""

    evidence: list[Evidence] = field(default_factory=list)
    """What was told of its end since its last step (evidence.py),"""
    ending: Ending = RUNNING
    """and what that comes to: worked out anew whenever it changes (ending.py)."""
    counted: bool = False
    """Its failure is in the run's total."""

    def forget(self) -> None:
        """Nothing of what was told was its end."""
        self.evidence, self.ending = [], RUNNING

    @property
    def failure(self) -> Evidence | None:
        """What it died of; while it goes on, what it would have died of if it ended now."""
        return self.ending.cause

    @property
    def foreign(self) -> bool:
        """Whether all that was told of an end is that of a step which came before any word of a training."""
        return self.failure is not None and self.failure.sort == "exit" and self.failure.helper

    @property
    def failed(self) -> bool:
        """Something has ended it, be it caught yet."""
        return self.ending.since is not None

    @property
    def unconfirmed(self) -> bool:
        """It has failed, and that may have been caught: nothing has told yet that a process ended."""
        return self.ending.state == "crashed" and not self.ending.certain

    @property
    def watchdog_ranks(self) -> list[int]:
        """Whose watchdogs gave up, in their order."""
        return list(dict.fromkeys(row.rank for row in self._watchdogs() if row.rank is not None))

    @property
    def watchdog_nodes(self) -> list[str]:
        """The nodes of those, where their lines name them."""
        return list(dict.fromkeys(row.node for row in self._watchdogs() if row.node))

    def _watchdogs(self) -> list[Evidence]:
        return [row for row in self.evidence if row.sort == "watchdog"]

    @property
    def whole_lines(self) -> bool:
        """Whether each report of a step holds all that is printed of it: the loop's own line does."""
        return self.step_source == "iteration"

    @property
    def training_done(self) -> bool:
        """Whether the last iteration that was asked for is done: where the first is 0, it is one less."""
        last, first = self.latest.iteration, int(self.from_zero)
        return self.train_iterations is not None and last is not None and last + first >= self.train_iterations

    @property
    def resumes_as(self) -> Phase:
        """Where an evaluation or a save leads that is over: behind the last step or the loop's last word to the end."""
        return "exiting" if self.training_done or self.ending.done_at is not None else "training"

    @property
    def last_line(self) -> str:
        """The last iteration line, as evidence."""
        return text_of(self.last_raw)


@dataclass(slots=True)
class LearnedBehavior:
    """What the attempts of one program have taught of the next."""

    programs: list[str] = field(default_factory=list)
    """Whose steps counted, as `program_of` calls them: a loop may have DeepSpeed's engine beside it."""
    step_source: StepSource | None = None
    """Who counted."""
    has_engine_steps: bool = False
    """A loop counts, and DeepSpeed's engine reports the same steps."""
    log_interval: int | None = None
    """Iterations between two lines, of the attempt before."""
    baseline: float | None = None
    """Normal seconds per iteration of the attempts before."""
    from_zero: bool = False
    """Its iterations count from 0."""
    highest_iteration: int | None = None
    silences: Silences = field(default_factory=Silences)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)


@dataclass(slots=True)
class RunState:
    """One run. See the module's law."""

    name: str
    proven: bool = False
    """Some line proved that this is a training: before that there are no series."""
    document: bool = False
    """Its file quotes what programs print: a failure in it proves no training."""
    progress_at: float | None = None
    """When the last line that proves progress was written (read, while it comes live)."""
    first_at: float | None = None
    updated_at: float = 0.0
    live: bool = False
    """False until something came while we watched: until then the log is history."""
    lost: bool = False
    """No source of the run can be read."""
    sources: dict[str, None] = field(default_factory=dict)
    """In the order in which they came: there may be thousands."""
    wall_offset: float = 0.0
    """Unix time less an instant, seconds: 0 unless the wall clock was set since the run was first seen."""
    read_at: float = 0.0
    """When the monitor last read a line of the run that said something."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Source -> what the system said."""
    experiment: Experiment = field(default_factory=Experiment)
    job: SlurmJob | None = None
    """The Slurm job of the present attempt, where Slurm was asked and its answer believed; written by the core."""
    pid_file: str = ""
    """Where the launcher leaves its process id, as configured; written by the core."""
    second_job: str = ""
    """Another job that runs and writes this run, too; written by the core."""
    unrestarted: FailedRestart | None = None
    """Why a remediation's restart brought no attempt; written by the core."""

    attempt: Attempt = field(default_factory=Attempt)
    computed: Attempt | None = None
    """The last attempt before it that finished an iteration: what a finished log is reported by."""
    learned: LearnedBehavior = field(default_factory=LearnedBehavior)
    first_iteration: int | None = None
    """Of the run: with which its first attempt began."""
    restarts: int = 0
    ends: list[AttemptEnd] = field(default_factory=list)
    """How the last attempts ended."""
    unplanned_ends: int = 0
    plan: dict[str, str] = field(default_factory=dict)
    """What the last arguments say that tells experiments apart (experiments.py)."""
    arguments: dict[str, str] = field(default_factory=dict)
    """Of the last attempt that told its own."""
    after_finish: bool = False
    """The last attempt that computed something had done what was asked, though it may have failed on its way out."""

    iterations_total: int = 0
    skipped_iterations_total: int = 0
    nan_iterations_total: int = 0
    overflows_total: int = 0
    failures_total: dict[str, int] = field(default_factory=dict)
    lost_iterations_total: int = 0
    lost_seconds_total: dict[str, float] = field(default_factory=dict)
    productive_seconds: float = 0.0
    gpu_seconds: float = 0.0
    """Seconds of all iterations times the GPUs that computed them, those computed again included."""
    seconds: Histogram = field(default_factory=Histogram)
    """Of all iterations."""

    steady: Steady = field(default_factory=Steady)
    history: History = field(default_factory=History)
    """What the charts draw."""
    phase_history: list[tuple[float, str]] = field(default_factory=list)
    """The last phase changes, for the page."""
    memory_of: dict[str, Any] = field(default_factory=dict)
    """Detectors' own memories, by detector name."""

    copies: CountedSteps = field(default_factory=CountedSteps)
    buffering: Buffering = field(default_factory=Buffering)
    log_clock_first: float | None = None
    log_clock_last: float | None = None
    arrived: float | None = None
    """When the line that is folded was written, as far as its arrival tells: it was the only one of an iteration in
    what was read, and the last of its file. Else None: a buffer, a slow file system or a backlog let it go late.
    """
    coverage: Coverage = field(default_factory=Coverage)
    """For how long it was observed, written by the core: silence is what was observed since the last progress."""
    no_heartbeat: bool = False
    """Its lines are pushed by agents that do not say that they live: its silence may be theirs."""

    def reported(self) -> RunState:
        """As a report shows a finished log: by the last attempt that finished an iteration."""
        if self.attempt.iterations or self.computed is None:
            return self
        shown = copy.copy(self)
        shown.attempt = self.computed
        return shown

    @property
    def last_baseline(self) -> float | None:
        """The last known normal seconds per iteration, of this attempt or the one before."""
        return self.attempt.pace.baseline or self.learned.baseline

    def unix(self, instant: float | None) -> float | None:
        """The instant as Unix seconds: for what people and other programs read."""
        return None if instant is None else instant + self.wall_offset
