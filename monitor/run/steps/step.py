"""The values of one step report, made once after its event was folded, and read by all rules."""

from msgspec import Struct

from megatron_monitor.breakdown.account import TimerLine
from megatron_monitor.parsers.events import EngineStepLogged, Event, IterationLogged, TrainerLogged, TrainerProgressed
from megatron_monitor.parsers.programs import BY_NAME
from megatron_monitor.run.state import Attempt, RunState

STEP_EVENTS: frozenset[type[Event]] = frozenset({IterationLogged, EngineStepLogged, TrainerLogged, TrainerProgressed})


class Step(Struct, gc=False, kw_only=True):
    """One report of a step. Seconds and bytes. None: not in the log."""

    iteration: int
    """0: the iteration is not known yet."""
    at: float
    """Unix seconds at which the line of this iteration was written."""
    counted: bool
    """False for a further report of a counted step (DeepSpeed's second line, the Trainer's dict)."""
    interval: int = 1
    """Iterations between two lines of this attempt. 1 while only one line is known."""
    finished: int = 0
    """Iterations that this attempt has finished, including this one."""
    seconds: float | None = None
    """Seconds per iteration without evaluation and saving. None: unknown, or not separable from them."""
    printed_seconds: float | None = None
    """Seconds per iteration as printed."""
    reported: bool = False
    """True for the step source's report with the loss, if one is printed. `loss` of a report that is neither this nor
    counted was printed by DeepSpeed's engine beside the training loop's own line.
    """
    loss: float | None = None
    losses: dict[str, float] | None = None
    """Further losses of the loop's line, by their printed names."""
    grad_norm: float | None = None
    loss_scale: float | None = None
    """The last reported value."""
    learning_rate: float | None = None
    batch_size: int | None = None
    sequence_length: int | None = None
    samples: int | None = None
    """Samples consumed up to this step."""
    skipped: int | None = None
    """Skipped iterations as printed in this line."""
    nans: int | None = None
    """Iterations with a NaN loss as printed in this line."""
    new_skipped: int = 0
    """Skipped iterations that this report added to the run's total."""
    timer_line: TimerLine | None = None
    """The timers of the iteration line before this one, which are complete now, or of this line if it prints
    its own.
    """
    outside: tuple[float, float] | None = None
    """For a step of DeepSpeed's engine: seconds outside its clock, and seconds of the whole step."""


def _step_from_event(state: RunState, event: Event, iterations: int, skipped: int, source: str | None) -> Step | None:
    """Return the step that an event of STEP_EVENTS reports, read from the state after its fold. None: it reports no
    step. `iterations`, `skipped` and `source` are the run's totals and its step source before the fold.
    """
    attempt, step_source = state.attempt, state.attempt.step_source
    counted = state.iterations_total != iterations
    match event:
        case TrainerProgressed():
            return _step(state, counted, skipped) if counted else None
        case IterationLogged():
            if not counted and source == step_source:
                return None  # a copy, or a source that lags behind
            step = _step(state, counted, skipped)
            _take_line(step, event)
        case EngineStepLogged():
            if step_source == "iteration" and event.loss is None:
                return None
            step = _step(state, counted, skipped)
            if step_source == "engine":
                step.reported, step.outside = event.loss is not None, attempt.engine.gap.outside
            step.loss = event.loss
        case TrainerLogged():
            if step_source != "trainer":
                return None
            step = _step(state, counted, skipped)
            _take_dict(step, event)
        case _:
            return None
    step.learning_rate = event.learning_rate
    return step


def add_step(
    steps: list[Step], state: RunState, event: Event, iterations_before: int, skipped_before: int,
    source_before: str | None,
) -> None:  # fmt: skip
    """Add the step that the folded event reports, unless it adds values to the last one. `..._before`: before it was
    folded.
    """
    if not (steps and _amend_step(steps[-1], state.attempt, event)):
        step = _step_from_event(state, event, iterations_before, skipped_before, source_before)
        if step is not None:
            steps.append(step)


def _amend_step(step: Step, attempt: Attempt, event: Event) -> bool:
    """Return True if a dict adds values to the step that its bar has just counted. The step has them then."""
    if type(event) is not TrainerLogged or attempt.step_source != "trainer" or step.reported:
        return False
    if step.iteration != attempt.latest.iteration:
        return False
    _take_dict(step, event)
    step.learning_rate = event.learning_rate
    return True


def _take_line(step: Step, event: IterationLogged) -> None:
    step.loss, step.losses, step.grad_norm = event.lm_loss, event.losses or None, event.grad_norm
    # otherwise a line may have no loss
    step.reported = event.lm_loss is not None or step.losses is not None or event.format in BY_NAME
    step.skipped, step.nans = event.skipped_iterations, event.nan_iterations


def _take_dict(step: Step, event: TrainerLogged) -> None:
    step.reported, step.loss, step.grad_norm = event.loss is not None, event.loss, event.grad_norm
    step.losses = None if event.reward is None else {"reward": event.reward}


def _step(state: RunState, counted: bool, skipped_before: int) -> Step:
    """Return the values that all reports have."""
    attempt, latest = state.attempt, state.attempt.latest
    return Step(
        iteration=latest.iteration or 0,
        at=state.updated_at if attempt.step_timer.at is None else attempt.step_timer.at,
        counted=counted,
        interval=attempt.log_interval or 1,
        finished=attempt.iterations,
        seconds=attempt.step_seconds,
        printed_seconds=latest.seconds_per_iteration,
        loss_scale=latest.loss_scale,
        batch_size=latest.global_batch_size,
        sequence_length=latest.sequence_length,
        samples=latest.consumed_samples,
        new_skipped=state.skipped_iterations_total - skipped_before,
        timer_line=attempt.timers.last if counted else None,
    )
