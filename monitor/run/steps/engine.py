"""Steps that DeepSpeed's engine reports, and what it does not time: its clock runs from a step's forward pass to its
end, what lies between two steps stands in the stamps of their lines alone (sources.py).
"""

from megatron_monitor.parsers.dialects import DEEPSPEED
from megatron_monitor.parsers.events import EngineStepLogged
from megatron_monitor.run.attempts import take_engine, take_engine_step
from megatron_monitor.run.phases import Moved
from megatron_monitor.run.records import EventContext, plus
from megatron_monitor.run.saves import note_complete, note_save
from megatron_monitor.run.state import Attempt, RunState
from megatron_monitor.run.steps.counting import StepReport, count_step, measure, record_seconds


def fold_engine_step(state: RunState, event: EngineStepLogged, context: EventContext) -> Moved:
    """A DeepSpeed engine's step: adds to another source's, or stands alone. Returns whether it was progress."""
    _take_memory(state.attempt, event)
    if event.step <= 0:
        return False
    counts = take_engine(state, event, event.dialect or DEEPSPEED.name, context)
    attempt = state.attempt
    if not counts:
        attempt.engine.latest_step = event.step
        if event.skipped_steps is not None:
            attempt.overflows.add_counter(event.step, event.skipped_steps)
        return attempt.latest.iteration is None or event.step > attempt.latest.iteration
    number = _number(attempt, event)
    if not take_engine_step(state, event, number, context):
        return False
    counted, disturbed = state.iterations_total, state.attempt.step_timer.interrupted
    progressed = _take_step(state, event, number, context)
    _between(state, event, number, context.clock, counted=state.iterations_total != counted, disturbed=disturbed)
    return progressed


def _take_memory(attempt: Attempt, event: EngineStepLogged) -> None:
    if event.max_allocated_bytes is not None or event.allocated_bytes is not None:
        memory = attempt.memory
        memory.allocated = event.allocated_bytes or memory.allocated
        memory.max_allocated = max(event.max_allocated_bytes or 0, memory.max_allocated or 0) or None


def _number(attempt: Attempt, event: EngineStepLogged) -> int:
    """The iteration of the line. The timer's line (deepspeed/utils/timer.py, `ThroughputTimer.stop`) counts the steps
    of this process, which a training that was resumed has not begun at 1: behind the line of the step it is of that.
    """
    if event.form == "throughput" and attempt.engine.numbered and attempt.last_iteration is not None:
        return attempt.last_iteration
    attempt.engine.numbered = attempt.engine.numbered or event.form != "throughput"
    return event.step


def _take_step(state: RunState, event: EngineStepLogged, number: int, context: EventContext) -> Moved:
    attempt, latest = state.attempt, state.attempt.latest
    _take_values(state, event, number)
    seconds = event.seconds_per_step
    if seconds is None and event.samples_per_second and latest.global_batch_size:
        seconds = latest.global_batch_size / event.samples_per_second
    attempt.engine.timed = attempt.engine.timed or seconds is not None
    steps = None
    if number != attempt.last_iteration and not attempt.engine.timed:
        seconds, steps = measure(state, number, None, context.clock)
    report = StepReport(number, seconds, context, steps)
    if number != attempt.last_iteration:
        latest.seconds_per_iteration = seconds
        return count_step(state, report)
    if seconds is not None and latest.seconds_per_iteration is None:  # another form of the same step
        latest.seconds_per_iteration = seconds
        first = attempt.first_iteration == number
        record_seconds(state, report, 1 if first else attempt.log_interval or 1, first=first)
    return False


def _take_values(state: RunState, event: EngineStepLogged, number: int) -> None:
    attempt, engine, latest = state.attempt, state.attempt.engine, state.attempt.latest
    attempt.dialect = event.dialect or attempt.dialect or DEEPSPEED.name
    if event.train_steps is not None:
        attempt.train_iterations = event.train_steps
    if event.loss is not None:
        latest.lm_loss = event.loss
    if event.learning_rate is not None:
        latest.learning_rate = event.learning_rate
    if event.skipped_steps is not None:
        skipped = attempt.overflows.add_counter(number, event.skipped_steps)
        state.skipped_iterations_total = plus(state.skipped_iterations_total, skipped)
    if event.samples_per_second is not None and not engine.rates_of_loop:
        latest.samples_per_second = event.samples_per_second
        engine.rates.add(event.samples_per_second)
    latest.global_batch_size = attempt.topology.global_batch_size


def _between(
    state: RunState, event: EngineStepLogged, number: int, clock: float | None, *, counted: bool, disturbed: bool
) -> None:
    """A report of the engine that counts the run's steps, right after its fold. `clock` is its stamp; `disturbed`: a
    save or an evaluation came since the report before.
    """
    engine = state.attempt.engine
    between = engine.gap
    between.outside = None
    if counted:
        saving = between.saving
        seconds = between.take(number, clock, disturbed=disturbed)
        if saving:  # the steps go on behind the save, so it is whole
            iteration = state.attempt.save.files_iteration
            if seconds is not None:
                note_save(state, seconds, iteration)
            note_complete(state, number if iteration is None else iteration)
    elif number != between.iteration:
        return
    elif between.moment is None:
        between.moment = clock  # its other line has a stamp
    timed = event.seconds_per_step or (event.samples_per_second and state.attempt.latest.seconds_per_iteration)
    if timed and between.step is not None and not engine.rates_of_loop:
        between.outside = between.step - timed, between.step
        between.step = None
