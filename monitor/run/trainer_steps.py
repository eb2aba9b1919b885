"""HF Trainer's steps: its progress bar counts, its dict brings the values. As iterations.py, which counts them."""

from __future__ import annotations

from monitor.run.evidence import pass_by
from monitor.run.iterations import count_step
from monitor.run.launches import set_phase
from monitor.run.records import Validation
from monitor.run.state import RunState
from parsers.dialects import HF_TRAINER
from parsers.events import TrainerLogged, TrainerProgressed


def fold_trainer_progress(state: RunState, event: TrainerProgressed, at: float, live: bool) -> bool:
    """A progress bar, if it is the training's own."""
    state.launch.trainer_bar = event.step, event.total
    unnamed = event.description.lower() in ("", "train", "training")
    mine = event.total == state.launch.trainer_total or (
        state.launch.trainer_total is None and state.launch.trainer_declared and unnamed
    )
    if not mine or state.launch.driver not in (None, "trainer"):
        return False
    state.proven = True
    state.launch.train_iterations = event.total
    return _trainer_step(state, event.step, event.seconds_per_step or None, at, live)  # 0.00s/it is no time yet


def _trainer_step(state: RunState, step: int, seconds: float | None, at: float, live: bool) -> bool:
    state.launch.driver = "trainer"
    state.launch.dialect = HF_TRAINER.name
    last = state.launch.last_iteration
    if step <= 0 or (last is not None and step <= last):
        return False  # every node draws its own bar; a new attempt begins with the Trainer's own heading
    state.launch.latest.global_batch_size = state.launch.topology.global_batch_size
    state.launch.latest.seconds_per_iteration = seconds
    count_step(state, step, seconds, at, live)
    return True


def fold_trainer_log(state: RunState, event: TrainerLogged, at: float, live: bool) -> bool:
    """HF Trainer's metric dict. It may not name its step: then the bar before it does."""
    if event.max_steps is not None:
        state.launch.trainer_total = state.launch.train_iterations = event.max_steps
    if event.eval_loss is not None:
        state.launch.validations["validation"] = Validation(state.launch.latest.iteration, event.eval_loss)
        pass_by(state, at, step=False)
        if state.launch.ending.state != "crashed":
            set_phase(state, "evaluating", at)
        return True
    if state.launch.driver not in (None, "trainer"):
        return False
    bar = state.launch.trainer_bar
    if state.launch.trainer_total is None and bar:
        state.launch.trainer_total = state.launch.train_iterations = bar[1]
    state.launch.trainer_declared = True
    latest = state.launch.latest
    latest.lm_loss, latest.grad_norm = event.loss, event.grad_norm
    latest.learning_rate = event.learning_rate
    if event.memory_bytes is not None:
        state.launch.memory.max_reserved = max(event.memory_bytes, state.launch.memory.max_reserved or 0)
    step = event.step if event.step is not None else (bar[0] if bar and bar[1] == state.launch.trainer_total else None)
    if step is None:
        state.launch.driver = "trainer"
        state.launch.dialect = HF_TRAINER.name
        return True
    seconds = (
        event.seconds_per_step if state.launch.latest.iteration is None else state.launch.latest.seconds_per_iteration
    )
    _trainer_step(state, step, seconds or event.seconds_per_step, at, live)
    return True
