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
    """True for the step source's report with the loss, if one is printed."""
    is_line: bool = False
    """True for the report with the values of the step, once: each node of HF Trainer or an engine may print one."""
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


def add_step(
    steps: list[Step], state: RunState, event: Event, iterations_before: int, skipped_before: int,
    source_before: str | None,
) -> None:  # fmt: skip
    """Add the step that the folded event of STEP_EVENTS reports, unless it adds values to the last one. `..._before`:
    the run's totals and its step source before the fold.
    """
    attempt, latest, source = state.attempt, state.attempt.latest, state.attempt.step_source
    counted = state.iterations_total != iterations_before
    if isinstance(event, IterationLogged):
        if not counted and source == source_before:
            return  # a copy, or a source that lags behind
    elif isinstance(event, EngineStepLogged):
        if source == "iteration":
            return  # the loop's own line reports the step
    elif isinstance(event, TrainerLogged):
        if source != "trainer":
            return
        if steps and not steps[-1].reported and steps[-1].iteration == latest.iteration:
            _take_values(steps[-1], attempt, event)  # its bar has just counted it
            return
    elif not counted:
        return
    step = Step(
        iteration=latest.iteration or 0,
        at=state.updated_at if attempt.step_timer.at is None else attempt.step_timer.at,
        counted=counted,
        interval=attempt.every,
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
    _take_values(step, attempt, event)
    steps.append(step)


def _take_values(step: Step, attempt: Attempt, event: Event) -> None:
    """Add what the event itself says about the step."""
    match event:
        case IterationLogged():
            step.loss, step.losses, step.grad_norm = event.lm_loss, event.losses or None, event.grad_norm
            # otherwise a line may have no loss
            step.reported = event.lm_loss is not None or step.losses is not None or event.format in BY_NAME
            step.skipped, step.nans, step.is_line = event.skipped_iterations, event.nan_iterations, step.counted
        case EngineStepLogged():
            step.loss = event.loss
            if attempt.step_source == "engine":
                step.reported, step.outside = event.loss is not None, attempt.engine.gap.outside
        case TrainerLogged():
            step.reported, step.loss, step.grad_norm = event.loss is not None, event.loss, event.grad_norm
            step.losses = None if event.reward is None else {"reward": event.reward}
        case TrainerProgressed():
            step.loss, step.reported = (event.loss, event.loss is not None) if step.counted else (None, False)
            return
        case _:
            return
    step.learning_rate = event.learning_rate
    if step.reported and attempt.step_source != "iteration" and (step.iteration, step.loss) != attempt.last_report:
        attempt.last_report, step.is_line = (step.iteration, step.loss), True
