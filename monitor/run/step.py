"""What one report of a step says: built once, right after its event was folded, and read by all detectors."""

from __future__ import annotations

from msgspec import Struct

from monitor.breakdown.account import Timed
from monitor.run.state import RunState
from parsers.dialects import BY_NAME
from parsers.events import EngineStepLogged, Event, IterationLogged, TrainerLogged, TrainerProgressed

STEP_EVENTS: frozenset[type[Event]] = frozenset({IterationLogged, EngineStepLogged, TrainerLogged, TrainerProgressed})


class Step(Struct, gc=False):
    """One report of a step. Seconds, bytes; None where the log does not say."""

    iteration: int
    """0 before the first one is known."""
    at: float
    """When the line of this iteration was written, Unix seconds."""
    counted: bool
    """False: a further report of a step that is counted already (DeepSpeed's second line, the Trainer's dict)."""
    interval: int = 1
    """Iterations between two lines of this launch, 1 while only one line is known."""
    finished: int = 0
    """Iterations that this launch has finished, this one included."""
    seconds: float | None = None
    """Seconds per iteration, evaluation and saving taken out; None where they are unknown or those are still in it."""
    printed_seconds: float | None = None
    """Seconds per iteration as printed."""
    reported: bool = False
    """The report of the step source that carries the loss, if any is printed. `loss` of a report that is neither this
    nor counted is what DeepSpeed's engine prints beside the training loop's own line.
    """
    loss: float | None = None
    grad_norm: float | None = None
    loss_scale: float | None = None
    """The last one reported."""
    learning_rate: float | None = None
    batch_size: int | None = None
    sequence_length: int | None = None
    samples: int | None = None
    """Consumed up to this step."""
    skipped: int | None = None
    """Skipped iterations, as printed on this line."""
    nans: int | None = None
    """Iterations with a NaN loss, as printed on this line."""
    new_skipped: int = 0
    """Skipped iterations that this report added to the run's total."""
    memory_bytes: int | None = None
    """Device memory in use, where this report carries it,"""
    memory_peak_bytes: int | None = None
    """and the most that was ever in use."""
    evaluated_at: int | None = None
    """The iteration behind which the last evaluation of this launch came."""
    timed: Timed | None = None
    """The timers of the iteration line before this one, which are whole only now; this one's, if it prints its own."""
    outside: tuple[float, float] | None = None
    """Of a step that DeepSpeed's engine counts: seconds that lie outside its clock, and of the whole step."""


def step_of(state: RunState, event: Event, iterations: int, skipped: int, source: str | None) -> Step | None:
    """The step that an event of STEP_EVENTS reports, read from the state right after its fold; None if it says nothing
    of a step. `iterations`, `skipped` and `source` are the run's totals and its step source before the fold.
    """
    launch = state.launch
    counted = state.iterations_total != iterations
    driver, kind = launch.driver, type(event)
    loss: float | None = None
    norm: float | None = None
    rate: float | None = None
    used: int | None = None
    peak: int | None = None
    on_line: int | None = None
    nans: int | None = None
    reported = False
    if kind is IterationLogged:
        assert isinstance(event, IterationLogged)
        if not counted and source == driver:
            return None  # a copy, or a source that lags behind
        reported = event.lm_loss is not None or event.dialect in BY_NAME  # elsewhere a line may be without one
        loss, norm, rate = event.lm_loss, event.grad_norm, event.learning_rate
        on_line, nans = event.skipped_iterations, event.nan_iterations
    elif kind is TrainerProgressed:
        if not counted:
            return None
    else:
        assert isinstance(event, EngineStepLogged | TrainerLogged)
        loss, rate = event.loss, event.learning_rate
        if isinstance(event, EngineStepLogged):
            carries = event.allocated_bytes is not None or event.max_allocated_bytes is not None
            reported = driver == "engine" and loss is not None
            if driver == "iteration" and loss is None and not carries:
                return None
        else:
            if driver != "trainer":
                return None
            carries = event.memory_bytes is not None
            norm, reported = event.grad_norm, loss is not None
        if carries:
            memory = launch.memory
            used = memory.allocated or memory.reserved or memory.max_allocated or memory.max_reserved
            peak = max((value for value in (memory.max_allocated, memory.allocated) if value), default=None)
    latest, attempt = launch.latest, launch
    at = launch.watch.at
    return Step(
        latest.iteration or 0, state.updated_at if at is None else at, counted, launch.log_interval or 1,
        attempt.iterations, launch.step_seconds, latest.seconds_per_iteration, reported, loss, norm, latest.loss_scale,
        rate, latest.global_batch_size, latest.sequence_length, latest.consumed_samples, on_line, nans,
        state.skipped_iterations_total - skipped, used, peak, launch.evaluated_at,
        launch.account.last if counted else None, launch.engine.between.outside if driver == "engine" else None,
    )  # fmt: skip
