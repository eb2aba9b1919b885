"""Applies the end of one attempt and the begin of the next: lost work, restarts, inherited set-up.

attempts.py decides where an attempt begins.
"""

import math
import zlib
from typing import Final

from megatron_monitor.model import topology as topologies
from megatron_monitor.model.arguments import model_arguments
from megatron_monitor.parsers import events
from megatron_monitor.parsers.events import Event
from megatron_monitor.parsers.programs import program_of
from megatron_monitor.run.ending import PLANNED, Evidence
from megatron_monitor.run.nodes import freeze_node_list, nodes_of, suspects
from megatron_monitor.run.phases import Phase, drawn_as
from megatron_monitor.run.records import AttemptEnd, plus
from megatron_monitor.run.state import Attempt, LearnedBehavior, RunState
from megatron_monitor.run.steps.sources import TrainerState

_ENDS_KEPT = 50
_SETUP_KEPT = 4096
_SET_UP = (
    "arguments", "topology", "environment", "software", "parameters_by_rank", "train_iterations",
    "trainer",
)  # fmt: skip
"""Fields of an attempt that are its set-up."""
_TOTALS = (
    "iterations_total", "skipped_iterations_total", "nan_iterations_total", "overflows_total", "lost_iterations_total",
    "restarts", "unplanned_ends", "productive_seconds", "gpu_seconds",
)  # fmt: skip
_NODES_KEPT = 512


def enter(state: RunState, phase: Phase, at: float) -> None:
    """Enter a phase, if it is another one. All parts of an RL step are one phase before the next."""
    before = state.attempt.phase
    if phase != before:
        state.attempt.phase, state.attempt.phase_since = phase, at
        if drawn_as(phase) != drawn_as(before):
            state.phase_before = drawn_as(before)


def count_failure(state: RunState) -> None:
    """Count the failure of a crashed attempt, once per attempt."""
    attempt = state.attempt
    if attempt.failure is not None and attempt.failure.failure != "stopped" and not attempt.counted:
        attempt.counted = True
        kind = attempt.failure.failure
        state.failures_total[kind] = state.failures_total.get(kind, 0) + 1


def note_setting(state: RunState, event: Event) -> None:
    """Record a fact of the set-up, of the present attempt or of one that begins before the next step."""
    setup_events = state.attempt.setup_events
    if len(setup_events) < _SETUP_KEPT:
        setup_events.append(event)
    take_setting(state.attempt, event)


def begin_attempt(state: RunState, at: float, *, in_process: bool = False) -> None:
    """Begin a new attempt, with the set-up events since the last step.

    `in_process`: only the step number shows the begin. Without set-up events the process continues with its set-up.
    """
    before = state.attempt
    died = before.phase == "crashed" or _ended_by_exception(state)
    if died:
        count_failure(state)  # an unconfirmed failure did end the attempt
    end = end_of(state, at, died=died)
    state.unplanned_ends += not end.planned
    state.ends = [*state.ends, end][-_ENDS_KEPT:]
    over = before.phase in ("finished", "exiting") or before.training_done
    state.after_finish = over or (state.after_finish and not before.iterations)
    state.learned.baseline = state.last_baseline
    state.learned.log_interval = before.log_interval or state.learned.log_interval
    state.restarts += 1
    if before.iterations:
        state.computed = before
    attempt = state.attempt = Attempt(before.number + 1, at, phase=before.phase, phase_since=before.phase_since)
    attempt.parts.printed = before.parts.printed  # learned durations
    if in_process and not before.setup_events:
        for name in _SET_UP:
            setattr(attempt, name, getattr(before, name))
        if before.phase in ("exiting", "finished"):
            attempt.train_iterations = None  # that training was complete: the next one has another length
    attempt.setup_events, before.setup_events = before.setup_events, []
    for event in attempt.setup_events:
        take_setting(attempt, event)
    for cursor in state.copies.positions.values():
        cursor.last_iteration = None
    enter(state, "starting", at)


def _ended_by_exception(state: RunState) -> bool:
    """Return True if an exception was the attempt's last event: the next attempt proves that it was not caught."""
    failure, attempt = state.attempt.failure, state.attempt
    if failure is None or attempt.phase in ("finished", "exiting"):
        return False
    return failure.failure in ("python_exception", "stopped") and failure.after == attempt.iterations


def end_of(state: RunState, at: float, *, died: bool) -> AttemptEnd:
    """Return how the attempt ended: its cause, and whether the end was planned."""
    attempt, finished = state.attempt, state.attempt.phase in ("finished", "exiting")
    failure = None if finished else attempt.failure  # a finished attempt may have warnings while exiting
    failure_evidence = failure or Evidence("silence", state.progress_at or at)
    failed_at = attempt.ending.since if failure is not None else None
    cause = "hang" if attempt.hung else failure_evidence.failure or "unknown"
    planned = finished or cause in PLANNED or (state.mixed and not died)
    named = suspects(state) if failure is not None else []
    return AttemptEnd(
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


def take_back(state: RunState) -> None:
    """Subtract what the attempt has counted: it will be reported again, or it was not a training."""
    attempt = state.attempt
    state.iterations_total -= attempt.iterations
    attempt.iterations, attempt.last_iteration = 0, None
    state.add_seconds(-attempt.seconds)
    # the number of GPUs or the last checkpoint may have changed since
    state.gpu_seconds = max(0.0, state.gpu_seconds)
    attempt.seconds_since_checkpoint = max(0.0, attempt.seconds_since_checkpoint)


def withdraw(state: RunState) -> Attempt:
    """Remove counted steps that were not a training. Return the attempt without them."""
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
    """End a run because another experiment has begun in its log."""
    attempt, before = state.attempt, state.computed
    if state.ends and not (attempt.iterations or attempt.failed or "arguments" in attempt.boundaries):
        end = state.ends.pop()  # the set-up lines before the arguments belonged to the other experiment
        state.restarts -= 1
        state.unplanned_ends -= not end.planned
        state.attempt = Attempt(end.number, end.started_at)
        if before is not None and before.number == end.number:
            state.attempt, state.computed = before, None
        died: Phase = "training" if end.failure == "unknown" else "crashed"
        enter(state, "finished" if _finished(end) else died, at)
    if state.attempt.phase == "exiting":
        enter(state, "finished", at)


def program_name(format_name: str | None) -> str:
    """Return the program of a format. All versions of Megatron's line are one program."""
    return "megatron" if program_of(format_name).megatron else format_name or ""


def first_of_attempt(state: RunState, iteration: int, *, first: bool) -> None:
    """Apply the first iteration of an attempt: its program, and the work lost with the last attempt.

    If a loop and DeepSpeed's engine both reported steps before, the engine's first step does not decide this.
    """
    attempt = state.attempt
    if state.first_iteration is None:
        state.first_iteration = iteration
    freeze_node_list(attempt)
    if attempt.step_source == "engine" and state.learned.has_engine_steps and first:
        return
    attempt.resumed = True
    program = program_name(attempt.format)
    another = bool(state.learned.programs) and program not in state.learned.programs
    if another:
        state.learned = LearnedBehavior(
            [program], attempt.step_source
        )  # another program starts without learned behavior
    attempt.from_zero = state.learned.from_zero = state.learned.from_zero or attempt.first_iteration == 0
    if another:
        return
    if program not in state.learned.programs:
        state.learned.programs.append(program)
    state.learned.step_source = attempt.step_source
    if attempt.number:
        _count_lost(state, iteration)


def extend_attempt(state: RunState, iterations: int) -> None:
    """Note that the attempt began so many iterations before the first one that it reported."""
    first = (state.attempt.first_iteration or 0) - iterations
    if state.attempt.number:
        _count_lost(state, first, first + iterations)
    else:
        state.first_iteration = first


def _count_lost(state: RunState, iteration: int, until: float = math.inf) -> None:
    """Count the work lost with the attempt before, if the present one continues with `iteration`, but not what it
    repeats from `until` on.
    """
    before = next((end for end in reversed(state.ends) if end.last_iteration is not None), None)
    if before is None or before.last_iteration is None or _finished(before) or state.mixed:
        return
    lost = int(min(before.last_iteration + 1, until)) - iteration  # earlier restarts have already counted the rest
    if lost > 0:
        seconds = lost * (state.last_baseline or state.attempt.latest.seconds_per_iteration or 0.0)
        cause = state.ends[-1].failure
        state.lost_iterations_total = plus(state.lost_iterations_total, lost)
        state.lost_seconds_total[cause] = state.lost_seconds_total.get(cause, 0.0) + seconds
        state.productive_seconds = max(0.0, state.productive_seconds - seconds)


def precede(state: RunState, past: RunState, at: float) -> None:
    """Put the attempts of an older file before the run's first attempt."""
    if past.attempt.iterations or past.attempt.failed:
        begin_attempt(past, at)
    if not past.ends:
        return
    first, next_first = past.first_iteration, state.first_iteration
    if first is not None and (
        next_first is None or first <= next_first
    ):  # otherwise its attempts are among the known ones
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
    """Return True if the attempt came to its planned end, without lost work."""
    return end.planned and end.failure not in PLANNED


# --- set-up of an attempt: layout, arguments, environment, versions -----------------------------------------


def stamp_of(event: events.ArgumentsDumped) -> str:
    """Return a checksum that identifies an arguments dump, which has no time."""
    return str(zlib.crc32(repr(sorted(event.values.items())).encode("utf-8", "replace")))


JOB_VARIABLE: Final = "SLURM_JOB_ID"


def printed_job(event: Event) -> str:
    """Return the Slurm job id that the event prints; otherwise empty."""
    return event.value if isinstance(event, events.EnvironmentVariableSeen) and event.name == JOB_VARIABLE else ""


def take_setting(attempt: Attempt, event: Event) -> None:
    """Apply a fact of the set-up to the attempt."""
    match event:
        case events.EnvironmentVariableSeen():
            if attempt.iterations and printed_job(event):
                return  # only text, unless an attempt begins after it
            attempt.environment[event.name] = event.value
            if event.name not in topologies.NOMINAL_SIZES:
                return
        case events.SoftwareSeen():
            attempt.software[event.name] = event.version
            return
        case events.ParametersCounted():  # each rank counts its own: the sum over ranks is the model
            attempt.parameters_by_rank[f"{event.tensor_rank},{event.pipeline_rank}"] = event.parameters
            attempt.topology.parameters = plus(0, sum(attempt.parameters_by_rank.values()))
            return
        case events.ArgumentsDumped():
            if attempt.boundaries.setdefault("arguments", stamp_of(event)) == stamp_of(event):
                attempt.arguments = model_arguments(
                    event.values
                )  # a second dump belongs to another model, such as a critic
    changed = topologies.apply(attempt.topology, event)
    if changed is not None:
        attempt.topology = changed
        if attempt.train_iterations is None:
            attempt.train_iterations = changed.train_iterations


def is_known(attempt: Attempt, event: Event) -> bool:
    """Return True for a setting of the attempt: some programs print settings after each iteration."""
    return topologies.apply(attempt.topology, event) is None
