"""Folds the steps of DeepSpeed's engine, and the time that its clock leaves out (`EngineGap` in sources.py)."""

from megatron_monitor.parsers.events import EngineStepLogged
from megatron_monitor.parsers.programs import DEEPSPEED
from megatron_monitor.run.attempts import take_engine, take_engine_step
from megatron_monitor.run.phases import Moved
from megatron_monitor.run.records import EventContext, plus
from megatron_monitor.run.saves import note_complete, note_save
from megatron_monitor.run.state import RunState
from megatron_monitor.run.steps.counting import StepReport, count_step, measure, record_seconds


def fold_engine_step(state: RunState, event: EngineStepLogged, context: EventContext) -> Moved:
    """Fold a step of DeepSpeed's engine, which counts or adds to another step source. Return whether it is progress."""
    memory = state.attempt.memory
    memory.allocated = event.allocated_bytes or memory.allocated
    memory.max_allocated = max(event.max_allocated_bytes or 0, memory.max_allocated or 0) or None
    if event.step <= 0:
        return False
    counts = take_engine(state, event, event.format or DEEPSPEED.name, context)
    attempt = state.attempt
    if not counts:
        attempt.engine.latest_step = event.step
        if event.skipped_steps is not None:
            attempt.overflows.add_counter(event.skipped_steps)
        return attempt.latest.iteration is None or event.step > attempt.latest.iteration
    number = event.step
    if event.form != "throughput":
        attempt.engine.numbered = True
    elif attempt.engine.numbered and attempt.last_iteration is not None:
        # The timer (deepspeed/utils/timer.py, `ThroughputTimer.stop`) counts from the start of the process, which is
        # not iteration 1 after a resume. Its line follows the line of the step.
        number = attempt.last_iteration
    if not take_engine_step(state, event, number, context):
        return False
    counted, disturbed = state.iterations_total, state.attempt.step_timer.interrupted
    progressed = _fold_step(state, event, number, context)
    _note_gap(state, event, number, context.clock, counted=state.iterations_total != counted, disturbed=disturbed)
    return progressed


def _take_values(state: RunState, event: EngineStepLogged) -> None:
    attempt, engine, latest = state.attempt, state.attempt.engine, state.attempt.latest
    attempt.format = event.format or attempt.format or DEEPSPEED.name
    if event.train_steps is not None:
        attempt.train_iterations = event.train_steps
    if event.loss is not None:
        latest.lm_loss = event.loss
    if event.learning_rate is not None:
        latest.learning_rate = event.learning_rate
    if event.skipped_steps is not None:
        skipped = attempt.overflows.add_counter(event.skipped_steps)
        state.skipped_iterations_total = plus(state.skipped_iterations_total, skipped)
    if event.samples_per_second is not None and not engine.rates_of_loop:
        latest.samples_per_second = event.samples_per_second
        engine.rates.add(event.samples_per_second)
    latest.global_batch_size = attempt.topology.global_batch_size


def _fold_step(state: RunState, event: EngineStepLogged, number: int, context: EventContext) -> Moved:
    _take_values(state, event)
    attempt, engine, latest = state.attempt, state.attempt.engine, state.attempt.latest
    seconds = event.seconds_per_step
    if seconds is None and event.samples_per_second and latest.global_batch_size:
        seconds = latest.global_batch_size / event.samples_per_second
    engine.timed = engine.timed or seconds is not None
    if number != attempt.last_iteration:
        seconds, steps = (seconds, None) if engine.timed else measure(state, number, None, context.clock)
        latest.seconds_per_iteration = seconds
        return count_step(state, StepReport(number, seconds, context, steps))
    if seconds is not None and latest.seconds_per_iteration is None:  # another line of the same step
        latest.seconds_per_iteration = seconds
        first = attempt.first_iteration == number
        count = 1 if first else attempt.every
        record_seconds(state, StepReport(number, seconds, context), count, first=first)
    return False


def _note_gap(
    state: RunState, event: EngineStepLogged, number: int, clock: float | None, *, counted: bool, disturbed: bool
) -> None:
    """Note the time outside the engine's clock, right after the fold of its step. `clock`: the stamp of the line.
    `disturbed`: a save or an evaluation came since the report before.
    """
    engine = state.attempt.engine
    gap = engine.gap
    gap.outside = None
    if counted:
        saving = gap.saving
        seconds = gap.add_step(number, clock, disturbed=disturbed)
        if saving:  # a step after the save proves that the save is complete
            iteration = state.attempt.save.files_iteration
            if seconds is not None:
                note_save(state, seconds, iteration)
            note_complete(state, number if iteration is None else iteration)
    elif number != gap.iteration:
        return
    timed = event.seconds_per_step or (event.samples_per_second and state.attempt.latest.seconds_per_iteration)
    if timed and gap.step is not None and not engine.rates_of_loop:
        gap.outside = gap.step - timed, gap.step
        gap.step = None
