"""Evaluation and checkpoints: what interrupts the loop legally, and what a crash now would lose.

Each `on_` function is a handler of the fold.
"""

from datetime import datetime
from typing import Any

from megatron_monitor.breakdown.saves import KEPT
from megatron_monitor.parsers import events
from megatron_monitor.run.evidence import pass_by
from megatron_monitor.run.log_clock import log_clock
from megatron_monitor.run.phases import ENDED, PARTS, PHASE_AFTER, Moved
from megatron_monitor.run.records import Told, Validation
from megatron_monitor.run.state import RunState

_DATASETS_KEPT = 64


def _overhead(state: RunState, at: float, iteration: int | None = None) -> None:
    state.launch.silent_work = None
    state.launch.watch.interrupt(at, iteration)


def on_evaluation(state: RunState, event: events.EvaluationProgressed, told: Told) -> Moved:
    """Evaluation moves."""
    launch = state.launch
    if launch.phase == "finished":
        return False  # what is evaluated behind the training's end
    if not event.total and not event.finished and launch.resumes_as == "exiting":
        return True  # a heading behind the last step: no line tells when that evaluation is over
    launch.evaluation_due = launch.evaluation_silent = launch.engine.between.saving = False
    _overhead(state, told.at)
    if event.logged_at is not None:
        moment = log_clock(event.logged_at)
        if not event.finished:
            launch.watch.stamps.pause(moment)
        elif launch.watch.stamps.go_on(moment):
            launch.watch.inside = False
    pass_by(launch, told.at, told.source, step=False)
    return launch.ending.state == "crashed" or (launch.resumes_as if event.finished else "evaluating")


def on_validation(state: RunState, event: events.ValidationLogged, told: Told) -> Moved:
    """A validation set has its result; more sets may follow."""
    launch = state.launch
    launch.evaluation_due = launch.evaluation_silent = launch.engine.between.saving = False
    known = launch.validations.get(event.dataset)
    loss = event.losses.get("lm loss", next(iter(event.losses.values()), None))
    if known is not None and known.iteration == event.iteration and known.loss == loss:
        return False  # a copy
    if known is not None or len(launch.validations) < _DATASETS_KEPT:
        launch.validations[event.dataset] = Validation(event.iteration, loss)
    if known is not None and known.iteration and event.iteration and event.iteration > known.iteration:
        launch.evaluation_interval = event.iteration - known.iteration
    _overhead(state, told.at, event.iteration)
    launch.validations_since += 1
    if launch.phase in ENDED:
        return True
    last_set = launch.evaluation_sets is not None and launch.validations_since >= launch.evaluation_sets
    return launch.resumes_as if last_set or launch.resumes_as == "exiting" else "evaluating"


def on_save_started(state: RunState, event: events.CheckpointSaveStarted, told: Told) -> Moved:
    """A save has begun."""
    launch = state.launch
    save = launch.save
    if event.iteration is not None and event.iteration == save.iteration:
        return False  # another rank's copy
    if event.iteration is not None or save.started_at is None:  # else one more drawing of its bar
        save.iteration, save.started_at, save.stamp = event.iteration, told.at, event.logged_at
    _overhead(state, told.at, event.iteration)
    return launch.phase in ENDED or "saving"


def on_save_file(state: RunState, event: events.CheckpointFileWritten, told: Told) -> Moved:
    """One file of a checkpoint moves. That DeepSpeed's is ready is the last that is heard of HF Trainer's."""
    launch = state.launch
    if event.finished and event.path is None and launch.driver == "trainer":
        return on_saved(state, events.CheckpointSaved(iteration=event.iteration, logged_at=event.logged_at), told)
    if not launch.watch.inside:
        launch.engine.between.saving, launch.save.files_iteration = True, event.iteration
    _overhead(state, told.at)
    return "saving" if launch.phase in PARTS else True


def on_save_scheduled(state: RunState, _event: events.CheckpointSaveScheduled, told: Told) -> Moved:
    """The save goes on in the background; training goes on."""
    launch = state.launch
    launch.save.pending_async = True
    _overhead(state, told.at)
    return "training" if launch.phase == "saving" else True


def on_saved(state: RunState, event: events.CheckpointSaved, told: Told) -> Moved:
    """A checkpoint is whole: nothing before it can be lost any more."""
    launch = state.launch
    checkpoints, save = state.past.checkpoints, launch.save
    iteration = event.iteration if event.iteration is not None else save.iteration
    if iteration is None:
        iteration = launch.latest.iteration
    seconds = event.seconds
    if seconds is None and save.started_at is not None and not save.pending_async:
        seconds = _between(save.stamp, event.logged_at)
        if seconds is None and told.live and told.at >= save.started_at:
            seconds = told.at - save.started_at
    copy = iteration == checkpoints.last_iteration
    if seconds is not None:
        note_save(state, seconds)
        if not copy and not told.live:
            state.past.silences.learn("saving", seconds)
    if not copy:
        note_whole(state, iteration)
    save.pending_async, save.started_at = False, None
    launch.engine.between.saving = False
    _overhead(state, told.at)
    if launch.phase != "saving":
        return True
    return launch.resumes_as


def end_save(state: RunState, stamp: str | None = None) -> None:
    """A loop that goes on or is done has ended the save that held it up: HF Trainer prints no end of any, torchtitan
    none of its last one.
    """
    save = state.launch.save
    if save.started_at is None or save.pending_async:
        return
    if (seconds := _between(save.stamp, stamp)) is not None:
        note_save(state, seconds)
    save.started_at, state.launch.engine.between.saving = None, False
    note_whole(state, save.iteration or state.launch.latest.iteration)


def note_whole(state: RunState, iteration: int | None) -> None:
    """One more checkpoint is whole: a crash loses no work from before it any more."""
    state.past.checkpoints.saves += 1
    state.past.checkpoints.last_iteration = iteration
    state.launch.seconds_since_checkpoint = 0.0


def note_save(state: RunState, seconds: float, iteration: int | None = None) -> None:
    """The save after `iteration` (the last one) took so long; a timer's figure comes behind the line that tells of its
    end.
    """
    checkpoints = state.past.checkpoints
    checkpoints.save_seconds = seconds
    took = checkpoints.took
    took[(state.launch.latest.iteration or 0) if iteration is None else iteration] = seconds
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
    event: events.CheckpointLoadStarted | events.CheckpointLoaded | events.CheckpointNotFound,
    _told: Told,
) -> Moved:
    """Weights are being loaded, or there are none."""
    launch = state.launch
    if isinstance(event, events.CheckpointLoaded) and event.iteration is not None and not launch.iterations:
        launch.loaded = event.iteration
    if launch.iterations == 0 and launch.phase not in ENDED:
        return PHASE_AFTER[event.kind]
    return False
