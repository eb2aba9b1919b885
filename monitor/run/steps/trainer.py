"""Reads HF Trainer's steps: its progress bar counts, its dict has the values (transformers, trainer.py and
trainer_callback.py).

A bar of another length after the training's own is an evaluation's.
"""

from collections.abc import Sequence
from itertools import pairwise

from msgspec import structs

from megatron_monitor.parsers.events import TrainerLogged, TrainerProgressed
from megatron_monitor.parsers.programs import HF_TRAINER
from megatron_monitor.run.attempts import take_bar, take_over
from megatron_monitor.run.evidence import fold_own_end
from megatron_monitor.run.phases import ENDED, Moved, Phase
from megatron_monitor.run.records import EventContext, Validation
from megatron_monitor.run.restarts import withdraw
from megatron_monitor.run.saves import end_save, evaluate
from megatron_monitor.run.state import Attempt, RunState
from megatron_monitor.run.steps.counting import StepReport, count_step, measure
from megatron_monitor.run.steps.sources import TrainerState

_OF_TRAINING = ("", "train", "training", "steps")  # kohya-ss, diffusers: `steps:   2%|`
_INFERRED = 120.0  # seconds after which a bar without a heading counts as a training's
_MIN_STEP_SECONDS = 0.2  # minimum seconds per step of a training: reading and tokenising are faster
_DRAWINGS, _BARS = 64, 8  # remembered drawings of a possible training's bar, and such bars
_EXPLAINED = 0.98  # share of a bar's position that its rate explains if it began at 0: rates have two decimals
_SETUP_PHASES: frozenset[Phase] = frozenset({"starting", "loading", "first_iteration"})
_OF_EVALUATION = ("", "eval", "evaluating", "evaluation", "validation", "predict", "prediction")


def fold_trainer_progress(state: RunState, event: TrainerProgressed, context: EventContext) -> Moved:
    """Process a progress bar. Return True if it was progress of the training or of an evaluation within it."""
    event, name = _through_epochs(state.attempt, event), event.description.lower()
    if not (event.step and event.elapsed_seconds) and name in _OF_TRAINING:
        take_bar(state, event.total, context)
    attempt, trainer = state.attempt, state.attempt.trainer
    if not trainer.declared and (trainer.total is None or _is_drawn_out(attempt)) and name in _OF_TRAINING:
        _suppose(state, event, context)
        attempt, trainer = state.attempt, state.attempt.trainer
    mine = event.total == trainer.total or (trainer.total is None and trainer.declared and name in _OF_TRAINING)
    if not mine:
        return _of_another(state, event, context)
    trainer.bar = event.step, event.total
    if attempt.step_source != "trainer" and not take_over(state, "trainer", HF_TRAINER.name, context):
        return False
    state.proven = True
    if event.loss is not None:
        attempt.latest.lm_loss = event.loss
    attempt.train_iterations = trainer.before + event.total
    return _step(state, _timed(state, event, context))


def _through_epochs(attempt: Attempt, event: TrainerProgressed) -> TrainerProgressed:
    """Count on, if a bar of the same length is drawn for each epoch."""
    trainer = attempt.trainer
    if not trainer.inferred or event.total != trainer.total:
        return event
    if event.step == 0 and attempt.last_iteration == trainer.before + event.total:
        trainer.before += event.total
    return structs.replace(event, step=trainer.before + event.step)


def _of_another(state: RunState, event: TrainerProgressed, context: EventContext) -> Moved:
    """Process a bar that is not the training's: an evaluation's, or one of the set-up."""
    attempt, trainer = state.attempt, state.attempt.trainer
    within = attempt.phase == "evaluating" or (attempt.step_source == "trainer" and trainer.total is not None)
    if within and event.description.lower() in _OF_EVALUATION and event.step:
        return evaluate(state, context, over=event.step >= event.total)
    if not attempt.iterations and _begins_set_up(state, event, context):
        attempt, trainer = state.attempt, state.attempt.trainer
    moves = event.step > 0 and trainer.drawn != (event.step, event.total)
    trainer.drawn = event.step, event.total
    if event.description.lower() in _OF_TRAINING:
        trainer.bar = trainer.drawn
    return moves and state.proven and attempt.phase in _SETUP_PHASES


def _begins_set_up(state: RunState, event: TrainerProgressed, context: EventContext) -> bool:
    """Process a bar of the set-up. Return True if it begins another attempt: it had reached its end before, and an
    exception followed, which was not caught if no process loads the same data twice. Known limit: a caught exception
    and another rank that is equally late.
    """
    attempt, name = state.attempt, f"{event.description}/{event.total}"
    again = event.step == 0 and name in attempt.trainer.complete and attempt.ending.hint is not None
    if again:
        fold_own_end(state, "left", context)
        state.proven, state.live = True, state.live or context.live
        take_bar(state, event.total, context)
    elif event.step >= event.total and len(attempt.trainer.complete) < _BARS:
        attempt.trainer.complete.add(name)
    return again


def _is_drawn_out(attempt: Attempt) -> bool:
    """Return True if the bar that counted as the training's has reached its end and may belong to another activity."""
    trainer = attempt.trainer
    return trainer.inferred and trainer.total is not None and (attempt.last_iteration or 0) >= trainer.total


def _suppose(state: RunState, event: TrainerProgressed, context: EventContext) -> None:
    """Process a bar without a heading in a log without dicts so far. A bar that continues for minutes at the pace of a
    training counts as one, from its first drawing. It is withdrawn if it turns out to be something else.
    """
    trainer, elapsed = state.attempt.trainer, event.elapsed_seconds
    if elapsed is None or event.step <= 0 or state.attempt.step_source not in (None, "trainer"):
        return
    if state.attempt.phase == "evaluating" and state.attempt.last_iteration is None:
        return  # of a prediction, under its heading
    drawn = _drawn(trainer, event, elapsed)
    if (
        len(drawn) < 2
        or elapsed < _INFERRED
        or elapsed < _MIN_STEP_SECONDS * event.step
        or event.total == trainer.total
    ):
        return
    trainer = (withdraw(state) if trainer.inferred else state.attempt).trainer
    trainer.inferred, trainer.total = True, event.total
    _count_drawn(state, drawn, context)


def _drawn(trainer: TrainerState, event: TrainerProgressed, elapsed: float) -> list[TrainerProgressed]:
    """Return the drawings of the bar with this one. An evaluation's bar is drawn between those of the training."""
    drawn = trainer.drawings.setdefault(event.total, [])
    if drawn and elapsed < (drawn[-1].elapsed_seconds or 0.0):
        drawn.clear()
    if not drawn or event.step > drawn[-1].step:  # a bar that stands is drawn again
        drawn.append(event)
    if len(drawn) > _DRAWINGS:  # twice the distance between them
        far = (event.step - drawn[0].step) * 2 / _DRAWINGS
        drawn[1:-1] = [after for before, after in pairwise(drawn[:-1]) if after.step // far > before.step // far]
    while len(trainer.drawings) > _BARS:
        del trainer.drawings[next(iter(trainer.drawings))]
    return drawn


def _count_drawn(state: RunState, drawn: Sequence[TrainerProgressed], context: EventContext) -> None:
    """Count the earlier drawings of a bar that turned out to be the training's."""
    now = drawn[-1].elapsed_seconds or 0.0 if drawn else 0.0
    for event in drawn:
        fold_trainer_progress(
            state, event, structs.replace(context, at=context.at - now + (event.elapsed_seconds or 0.0))
        )


def _timed(state: RunState, event: TrainerProgressed, context: EventContext) -> StepReport:
    """Return the bar's step and its seconds, by the time since the start in whole seconds. The bar's rate is a running
    mean. 0.00s/it is not known yet: it shows the time of the first step only.
    """
    attempt, trainer, rate = state.attempt, state.attempt.trainer, event.seconds_per_step or None
    elapsed, last = event.elapsed_seconds, attempt.last_iteration
    if elapsed is None or (last is not None and event.step <= last):
        return StepReport(event.step, rate, context)
    passed = elapsed - trainer.elapsed if trainer.elapsed is not None and not attempt.step_timer.interrupted else 0.0
    if last is None:
        attempt.step_timer.stamps.stop()  # the bar may have passed over steps since its first drawing, at 0
    seconds, steps = measure(state, event.step, elapsed, None)
    trainer.elapsed = elapsed
    if last is None:
        done = event.step - attempt.loaded if attempt.loaded is not None else 0
        first = elapsed / done if done > 0 else rate  # the rate includes skipped steps
        return StepReport(event.step, first, context, begun=(_steps_since_begin(event.step, elapsed, rate), elapsed))
    return StepReport(event.step, seconds, context, steps, passed if passed > 0.0 else 0.0)


def _steps_since_begin(step: int, elapsed: float, rate: float | None) -> int:
    """Return the steps since a bar began, by the rate of its first drawing: tqdm's `initial` may be a checkpoint's."""
    if rate is None or (elapsed + 1.0) / rate >= _EXPLAINED * step:
        return step
    return round((elapsed + 0.5) / rate)


def _step(state: RunState, report: StepReport) -> Moved:
    attempt = state.attempt
    attempt.format = HF_TRAINER.name
    if report.iteration <= 0 or (attempt.last_iteration is not None and report.iteration <= attempt.last_iteration):
        return False  # each node draws its own bar; a new attempt begins with the Trainer's own heading
    end_save(state)
    attempt.latest.global_batch_size = attempt.topology.global_batch_size
    return count_step(state, report)


def fold_trainer_log(state: RunState, event: TrainerLogged, context: EventContext) -> Moved:
    """Process HF Trainer's metric dict. If it has no step, the bar before it has."""
    attempt = state.attempt
    trainer = attempt.trainer
    if event.max_steps is not None:
        trainer.total = attempt.train_iterations = event.max_steps
    if event.eval_loss is not None:
        attempt.validations["validation"] = Validation(attempt.latest.iteration, event.eval_loss)
        return evaluate(state, context, over=attempt.training_done)
    if attempt.step_source != "trainer" and not take_over(state, "trainer", HF_TRAINER.name, context):
        return False
    _take_values(attempt, event)
    if attempt.last_iteration is None:
        _count_drawn(state, trainer.drawings.get(trainer.total or 0, []), context)
    trainer.drawings.clear()
    step = event.step if event.step is not None else _step_of(attempt, event.epoch) or _report_of(attempt, event)
    attempt.format = HF_TRAINER.name
    if step is None:  # the loop continues at an unknown step
        end_save(state)
        return attempt.phase in ENDED or "training"
    if event.step is not None:
        trainer.numbered_by_reports = False
    if step <= (attempt.last_iteration or 0):
        return True  # the bar before it has counted
    by_stamps = event.seconds_per_step is None and trainer.bar is None
    seconds, steps = measure(state, step, None, context.clock) if by_stamps else (event.seconds_per_step, None)
    return _step(state, StepReport(step, seconds, context, steps)) or True


def _take_values(attempt: Attempt, event: TrainerLogged) -> None:
    latest, trainer = attempt.latest, attempt.trainer
    if trainer.total is None and trainer.bar:
        trainer.total = attempt.train_iterations = trainer.bar[1]
    trainer.declared, trainer.inferred = True, False
    trainer.generates = trainer.generates or event.reward is not None
    latest.lm_loss, latest.grad_norm = event.loss, event.grad_norm
    latest.learning_rate = event.learning_rate
    if event.memory_bytes is not None:
        attempt.memory.max_reserved = max(event.memory_bytes, attempt.memory.max_reserved or 0)


def _step_of(attempt: Attempt, epoch: float | None) -> int | None:
    """Return the step of the bar. Without a bar, compute it from the share of completed epochs (trainer.py rounds the
    epoch to hundredths, and all epochs have equal steps; the total is planned in whole steps).
    """
    trainer, batch = attempt.trainer, attempt.topology.global_batch_size
    if trainer.bar is not None:
        return trainer.bar[0] if trainer.bar[1] == trainer.total else None
    if epoch is None or not trainer.epochs or trainer.total is None:
        return None
    per_epoch = trainer.total / trainer.epochs
    if trainer.examples and batch and per_epoch == trainer.examples // batch:
        per_epoch = trainer.examples / batch
    return min(round(epoch * per_epoch), trainer.total)


def _report_of(attempt: Attempt, event: TrainerLogged) -> int | None:
    """Return the number of a report if nothing shows its step: each counts as one step, a copy as none. Bars and
    numbers that come later are at least as far.
    """
    report = (str(event.epoch), f"{event.loss} {event.grad_norm} {event.learning_rate}")
    if attempt.trainer.bar is not None or attempt.trainer.total is not None or not attempt.is_new(report):
        return None
    attempt.trainer.numbered_by_reports = True
    return (attempt.last_iteration or 0) + 1
