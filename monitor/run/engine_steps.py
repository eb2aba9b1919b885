"""Steps that DeepSpeed's engine reports, and what it does not time: its clock runs from a step's forward pass to its
end, what lies between two steps stands in the stamps of their lines alone (run/between.py).
"""

from __future__ import annotations

from monitor.run.iterations import count_step, take_seconds
from monitor.run.launches import begin_launch, is_over
from monitor.run.saves import note_save
from monitor.run.state import RunState
from monitor.run.totals import plus
from parsers.dialects import DEEPSPEED
from parsers.events import EngineStepLogged


def fold_engine_step(
    state: RunState, event: EngineStepLogged, at: float, live: bool, clock: float | None = None
) -> bool:
    """A DeepSpeed engine's step: adds to Megatron's line, or stands alone (DeepSpeed without Megatron). `clock` is its
    stamp on the log's own clock.
    """
    counted, disturbed = state.iterations_total, state.launch.impure
    progressed = _fold_step(state, event, at, live)
    if state.launch.driver == "engine" and event.step > 0:
        _between(state, event, clock, counted=state.iterations_total != counted, disturbed=disturbed)
    return progressed


def _fold_step(state: RunState, event: EngineStepLogged, at: float, live: bool) -> bool:
    if event.max_allocated_bytes is not None or event.allocated_bytes is not None:
        state.launch.memory.allocated = event.allocated_bytes or state.launch.memory.allocated
        state.launch.memory.max_allocated = (
            max(event.max_allocated_bytes or 0, state.launch.memory.max_allocated or 0) or None
        )
    if event.step <= 0:
        return False
    if _is_another_programs(state, event):
        begin_launch(state, at)
    if state.launch.driver not in (None, "engine"):
        state.launch.engine_step = event.step
        if event.skipped_steps is not None:
            state.launch.overflows.take_counter(event.step, event.skipped_steps)
        last = state.launch.latest.iteration
        return last is None or event.step > last
    state.launch.driver = "engine"
    state.launch.dialect = event.dialect or state.launch.dialect or DEEPSPEED.name
    if event.train_steps is not None:
        state.launch.train_iterations = event.train_steps
    last = state.launch.last_iteration
    if last is not None and event.step < last:
        begin_launch(state, at, in_process=True)
        last = None
    latest = state.launch.latest
    if event.loss is not None:
        latest.lm_loss = event.loss
    if event.learning_rate is not None:
        latest.learning_rate = event.learning_rate
    if event.skipped_steps is not None:
        skipped = state.launch.overflows.take_counter(event.step, event.skipped_steps)
        state.skipped_iterations_total = plus(state.skipped_iterations_total, skipped)
    if event.samples_per_second is not None and not state.launch.rates_of_loop:
        latest.samples_per_second = event.samples_per_second
        state.launch.printed_rates.add(event.samples_per_second)
    latest.global_batch_size = state.launch.topology.global_batch_size
    elapsed = event.seconds_per_step
    if elapsed is None and event.samples_per_second and latest.global_batch_size:
        elapsed = latest.global_batch_size / event.samples_per_second
    if last is not None and event.step == last:  # another form of the same step
        if elapsed is not None and latest.seconds_per_iteration is None:
            latest.seconds_per_iteration = elapsed
            first = state.launch.first_iteration == event.step
            take_seconds(
                state,
                elapsed,
                1 if first else state.launch.log_interval or 1,
                first,
                at - state.unheard if live else None,
            )
        return False
    latest.seconds_per_iteration = elapsed
    count_step(state, event.step, elapsed, at, live)
    return True


def _is_another_programs(state: RunState, event: EngineStepLogged) -> bool:
    """Whether the engine of another program counts from now on: the launch is over, and this is no late line of it."""
    launch = state.launch
    if launch.driver in (None, "engine") or not is_over(launch):
        return False
    return launch.engine_step is None or event.step < launch.engine_step


def _between(state: RunState, event: EngineStepLogged, clock: float | None, *, counted: bool, disturbed: bool) -> None:
    """A report of the engine that counts the run's steps, right after its fold. `clock` is its stamp; `disturbed`: a
    save or an evaluation came since the report before.
    """
    between = state.launch.between
    between.outside = None
    if counted:
        saving = between.saving
        seconds = between.take(event.step, clock, disturbed=disturbed)
        if saving:
            _saved(state, seconds)
    elif event.step != between.iteration:
        return
    elif between.moment is None:
        between.moment = clock  # its other line has a stamp
    timed = event.seconds_per_step or (event.samples_per_second and state.launch.latest.seconds_per_iteration)
    if timed and between.step is not None and not state.launch.rates_of_loop:
        between.outside = between.step - timed, between.step
        between.step = None


def _saved(state: RunState, seconds: float | None) -> None:
    """The steps go on behind a save, so it is whole."""
    checkpoints = state.past.checkpoints
    iteration = state.launch.save.files_iteration
    if seconds is not None:
        note_save(state, seconds, iteration)
    checkpoints.saves += 1
    checkpoints.last_iteration = state.launch.latest.iteration if iteration is None else iteration
    state.launch.seconds_since_checkpoint = 0.0
