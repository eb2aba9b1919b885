"""What the end of one launch of a run and the beginning of the next come to: what the last one cost, what the next one
has of it. Where one begins attempts.py decides.
"""

import zlib
from typing import Final

import msgspec

from megatron_monitor.model import topology as topologies
from megatron_monitor.model.arguments import kept
from megatron_monitor.parsers import events
from megatron_monitor.parsers.dialects import dialect_of
from megatron_monitor.parsers.events import Event
from megatron_monitor.run.ending import PLANNED, Evidence
from megatron_monitor.run.nodes import freeze_node_list, nodes_of, suspects
from megatron_monitor.run.phases import Phase, drawn_as
from megatron_monitor.run.records import AttemptEnd, plus
from megatron_monitor.run.state import Launch, Past, RunState
from megatron_monitor.run.steps.sources import Trainer

_PHASES_KEPT = 64  # phase changes kept for the page
_ENDS_KEPT = 50
_OPENING_KEPT = 4096
_SET_UP = (
    "arguments", "topology", "environment", "software", "parameters_by_rank", "train_iterations",
    "counts_steps", "trainer",
)  # fmt: skip
"""What of a launch is its set-up."""
_TOTALS = (
    "iterations_total", "skipped_iterations_total", "nan_iterations_total", "overflows_total", "lost_iterations_total",
    "restarts", "unplanned_ends", "productive_seconds", "gpu_seconds",
)  # fmt: skip
_NODES_KEPT = 512


def enter(state: RunState, phase: Phase, at: float) -> None:
    """Enter a phase; staying in it changes nothing. The history keeps no parts of a step: all of them are training."""
    before = state.launch.phase
    if phase != before:
        state.launch.phase, state.launch.phase_since = phase, at
        drawn = drawn_as(phase)
        if drawn != drawn_as(before):
            state.phase_history.append((at, drawn))
            del state.phase_history[:-_PHASES_KEPT]


def count_failure(state: RunState) -> None:
    """Called when the launch is known to have crashed: one failure a launch."""
    launch = state.launch
    if launch.failure is not None and launch.failure.failure != "stopped" and not launch.counted:
        launch.counted = True
        kind = launch.failure.failure
        state.failures_total[kind] = state.failures_total.get(kind, 0) + 1


def note_setting(state: RunState, event: Event) -> None:
    """A fact of the set-up: of the present launch, or of one that begins before the next step."""
    opening = state.launch.opening
    if len(opening) < _OPENING_KEPT:
        opening.append((event.kind, msgspec.to_builtins(event)))  # as plain values, until it is known whose it is
    take_setting(state.launch, event)


def begin_launch(state: RunState, at: float, *, in_process: bool = False) -> None:
    """A new launch of the same run. What was said of the set-up since the last step is its own. `in_process`: nothing
    but its number shows that it began; where no set-up was told, the program goes on in its process, as it was set up.
    """
    before = state.launch
    died = before.phase == "crashed" or _left_behind(state)
    if died:
        count_failure(state)  # one that was doubted until now: it did end the launch
    _note_end(state, at, died=died)
    over = before.phase in ("finished", "exiting") or before.training_done
    state.after_finish = over or (state.after_finish and not before.iterations)
    state.past.baseline = state.last_baseline
    state.past.log_interval = before.log_interval or state.past.log_interval
    state.restarts += 1
    if before.iterations:
        state.computed = before
    launch = state.launch = Launch(before.number + 1, at, phase=before.phase, phase_since=before.phase_since)
    launch.parts.printed = before.parts.printed  # what was learned of them
    if in_process and not before.opening:
        for name in _SET_UP:
            setattr(launch, name, getattr(before, name))
        if before.phase in ("exiting", "finished"):
            launch.train_iterations = None  # that training was whole: the next one has a length of its own
    launch.opening, before.opening = before.opening, []
    for kind, fields in launch.opening:
        take_setting(launch, msgspec.convert(fields, events.EVENT_TYPES[kind]))
    for cursor in state.copies.cursors.values():
        cursor.last_iteration = None
    enter(state, "starting", at)


def _left_behind(state: RunState) -> bool:
    """The last that the launch told was an exception: the next launch proves that nobody caught it."""
    failure, launch = state.launch.failure, state.launch
    if failure is None or launch.phase in ("finished", "exiting"):
        return False
    return failure.failure in ("python_exception", "stopped") and failure.after == launch.iterations


def _note_end(state: RunState, at: float, *, died: bool) -> None:
    """How the launch ended that the next one replaces: what it lost work to, and whether anybody had planned it."""
    attempt, finished = state.launch, state.launch.phase in ("finished", "exiting")
    failure = None if finished else attempt.failure  # else a warning of a process on its way out
    told = failure or Evidence("silence", state.progress_at or at)
    failed_at = attempt.ending.since if failure is not None else None
    cause = "hang" if attempt.hung else told.failure or "unknown"
    planned = finished or cause in PLANNED or attempt.mixed  # of two trainings in one log none may have ended
    state.unplanned_ends += not planned
    named = suspects(state) if failure is not None else []
    state.ends.append(
        AttemptEnd(
            number=attempt.number,
            failure=cause,
            message=told.message[:300],
            at=max(told.at, failed_at or told.at),
            started_at=state.first_at if attempt.started_at is None else attempt.started_at,
            iterations=attempt.iterations,
            last_iteration=attempt.last_iteration,
            checkpoint=state.past.checkpoints.last_iteration,
            planned=planned,
            nodes=(named or nodes_of(state))[:_NODES_KEPT],
            culprit=bool(named),
            crashed=died,
            watched=state.live,
            line=told.line,
        )
    )
    del state.ends[:-_ENDS_KEPT]


def add_seconds(state: RunState, seconds: float) -> None:
    """Seconds of computing. What a restart computes again was taken off when it began."""
    launch = state.launch
    launch.seconds += seconds
    state.productive_seconds += seconds
    state.gpu_seconds += seconds * (launch.topology.world_size or 0)
    launch.seconds_since_checkpoint += seconds


def take_back(state: RunState) -> None:
    """What the launch has counted will be reported again, or was no training."""
    launch = state.launch
    state.iterations_total -= launch.iterations
    launch.iterations, launch.last_iteration = 0, None
    add_seconds(state, -launch.seconds)
    # the GPUs or the last checkpoint may be others than when they were told
    state.gpu_seconds = max(0.0, state.gpu_seconds)
    launch.seconds_since_checkpoint = max(0.0, launch.seconds_since_checkpoint)


def withdraw(state: RunState) -> Launch:
    """What was taken for the launch's training was none: the launch as it is without that."""
    take_back(state)
    before = state.launch
    launch = state.launch = Launch(before.number, before.started_at, phase=before.phase, phase_since=before.phase_since)
    for name in ("boundaries", "nodes", *_SET_UP):
        setattr(launch, name, getattr(before, name))
    launch.trainer = Trainer()
    return launch


def retire(state: RunState, at: float) -> None:
    """Another experiment has begun in its log: nothing more comes of this one."""
    launch, before = state.launch, state.computed
    if state.ends and not (launch.iterations or launch.failed or "arguments" in launch.boundaries):
        end = state.ends.pop()  # the set-up lines before the arguments were the other's
        state.restarts -= 1
        state.unplanned_ends -= not end.planned
        state.launch = Launch(end.number, end.started_at)
        if before is not None and before.number == end.number:
            state.launch, state.computed = before, None
        died: Phase = "training" if end.failure == "unknown" else "crashed"
        enter(state, "finished" if _finished(end) else died, at)
    if state.launch.phase == "exiting":
        enter(state, "finished", at)


def program_of(dialect: str | None) -> str:
    """Whose launches teach of each other: all ages of Megatron's line are one program."""
    return "megatron" if dialect_of(dialect).megatron else dialect or ""


def first_of_launch(state: RunState, iteration: int, *, first: bool) -> None:
    """The first iteration of a launch tells whose training goes on, and how much work the end of the last one cost.
    Where a loop has counted beside DeepSpeed's engine before, the engine's first step does not tell yet.
    """
    launch = state.launch
    if state.first_iteration is None:
        state.first_iteration = iteration
    freeze_node_list(launch)
    if launch.driver == "engine" and state.past.engine_beside and first:
        return
    launch.resumed = True
    program = program_of(launch.dialect)
    another = bool(state.past.programs) and program not in state.past.programs
    if another:
        state.past = Past([program], launch.driver)  # another program's training: nothing that is known is of it
    launch.from_zero = state.past.from_zero = state.past.from_zero or launch.first_iteration == 0
    if another:
        return
    if program not in state.past.programs:
        state.past.programs.append(program)
    state.past.driver = launch.driver
    if launch.number:
        _count_lost(state, iteration)


def _count_lost(state: RunState, iteration: int) -> None:
    """What the end of the launch before cost, as the present one goes on with `iteration`."""
    before = next((end for end in reversed(state.ends) if end.last_iteration is not None), None)
    if before is None or before.last_iteration is None or _finished(before):
        return
    lost = before.last_iteration + 1 - iteration  # what lies above was lost by an earlier restart already
    if lost > 0:
        seconds = lost * (state.last_baseline or state.launch.latest.seconds_per_iteration or 0.0)
        cause = state.ends[-1].failure
        state.lost_iterations_total = plus(state.lost_iterations_total, lost)
        state.lost_seconds_total[cause] = state.lost_seconds_total.get(cause, 0.0) + seconds
        state.productive_seconds = max(0.0, state.productive_seconds - seconds)


def precede(state: RunState, past: RunState, at: float) -> None:
    """What a file tells that is older than all that the run was known by: its launches come before the run's first."""
    if past.launch.iterations or past.launch.failed:
        begin_launch(past, at)
    if not past.ends:
        return
    first, next_first = past.first_iteration, state.first_iteration
    if first is not None and (next_first is None or first <= next_first):  # else it comes amid what is known
        if next_first is not None:
            _count_lost(past, next_first)
        state.first_iteration = first
    state.first_at = min(filter(None, (past.first_at, state.first_at)), default=None)
    for name in _TOTALS:
        setattr(state, name, getattr(state, name) + getattr(past, name))
    for name in ("failures_total", "lost_seconds_total"):
        of_state = getattr(state, name)
        for kind, more in getattr(past, name).items():
            of_state[kind] = of_state.get(kind, 0) + more
    state.ends = [*past.ends, *state.ends][-_ENDS_KEPT:]


def _finished(end: AttemptEnd) -> bool:
    """Nothing of a launch that came to its end is lost."""
    return end.planned and end.failure not in PLANNED


# --- what a launch says of itself: layout, arguments, environment, versions -----------------------------------------


def stamp_of(event: events.ArgumentsDumped) -> str:
    """What tells one arguments dump from another: they carry no time."""
    return str(zlib.crc32(repr(sorted(event.values.items())).encode("utf-8", "replace")))


JOB_VARIABLE: Final = "SLURM_JOB_ID"


def printed_job(event: Event) -> str:
    """The job's id that the line prints, if it is such a line."""
    return event.value if isinstance(event, events.EnvironmentVariableSeen) and event.name == JOB_VARIABLE else ""


def take_setting(launch: Launch, event: Event) -> None:
    """One more fact of the set-up."""
    match event:
        case events.EnvironmentVariableSeen():
            if launch.iterations and printed_job(event):
                return  # text, if no launch begins behind it
            launch.environment[event.name] = event.value
            if event.name not in topologies.NOMINAL_SIZES:
                return
        case events.SoftwareSeen():
            launch.software[event.name] = event.version
            return
        case events.ParametersCounted():  # one rank counted its own: the sum over ranks is the model
            launch.parameters_by_rank[f"{event.tensor_rank},{event.pipeline_rank}"] = event.parameters
            launch.topology.parameters = plus(0, sum(launch.parameters_by_rank.values()))
            return
        case events.ArgumentsDumped():
            if launch.boundaries.setdefault("arguments", stamp_of(event)) == stamp_of(event):
                launch.arguments = kept(event.values)  # another dump is a critic's
    changed = topologies.apply(launch.topology, event)
    if changed is not None:
        launch.topology = changed
        if launch.train_iterations is None:
            launch.train_iterations = changed.train_iterations


def is_known(launch: Launch, event: Event) -> bool:
    """Whether it is a setting that says nothing new: some programs print one again behind each iteration."""
    return type(event) is events.ModelSettingLogged and topologies.apply(launch.topology, event) is None
