"""The set-up of an attempt: milestones, arguments, topology, software, environment.

Each `on_` function is a handler of `fold`.
"""

from megatron_monitor.model.arguments import changed_arguments
from megatron_monitor.parsers import events
from megatron_monitor.parsers.engine.fields import whole
from megatron_monitor.parsers.events import Event
from megatron_monitor.run import saves
from megatron_monitor.run.evidence import fold_own_end, proves_life
from megatron_monitor.run.experiments import plan_of
from megatron_monitor.run.log_clock import log_clock
from megatron_monitor.run.phases import PHASE_AFTER_MILESTONE, Moved
from megatron_monitor.run.records import EventContext
from megatron_monitor.run.restarts import note_setting, stamp_of
from megatron_monitor.run.state import RunState


def on_milestone(state: RunState, event: events.MilestoneReached, context: EventContext) -> Moved:
    """Apply a reported step of the set-up."""
    if event.milestone == "training_done":
        fold_own_end(state, "done", context)
        saves.end_save(state, event.logged_at)
        return True
    if event.milestone == "training_started":
        state.attempt.step_timer.stamps.begin(log_clock(event.logged_at))
    if state.attempt.iterations:
        return False
    return PHASE_AFTER_MILESTONE[event.milestone] if proves_life(state, context) else True


def on_arguments(state: RunState, event: events.ArgumentsDumped, context: EventContext) -> bool:
    """Apply the arguments dump, which has most of the topology."""
    stamp = stamp_of(event)
    known = bool(state.attempt.arguments)
    progressed = on_setting(state, event, context)
    if state.attempt.boundaries["arguments"] == stamp:  # a second dump belongs to a critic or a teacher model
        state.plan = plan_of(event)
        if not known:
            if state.arguments:  # of the last attempt that printed them
                state.attempt.arguments_changed = changed_arguments(state.arguments, state.attempt.arguments)
            state.arguments = state.attempt.arguments
    return progressed


def on_setting(state: RunState, event: Event, _context: EventContext) -> bool:
    """Apply a fact of the set-up."""
    note_setting(state, event)
    return state.attempt.iterations == 0


def on_environment(state: RunState, event: Event, _context: EventContext) -> bool:
    """Apply a variable or a version, which may be printed at any time."""
    note_setting(state, event)
    return False


def on_trainer_setting(state: RunState, event: events.TrainerSetting, context: EventContext) -> bool:
    """Apply HF Trainer's heading and the figures below it."""
    trainer = state.attempt.trainer
    if event.name == "running_training":
        trainer.declared, trainer.examples = True, None
    elif event.name == "total optimization steps" and isinstance(event.value, int | float):
        trainer.total = whole(event.value)
        if state.attempt.step_source in (None, "trainer"):
            state.attempt.train_iterations = trainer.total
    elif event.name == "num epochs" and isinstance(event.value, int | float):
        trainer.epochs = event.value
    elif event.name == "num examples" and trainer.examples is None and isinstance(event.value, int | float):
        trainer.examples = event.value  # an evaluation names its own later
    return on_setting(state, event, context)
