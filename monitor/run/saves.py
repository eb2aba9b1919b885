"""Evaluation and checkpoints: what interrupts the loop legally, and what a crash now would lose.

Each function takes (state, event, source, at, live, entry) and returns whether the event was progress.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from monitor.breakdown.saves import KEPT
from monitor.run.attempts import set_phase
from monitor.run.iterations import gap_of
from monitor.run.log_clock import log_clock
from monitor.run.phases import ENDED, PARTS, PHASE_AFTER
from monitor.run.records import Validation
from monitor.run.state import RunState
from parsers.events import (
    CheckpointFileWritten,
    CheckpointLoaded,
    CheckpointLoadStarted,
    CheckpointNotFound,
    CheckpointSaved,
    CheckpointSaveScheduled,
    CheckpointSaveStarted,
    EvaluationProgressed,
    LogEvent,
    MilestoneReached,
    ValidationLogged,
)

_DATASETS_KEPT = 64


def _overhead(state: RunState, at: float, iteration: int | None = None) -> None:
    state.impure, state.silent_work = True, None
    state.overhead_until = at
    if iteration is not None:
        state.overhead_iteration = iteration


def on_evaluation(
    state: RunState, event: EvaluationProgressed, _source: str, at: float, _live: bool, _entry: LogEvent
) -> bool:
    """Evaluation moves."""
    state.evaluation_due = state.evaluation_silent = state.between.saving = False
    _overhead(state, at)
    if event.logged_at is not None:
        moment = log_clock(event.logged_at)
        if not event.finished:
            state.stopwatch.pause(moment)
        elif state.stopwatch.go_on(moment):
            state.impure = False
    set_phase(state, "training" if event.finished else PHASE_AFTER[event.kind], at)
    return True


def on_validation(
    state: RunState, event: ValidationLogged, _source: str, at: float, _live: bool, _entry: LogEvent
) -> bool:
    """A validation set has its result; more sets may follow."""
    state.evaluation_due = state.evaluation_silent = state.between.saving = False
    known = state.validations.get(event.dataset)
    loss = event.losses.get("lm loss", next(iter(event.losses.values()), None))
    if known is not None and known.iteration == event.iteration and known.loss == loss:
        return False  # a copy
    if known is not None or len(state.validations) < _DATASETS_KEPT:
        perplexity = next(iter(event.perplexities.values()), None)
        state.validations[event.dataset] = Validation(event.iteration, loss, perplexity)
    if known is not None and known.iteration and event.iteration and event.iteration > known.iteration:
        state.evaluation_interval = event.iteration - known.iteration
    _overhead(state, at, event.iteration)
    state.validations_since += 1
    if state.phase not in ENDED:
        last_set = state.evaluation_sets is not None and state.validations_since >= state.evaluation_sets
        set_phase(state, "exiting" if state.training_done else "training" if last_set else "evaluating", at)
    return True


def on_save_started(
    state: RunState, event: CheckpointSaveStarted, _source: str, at: float, _live: bool, _entry: LogEvent
) -> bool:
    """A save has begun."""
    checkpoints = state.checkpoints
    if event.iteration is not None and event.iteration == checkpoints.started_iteration:
        return False  # another rank's copy
    checkpoints.started_iteration, checkpoints.started_at = event.iteration, at
    checkpoints.started_stamp = event.logged_at
    _overhead(state, at, event.iteration)
    if state.phase not in ENDED:
        set_phase(state, "saving", at)
    return True


def on_save_file(
    state: RunState, event: CheckpointFileWritten, _source: str, at: float, _live: bool, _entry: LogEvent
) -> bool:
    """One file of a checkpoint moves."""
    if not state.impure:
        state.between.saving, state.checkpoints.files_iteration = True, event.iteration
    _overhead(state, at)
    if state.phase in PARTS:
        set_phase(state, "saving", at)
    return True


def on_save_scheduled(
    state: RunState, _event: CheckpointSaveScheduled, _source: str, at: float, _live: bool, _entry: LogEvent
) -> bool:
    """The save goes on in the background; training goes on."""
    state.checkpoints.pending_async = True
    _overhead(state, at)
    if state.phase == "saving":
        set_phase(state, "training", at)
    return True


def on_saved(state: RunState, event: CheckpointSaved, _source: str, at: float, live: bool, _entry: LogEvent) -> bool:
    """A checkpoint is whole: nothing before it can be lost any more."""
    checkpoints = state.checkpoints
    iteration = event.iteration if event.iteration is not None else checkpoints.started_iteration
    if iteration is None:
        iteration = state.latest.iteration
    seconds = event.seconds
    if seconds is None and checkpoints.started_at is not None and not checkpoints.pending_async:
        seconds = _between(checkpoints.started_stamp, event.logged_at)
        if seconds is None and live and at >= checkpoints.started_at:
            seconds = at - checkpoints.started_at
    copy = iteration == checkpoints.last_iteration
    if seconds is not None:
        note_save(state, seconds)
        if not copy and not live:
            gap_of(state, "saving").add(seconds)
    if not copy:
        checkpoints.saves += 1
        state.seconds_since_checkpoint = 0.0
    checkpoints.last_iteration, checkpoints.last_at = iteration, at
    checkpoints.pending_async = False
    checkpoints.started_at = None
    state.between.saving = False
    _overhead(state, at)
    if state.phase == "saving":
        set_phase(state, "exiting" if state.training_done else "training", at)
    return True


def on_loop_done(state: RunState, event: MilestoneReached, at: float) -> None:
    """A loop that is done has ended the save that held it up: torchtitan prints no end of its last one."""
    checkpoints = state.checkpoints
    if checkpoints.started_at is None or checkpoints.pending_async:
        return
    if (seconds := _between(checkpoints.started_stamp, event.logged_at)) is not None:
        note_save(state, seconds)
    checkpoints.last_iteration = checkpoints.started_iteration or state.latest.iteration
    checkpoints.last_at, checkpoints.started_at, state.between.saving = at, None, False
    checkpoints.saves += 1
    state.seconds_since_checkpoint = 0.0


def note_save(state: RunState, seconds: float, iteration: int | None = None) -> None:
    """The save after `iteration` (the last one) took so long; a timer's figure comes behind the line that tells of its
    end.
    """
    checkpoints = state.checkpoints
    checkpoints.save_seconds = seconds
    took = checkpoints.took
    took[(state.latest.iteration or 0) if iteration is None else iteration] = seconds
    while len(took) > KEPT:
        del took[next(iter(took))]


def _between(start: Any, end: str | None) -> float | None:
    if not isinstance(start, str) or end is None:
        return None
    try:
        seconds = (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
    except (ValueError, TypeError):
        return None
    return seconds if seconds >= 0 else None


def on_load(
    state: RunState,
    event: CheckpointLoadStarted | CheckpointLoaded | CheckpointNotFound,
    _source: str,
    at: float,
    _live: bool,
    _entry: LogEvent,
) -> bool:
    """Weights are being loaded, or there are none."""
    if state.attempt.iterations == 0 and state.phase not in ENDED:
        set_phase(state, PHASE_AFTER[event.kind], at)
        return True
    return False
