"""Evaluation and checkpoints: normal interruptions of the loop, and the work that a crash would lose.

Each `on_` function is a handler of `fold`.
"""

from megatron_monitor.breakdown.saves import KEPT
from megatron_monitor.parsers import events
from megatron_monitor.run.evidence import pass_by
from megatron_monitor.run.log_clock import log_clock
from megatron_monitor.run.phases import ENDED, PARTS, PHASE_AFTER, Moved
from megatron_monitor.run.records import EventContext, Validation
from megatron_monitor.run.silence import SILENT_RESULT
from megatron_monitor.run.state import RunState

_DATASETS_KEPT = 64


def _overhead(state: RunState, at: float, iteration: int | None = None) -> None:
    if state.attempt.silent_work != SILENT_RESULT:  # otherwise further work may follow
        state.attempt.silent_work = None
    state.attempt.step_timer.interrupt(at, iteration)


def _note_evaluation(state: RunState, at: float, iteration: int | None = None) -> None:
    """Note a line of an evaluation, after `iteration` if it reports it."""
    attempt = state.attempt
    attempt.evaluation_due = attempt.evaluation_silent = attempt.engine.gap.saving = False
    _overhead(state, at, iteration)


def evaluate(state: RunState, context: EventContext, *, over: bool) -> Moved:
    """Apply a line of an evaluation within the training. `over`: its last one. No evaluation follows the end."""
    attempt = state.attempt
    if attempt.phase == "finished":
        return False
    _note_evaluation(state, context.at)
    pass_by(state, context, step=False)
    return attempt.ending.state == "crashed" or (attempt.resumes_as if over else "evaluating")


def on_evaluation(state: RunState, event: events.EvaluationProgressed, context: EventContext) -> Moved:
    """Apply progress of an evaluation."""
    attempt, timer = state.attempt, state.attempt.step_timer
    is_heading = not event.total and not event.finished
    if is_heading and attempt.phase != "finished" and attempt.resumes_as == "exiting":
        return True  # after the last step: no line reports the end of that evaluation
    moved = evaluate(state, context, over=bool(event.finished))
    if event.logged_at is not None and moved is not False:
        moment = log_clock(event.logged_at)
        if not event.finished:
            timer.stamps.pause(moment)
        elif timer.stamps.resume(moment):
            timer.interrupted = False
    return moved


def on_validation(state: RunState, event: events.ValidationLogged, context: EventContext) -> Moved:
    """Apply the result of a validation set. More sets may follow."""
    attempt = state.attempt
    known = attempt.validations.get(event.dataset)
    loss = event.losses.get("lm loss", next(iter(event.losses.values()), None))
    result = Validation(event.iteration, loss)
    if known == result:
        # a copy, or the evaluation after the last step: on the whole set it has the same loss
        return "exiting" if attempt.phase == "evaluating" and attempt.resumes_as == "exiting" else False
    if known is not None or len(attempt.validations) < _DATASETS_KEPT:
        attempt.validations[event.dataset] = result
    if known is not None and known.iteration and event.iteration and event.iteration > known.iteration:
        attempt.evaluation_interval = event.iteration - known.iteration
    _note_evaluation(state, context.at, event.iteration)
    attempt.validations_since += 1
    if attempt.phase in ENDED:
        return True
    last_set = attempt.evaluation_sets is not None and attempt.validations_since >= attempt.evaluation_sets
    return attempt.resumes_as if last_set or attempt.resumes_as == "exiting" else "evaluating"


def _note_step(state: RunState, iteration: int | None) -> None:
    """Apply the step that a save names, if the loop's reports have no number: each was counted as one step."""
    attempt, last = state.attempt, state.attempt.last_iteration
    if iteration is None or last is None or iteration <= last or not attempt.trainer.numbered_by_reports:
        return
    attempt.last_iteration = attempt.latest.iteration = state.learned.highest_iteration = iteration
    if attempt.loaded is None and not attempt.number:
        attempt.iterations += iteration - last
        state.iterations_total += iteration - last


def on_save_started(state: RunState, event: events.CheckpointSaveStarted, context: EventContext) -> Moved:
    """Apply the begin of a save."""
    attempt = state.attempt
    save = attempt.save
    _note_step(state, event.iteration)
    if event.iteration is not None and event.iteration == save.iteration:
        return False  # another rank's copy
    if event.iteration is not None or save.started_at is None:  # otherwise its bar is redrawn
        save.iteration, save.started_at, save.stamp = event.iteration, context.at, event.logged_at
    _overhead(state, context.at, event.iteration)
    return attempt.phase in ENDED or "saving"


def on_save_file(state: RunState, event: events.CheckpointFileWritten, context: EventContext) -> Moved:
    """Apply a written checkpoint file. DeepSpeed's ready file is the last line of a save by HF Trainer."""
    attempt = state.attempt
    _note_step(state, event.iteration)
    if event.finished and event.path is None and attempt.step_source == "trainer":
        return on_saved(state, events.CheckpointSaved(iteration=event.iteration, logged_at=event.logged_at), context)
    if not attempt.step_timer.interrupted:
        attempt.engine.gap.saving, attempt.save.files_iteration = True, event.iteration
    _overhead(state, context.at)
    return "saving" if attempt.phase in PARTS else True


def on_save_scheduled(state: RunState, _event: events.CheckpointSaveScheduled, context: EventContext) -> Moved:
    """Apply a save that continues in the background."""
    attempt = state.attempt
    attempt.save.pending_async = True
    _overhead(state, context.at)
    return "training" if attempt.phase == "saving" else True


def on_saved(state: RunState, event: events.CheckpointSaved, context: EventContext) -> Moved:
    """Apply a complete checkpoint: a crash no longer loses the work before it."""
    attempt = state.attempt
    _note_step(state, event.iteration)
    checkpoints, save = state.learned.checkpoints, attempt.save
    iteration = event.iteration if event.iteration is not None else save.iteration
    if iteration is None:
        iteration = attempt.latest.iteration
    seconds = event.seconds
    if seconds is None and save.started_at is not None and not save.pending_async:
        seconds = _between(save.stamp, event.logged_at)
        if seconds is None and context.live and context.at >= save.started_at:
            seconds = context.at - save.started_at
    copy = iteration == checkpoints.last_iteration
    if seconds is not None:
        note_save(state, seconds)
        if not copy and not context.live:
            state.learned.silences.learn("saving", seconds)
    if not copy:
        note_complete(state, iteration)
    save.pending_async, save.started_at = False, None
    attempt.engine.gap.saving = False
    _overhead(state, context.at)
    if attempt.phase != "saving":
        return True
    return attempt.resumes_as


def end_save(state: RunState, stamp: str | None = None) -> None:
    """End the present save because the loop continues or is done.

    HF Trainer prints no end of a save, torchtitan none of the last one.
    """
    save = state.attempt.save
    if save.started_at is None or save.pending_async:
        return
    if (seconds := _between(save.stamp, stamp)) is not None:
        note_save(state, seconds)
    save.started_at, state.attempt.engine.gap.saving = None, False
    note_complete(state, save.iteration or state.attempt.latest.iteration)


def note_complete(state: RunState, iteration: int | None) -> None:
    """Count a complete checkpoint."""
    state.learned.checkpoints.saves += 1
    state.learned.checkpoints.last_iteration = iteration
    state.attempt.seconds_since_checkpoint = 0.0


def note_save(state: RunState, seconds: float, iteration: int | None = None) -> None:
    """Record the seconds of the save after `iteration` (default: the last one)."""
    checkpoints = state.learned.checkpoints
    checkpoints.save_seconds = seconds
    durations = checkpoints.durations
    durations[(state.attempt.latest.iteration or 0) if iteration is None else iteration] = seconds
    while len(durations) > KEPT:
        del durations[next(iter(durations))]


def _between(start: str | None, end: str | None) -> float | None:
    first, last = log_clock(start), log_clock(end)
    return None if first is None or last is None or last < first else last - first


def on_load(
    state: RunState,
    event: events.CheckpointLoadStarted | events.CheckpointLoaded | events.CheckpointNotFound,
    _context: EventContext,
) -> Moved:
    """Apply the load of a checkpoint, or that there is none."""
    attempt = state.attempt
    if isinstance(event, events.CheckpointLoaded) and event.iteration is not None and not attempt.iterations:
        attempt.loaded = event.iteration
    if attempt.iterations == 0 and attempt.phase not in ENDED:
        return PHASE_AFTER[event.kind]
    return False
