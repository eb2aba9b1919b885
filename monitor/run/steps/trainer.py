"""HF Trainer's steps: its progress bar counts, its dict brings the values (transformers, trainer.py and
trainer_callback.py). A bar of another length behind the training's own is its evaluation's.
"""

from __future__ import annotations

from monitor.run.evidence import pass_by
from monitor.run.phases import Moved
from monitor.run.records import Told, Validation
from monitor.run.state import Launch, RunState
from monitor.run.steps.counting import Report, count_step, take_over
from parsers.dialects import HF_TRAINER
from parsers.events import TrainerLogged, TrainerProgressed

_OF_TRAINING = ("", "train", "training")
_OF_EVALUATION = ("", "eval", "evaluating", "evaluation", "validation", "predict", "prediction")


def fold_trainer_progress(state: RunState, event: TrainerProgressed, told: Told) -> Moved:
    """A progress bar. Returns whether it was progress: of the training, or of an evaluation amid it."""
    launch = state.launch
    trainer, name = launch.trainer, event.description.lower()
    mine = event.total == trainer.total or (trainer.total is None and trainer.declared and name in _OF_TRAINING)
    if not mine:
        if launch.driver == "trainer" and trainer.total is not None and name in _OF_EVALUATION and event.step:
            return _evaluates(state, event, told.at)
        trainer.bar = event.step, event.total
        return False
    trainer.bar = event.step, event.total
    if not take_over(state, "trainer", HF_TRAINER.name):
        return False
    state.proven = True
    launch.train_iterations = event.total
    return _step(state, _timed(launch, event, told))


def _timed(launch: Launch, event: TrainerProgressed, told: Told) -> Report:
    """The bar's step and what it took: by the time since the start, which it shows in whole seconds. The rate that it
    shows is a running mean, and 0.00s/it no time yet: it tells what the first step took, nothing of the others.
    """
    trainer, rate = launch.trainer, event.seconds_per_step or None
    elapsed, last = event.elapsed_seconds, launch.last_iteration
    if elapsed is None or (last is not None and event.step <= last):
        return Report(event.step, rate, told)
    passed = elapsed - trainer.elapsed if trainer.elapsed is not None and not launch.watch.inside else 0.0
    alone = trainer.lap.iteration == last
    lap = trainer.lap.lap(event.step, elapsed, disturbed=launch.watch.inside, alone=alone, stamped=False)
    trainer.elapsed = elapsed
    if last is None:
        return Report(event.step, rate, told)
    seconds, steps = lap if lap is not None else (None, None)
    return Report(event.step, seconds, told, steps, max(0.0, passed))


def _evaluates(state: RunState, event: TrainerProgressed, at: float) -> Moved:
    """A bar of an evaluation or prediction amid the training."""
    launch = state.launch
    launch.evaluation_due = launch.evaluation_silent = False
    launch.silent_work = None
    launch.watch.interrupt(at)
    pass_by(state, at, step=False)
    return launch.ending.state == "crashed" or ("training" if event.step >= event.total else "evaluating")


def _step(state: RunState, report: Report) -> Moved:
    launch = state.launch
    launch.dialect = HF_TRAINER.name
    if report.iteration <= 0 or (launch.last_iteration is not None and report.iteration <= launch.last_iteration):
        return False  # every node draws its own bar; a new launch begins with the Trainer's own heading
    launch.latest.global_batch_size = launch.topology.global_batch_size
    return count_step(state, report)


def fold_trainer_log(state: RunState, event: TrainerLogged, told: Told) -> Moved:
    """HF Trainer's metric dict. It may not name its step: then the bar before it does."""
    launch = state.launch
    trainer = launch.trainer
    if event.max_steps is not None:
        trainer.total = launch.train_iterations = event.max_steps
    if event.eval_loss is not None:
        launch.validations["validation"] = Validation(launch.latest.iteration, event.eval_loss)
        launch.watch.interrupt(told.at)
        pass_by(state, told.at, step=False)
        return launch.ending.state == "crashed" or "evaluating"
    if not take_over(state, "trainer", HF_TRAINER.name):
        return False
    _take_values(launch, event)
    step = event.step if event.step is not None else _step_of_bar(launch)
    launch.dialect = HF_TRAINER.name
    if step is not None:
        return _step(state, Report(step, event.seconds_per_step, told)) or True
    return True


def _take_values(launch: Launch, event: TrainerLogged) -> None:
    latest, trainer = launch.latest, launch.trainer
    if trainer.total is None and trainer.bar:
        trainer.total = launch.train_iterations = trainer.bar[1]
    trainer.declared = True
    latest.lm_loss, latest.grad_norm = event.loss, event.grad_norm
    latest.learning_rate = event.learning_rate
    if event.memory_bytes is not None:
        launch.memory.max_reserved = max(event.memory_bytes, launch.memory.max_reserved or 0)


def _step_of_bar(launch: Launch) -> int | None:
    bar = launch.trainer.bar
    return bar[0] if bar and bar[1] == launch.trainer.total else None
