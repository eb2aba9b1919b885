"""What the end of one attempt of a run and the beginning of the next come to: what the last one cost, what the next one
has of it. Where one begins attempts.py decides.
"""

import zlib
from typing import Final

import msgspec

from megatron_monitor.model import topology as topologies
from megatron_monitor.model.arguments import model_arguments
from megatron_monitor.parsers import events
from megatron_monitor.parsers.dialects import dialect_of
from megatron_monitor.parsers.events import Event
from megatron_monitor.run.ending import PLANNED, Evidence
from megatron_monitor.run.nodes import freeze_node_list, nodes_of, suspects
from megatron_monitor.run.phases import Phase, drawn_as
from megatron_monitor.run.records import AttemptEnd, plus
from megatron_monitor.run.state import Attempt, LearnedBehavior, RunState
from megatron_monitor.run.steps.sources import TrainerState

_PHASES_KEPT = 64  # phase changes kept for the page
_ENDS_KEPT = 50
_SETUP_KEPT = 4096
_SET_UP = (
    "arguments", "topology", "environment", "software", "parameters_by_rank", "train_iterations",
    "counts_steps", "trainer",
)  # fmt: skip
"""What of an attempt is its set-up."""
_TOTALS = (
    "iterations_total", "skipped_iterations_total", "nan_iterations_total", "overflows_total", "lost_iterations_total",
    "restarts", "unplanned_ends", "productive_seconds", "gpu_seconds",
)  # fmt: skip
_NODES_KEPT = 512


def enter(state: RunState, phase: Phase, at: float) -> None:
    """Enter a phase; staying in it changes nothing. The history keeps no parts of a step: all of them are training."""
    before = state.attempt.phase
    if phase != before:
        state.attempt.phase, state.attempt.phase_since = phase, at
        drawn = drawn_as(phase)
        if drawn != drawn_as(before):
            state.phase_history.append((at, drawn))
            del state.phase_history[:-_PHASES_KEPT]


def count_failure(state: RunState) -> None:
    """Called when the attempt is known to have crashed: one failure an attempt."""
    attempt = state.attempt
    if attempt.failure is not None and attempt.failure.failure != "stopped" and not attempt.counted:
        attempt.counted = True
        kind = attempt.failure.failure
        state.failures_total[kind] = state.failures_total.get(kind, 0) + 1


def note_setting(state: RunState, event: Event) -> None:
    """A fact of the set-up: of the present attempt, or of one that begins before the next step."""
    setup_events = state.attempt.setup_events
    if len(setup_events) < _SETUP_KEPT:
        setup_events.append((event.kind, msgspec.to_builtins(event)))  # as plain values, until it is known whose it is
    take_setting(state.attempt, event)


def begin_attempt(state: RunState, at: float, *, in_process: bool = False) -> None:
    """A new attempt of the same run. What was said of the set-up since the last step is its own. `in_process`: nothing
    but its number shows that it began; where no set-up was told, the program goes on in its process, as it was set up.
    """
    before = state.attempt
    died = before.phase == "crashed" or _left_behind(state)
    if died:
        count_failure(state)  # one that was doubted until now: it did end the attempt
    _note_end(state, at, died=died)
    over = before.phase in ("finished", "exiting") or before.training_done
    state.after_finish = over or (state.after_finish and not before.iterations)
    state.learned.baseline = state.last_baseline
    state.learned.log_interval = before.log_interval or state.learned.log_interval
    state.restarts += 1
    if before.iterations:
        state.computed = before
    attempt = state.attempt = Attempt(before.number + 1, at, phase=before.phase, phase_since=before.phase_since)
    attempt.parts.printed = before.parts.printed  # what was learned of them
    if in_process and not before.setup_events:
        for name in _SET_UP:
            setattr(attempt, name, getattr(before, name))
        if before.phase in ("exiting", "finished"):
            attempt.train_iterations = None  # that training was whole: the next one has a length of its own
    attempt.setup_events, before.setup_events = before.setup_events, []
    for kind, fields in attempt.setup_events:
        take_setting(attempt, msgspec.convert(fields, events.EVENT_TYPES[kind]))
    for cursor in state.copies.positions.values():
        cursor.last_iteration = None
    enter(state, "starting", at)


def _left_behind(state: RunState) -> bool:
    """The last that the attempt told was an exception: the next attempt proves that nobody caught it."""
    failure, attempt = state.attempt.failure, state.attempt
    if failure is None or attempt.phase in ("finished", "exiting"):
        return False
    return failure.failure in ("python_exception", "stopped") and failure.after == attempt.iterations


def _note_end(state: RunState, at: float, *, died: bool) -> None:
    """How the attempt ended that the next one replaces: what it lost work to, and whether anybody had planned it."""
    attempt, finished = state.attempt, state.attempt.phase in ("finished", "exiting")
    failure = None if finished else attempt.failure  # else a warning of a process on its way out
    failure_evidence = failure or Evidence("silence", state.progress_at or at)
    failed_at = attempt.ending.since if failure is not None else None
    cause = "hang" if attempt.hung else failure_evidence.failure or "unknown"
    planned = finished or cause in PLANNED or attempt.mixed  # of two trainings in one log none may have ended
    state.unplanned_ends += not planned
    named = suspects(state) if failure is not None else []
    state.ends.append(
        AttemptEnd(
            number=attempt.number,
            failure=cause,
            message=failure_evidence.message[:300],
            at=max(failure_evidence.at, failed_at or failure_evidence.at),
            started_at=state.first_at if attempt.started_at is None else attempt.started_at,
            iterations=attempt.iterations,
            last_iteration=attempt.last_iteration,
            checkpoint=state.learned.checkpoints.last_iteration,
            planned=planned,
            nodes=(named or nodes_of(state))[:_NODES_KEPT],
            culprit=bool(named),
            crashed=died,
            watched=state.live,
            line=failure_evidence.line,
        )
    )
    del state.ends[:-_ENDS_KEPT]


def add_seconds(state: RunState, seconds: float) -> None:
    """Seconds of computing. What a restart computes again was taken off when it began."""
    attempt = state.attempt
    attempt.seconds += seconds
    state.productive_seconds += seconds
    state.gpu_seconds += seconds * (attempt.topology.world_size or 0)
    attempt.seconds_since_checkpoint += seconds


def take_back(state: RunState) -> None:
    """What the attempt has counted will be reported again, or was no training."""
    attempt = state.attempt
    state.iterations_total -= attempt.iterations
    attempt.iterations, attempt.last_iteration = 0, None
    add_seconds(state, -attempt.seconds)
    # the GPUs or the last checkpoint may be others than when they were told
    state.gpu_seconds = max(0.0, state.gpu_seconds)
    attempt.seconds_since_checkpoint = max(0.0, attempt.seconds_since_checkpoint)


def withdraw(state: RunState) -> Attempt:
    """What was taken for the attempt's training was none: the attempt as it is without that."""
    take_back(state)
    before = state.attempt
    attempt = state.attempt = Attempt(
        before.number, before.started_at, phase=before.phase, phase_since=before.phase_since
    )
    for name in ("boundaries", "nodes", *_SET_UP):
        setattr(attempt, name, getattr(before, name))
    attempt.trainer = TrainerState()
    return attempt


def retire(state: RunState, at: float) -> None:
    """Another experiment has begun in its log: nothing more comes of this one."""
    attempt, before = state.attempt, state.computed
    if state.ends and not (attempt.iterations or attempt.failed or "arguments" in attempt.boundaries):
        end = state.ends.pop()  # the set-up lines before the arguments were the other's
        state.restarts -= 1
        state.unplanned_ends -= not end.planned
        state.attempt = Attempt(end.number, end.started_at)
        if before is not None and before.number == end.number:
            state.attempt, state.computed = before, None
        died: Phase = "training" if end.failure == "unknown" else "crashed"
        enter(state, "finished" if _finished(end) else died, at)
    if state.attempt.phase == "exiting":
        enter(state, "finished", at)


def program_of(dialect: str | None) -> str:
    """Whose attempts teach of each other: all ages of Megatron's line are one program."""
    return "megatron" if dialect_of(dialect).megatron else dialect or ""


def first_of_attempt(state: RunState, iteration: int, *, first: bool) -> None:
    """The first iteration of an attempt tells whose training goes on, and how much work the end of the last one cost.
    Where a loop has counted beside DeepSpeed's engine before, the engine's first step does not tell yet.
    """
    attempt = state.attempt
    if state.first_iteration is None:
        state.first_iteration = iteration
    freeze_node_list(attempt)
    if attempt.step_source == "engine" and state.learned.has_engine_steps and first:
        return
    attempt.resumed = True
    program = program_of(attempt.dialect)
    another = bool(state.learned.programs) and program not in state.learned.programs
    if another:
        state.learned = LearnedBehavior(
            [program], attempt.step_source
        )  # another program's training: nothing that is known is of it
    attempt.from_zero = state.learned.from_zero = state.learned.from_zero or attempt.first_iteration == 0
    if another:
        return
    if program not in state.learned.programs:
        state.learned.programs.append(program)
    state.learned.step_source = attempt.step_source
    if attempt.number:
        _count_lost(state, iteration)


def _count_lost(state: RunState, iteration: int) -> None:
    """What the end of the attempt before cost, as the present one goes on with `iteration`."""
    before = next((end for end in reversed(state.ends) if end.last_iteration is not None), None)
    if before is None or before.last_iteration is None or _finished(before):
        return
    lost = before.last_iteration + 1 - iteration  # what lies above was lost by an earlier restart already
    if lost > 0:
        seconds = lost * (state.last_baseline or state.attempt.latest.seconds_per_iteration or 0.0)
        cause = state.ends[-1].failure
        state.lost_iterations_total = plus(state.lost_iterations_total, lost)
        state.lost_seconds_total[cause] = state.lost_seconds_total.get(cause, 0.0) + seconds
        state.productive_seconds = max(0.0, state.productive_seconds - seconds)


def precede(state: RunState, past: RunState, at: float) -> None:
    """What a file tells that is older than all that the run was known by: its attempts come before the run's first."""
    if past.attempt.iterations or past.attempt.failed:
        begin_attempt(past, at)
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
    """Nothing of an attempt that came to its end is lost."""
    return end.planned and end.failure not in PLANNED


# --- what an attempt says of itself: layout, arguments, environment, versions -----------------------------------------


def stamp_of(event: events.ArgumentsDumped) -> str:
    """What tells one arguments dump from another: they carry no time."""
    return str(zlib.crc32(repr(sorted(event.values.items())).encode("utf-8", "replace")))


JOB_VARIABLE: Final = "SLURM_JOB_ID"


def printed_job(event: Event) -> str:
    """The job's id that the line prints, if it is such a line."""
    return event.value if isinstance(event, events.EnvironmentVariableSeen) and event.name == JOB_VARIABLE else ""


def take_setting(attempt: Attempt, event: Event) -> None:
    """One more fact of the set-up."""
    match event:
        case events.EnvironmentVariableSeen():
            if attempt.iterations and printed_job(event):
                return  # text, if no attempt begins behind it
            attempt.environment[event.name] = event.value
            if event.name not in topologies.NOMINAL_SIZES:
                return
        case events.SoftwareSeen():
            attempt.software[event.name] = event.version
            return
        case events.ParametersCounted():  # one rank counted its own: the sum over ranks is the model
            attempt.parameters_by_rank[f"{event.tensor_rank},{event.pipeline_rank}"] = event.parameters
            attempt.topology.parameters = plus(0, sum(attempt.parameters_by_rank.values()))
            return
        case events.ArgumentsDumped():
            if attempt.boundaries.setdefault("arguments", stamp_of(event)) == stamp_of(event):
                attempt.arguments = model_arguments(event.values)  # another dump is a critic's
    changed = topologies.apply(attempt.topology, event)
    if changed is not None:
        attempt.topology = changed
        if attempt.train_iterations is None:
            attempt.train_iterations = changed.train_iterations


def is_known(attempt: Attempt, event: Event) -> bool:
    """Whether it is a setting that says nothing new: some programs print one again behind each iteration."""
    return type(event) is events.ModelSettingLogged and topologies.apply(attempt.topology, event) is None
