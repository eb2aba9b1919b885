"""Adds rows to a run's history: `fold` calls `record` after an event that charts show."""

from megatron_monitor.breakdown.profile import critical
from megatron_monitor.charts.history import History, Row
from megatron_monitor.parsers.events import EngineStepLogged, Event, ThroughputReported, TrainerLogged, ValidationLogged
from megatron_monitor.run import derived
from megatron_monitor.run.phases import ENDED, drawn_as
from megatron_monitor.run.state import RunState

AMENDING = frozenset({EngineStepLogged, TrainerLogged, ThroughputReported})
"""Events that may add values to a counted iteration: DeepSpeed prints a step's rate in a line of its own."""
_BOUNDS = ENDED | {"starting", "evaluating", "saving", "exiting"}
"""Phases that end a period of training. Without a time of their own they begin at the end of the last iteration."""


def record(
    state: RunState, event: Event, stepped: bool, entered: bool, clock: float | None, at: float, live: bool
) -> None:
    """Record what `event` changed in `state`. `stepped`: it counted iterations. `entered`: it began a phase.

    `clock` is the log's own time of the event, None if none was printed. `at` and `live` are those of `fold`.
    """
    history, latest = state.history, state.attempt.latest
    at += state.wall_offset  # the log's own times are wall clock times
    if live and clock is not None:
        lag = at - clock
        history.clock_lag = lag if history.clock_lag is None else min(lag, history.clock_lag)
    if not history.kept:
        return
    time = clock if clock is not None else at - history.zone if live else None
    rows = history.steps.open
    latest_known = rows[-1][1] if rows else None
    if stepped and latest.iteration is not None:
        _add_step(state, latest.iteration, time, latest_known)
    else:
        _amend(state, event, time if time is not None else latest_known)
    if entered:
        _enter(state, time, latest_known, dated=clock is not None)


def _enter(state: RunState, time: float | None, latest_known: float | None, *, dated: bool) -> None:
    """Begin a phase at `time`, or at an unknown time. `dated`: by the log's own clock."""
    attempt, history = state.attempt, state.history
    if not history.phases:
        first = state.unix(state.first_at)
        seen = first - history.zone if first and time is not None else time
        history.add_phase(state.log_clock_first if dated else seen, None, "starting")
    bounds = time is None and attempt.phase in _BOUNDS
    history.add_phase(latest_known if bounds else time, attempt.latest.iteration, drawn_as(attempt.phase))


def _add_step(state: RunState, iteration: int, time: float | None, latest_known: float | None) -> None:
    """Add a row, and the parts of the iteration whose timers are complete now, usually the one before."""
    attempt, history = state.attempt, state.history
    if attempt.number != history.attempt:
        _note_restart(state, iteration, time)
    timed = attempt.timers.last
    if timed is not None:
        when = latest_known if latest_known is not None and timed.iteration != iteration else time
        history.add_parts(timed.iteration, when, *critical(timed))
    if time is not None and history.phases and history.phases[-1][0] is None:
        _date_training(history, time - (attempt.step_seconds or 0.0))
    history.add_step(_row(state, time))


def _amend(state: RunState, event: Event, when: float | None) -> None:
    """Add values to a counted iteration, or the result of an evaluation."""
    attempt, history, iteration = state.attempt, state.history, state.attempt.latest.iteration
    if isinstance(event, ValidationLogged):
        result = attempt.validations.get(event.dataset)
        if result is not None:
            where = event.iteration if event.iteration is not None else iteration
            history.add_validation(event.dataset, (where, when, attempt.number, result.loss))
    elif isinstance(event, TrainerLogged) and event.eval_loss is not None:
        history.add_validation("validation", (iteration, when, attempt.number, event.eval_loss))
    elif history.steps.open and (attempt.step_source != "iteration" or isinstance(event, ThroughputReported)):
        last = history.steps.open[-1]
        if last[0] == iteration and last[2] == attempt.number:
            history.steps.open[-1] = _row(state, last[1])


def _date_training(history: History, began: float) -> None:
    """Date the return to training: a line without a time about a validation or the end of a save ended it, and training
    began with this iteration.
    """
    _, iteration, phase = history.phases[-1]
    if phase == "training":
        before = history.phases[-2][0] if len(history.phases) > 1 else None
        history.phases[-1] = (began if before is None else max(began, before), iteration, phase)


def _note_restart(state: RunState, iteration: int, time: float | None) -> None:
    """Note that another attempt has counted steps."""
    attempt = state.attempt
    history, number = state.history, attempt.number
    if history.steps.open:
        history.add_restart(iteration, int(history.steps.open[-1][0] or 0), time)
        if attempt.arguments_changed:
            history.add_changes(iteration, time, attempt.arguments_changed)
    history.attempt = number


def _row(state: RunState, time: float | None) -> Row:
    """Return a row in the order of history.SERIES."""
    attempt = state.attempt
    latest, memory = attempt.latest, attempt.memory
    seconds, tflops = attempt.step_seconds, latest.tflops
    if tflops is None:
        tflops = derived.tflops_of_step(state)
    samples, tokens = state.history.consumed.take(
        latest.iteration or 0, latest.consumed_samples, latest.consumed_tokens,
        latest.global_batch_size, latest.sequence_length or attempt.topology.sequence_length,
    )  # fmt: skip
    return (
        latest.iteration,
        time,
        attempt.number,
        latest.lm_loss,
        latest.grad_norm,
        latest.loss_scale,
        seconds,
        attempt.pace.baseline or state.learned.baseline,
        tflops,
        memory.max_reserved or memory.max_allocated,
        latest.learning_rate,
        latest.global_batch_size,
        samples,
        tokens,
        state.gpu_seconds / 3600.0 or None,
    )
