"""Folds the training loop's own step line, of any format: values and time. Pure."""

from msgspec import structs

from megatron_monitor.model import flops
from megatron_monitor.parsers.events import IterationLogged
from megatron_monitor.parsers.programs import BY_NAME, program_of
from megatron_monitor.parsers.timers import BETWEEN_STEPS
from megatron_monitor.run.attempts import take_iteration
from megatron_monitor.run.phases import Moved
from megatron_monitor.run.records import EventContext, plus
from megatron_monitor.run.state import Attempt, RunState
from megatron_monitor.run.steps.counting import LONGEST_INTERVAL, StepReport, count_step, measure

_EPOCHS = 16  # remembered epochs
EXPLANATIONS = 16  # lines of an attempt that are compared with the formulas for TFLOPs


def fold_iteration(state: RunState, event: IterationLogged, context: EventContext) -> Moved:
    """Fold a line of the loop. Return whether it is progress."""
    in_units = event.in_samples or event.in_tokens
    if in_units:
        event = _in_iterations(state.attempt, event)
    if event.epoch is not None:
        event = _over_epochs(state.learned.epochs, event, event.epoch)
    if not take_iteration(state, event, context):
        return False
    attempt, iteration = state.attempt, event.iteration
    last = attempt.last_iteration
    _take_values(state, event)
    whole = bool(in_units) and last is None and attempt.number == 0 and iteration <= LONGEST_INTERVAL
    if attempt.step_timer.interrupted:
        attempt.step_timer.interrupted = not _is_paused(attempt, event)
    seconds, steps = event.seconds_per_iteration, None
    if seconds is None:
        seconds, steps = _measured(state, event, context.clock, whole=whole)
    # a later attempt may continue the time of the one before (Composer's does)
    states_begin = event.elapsed_seconds is not None and attempt.number == 0
    begun = (iteration, event.elapsed_seconds or 0.0) if states_begin else None
    phase = count_step(state, StepReport(iteration, seconds, context, steps, begun=begun))
    if whole:
        state.iterations_total += iteration - attempt.iterations  # the first line gives all iterations so far
        attempt.iterations = iteration
        attempt.first_iteration_seconds = None  # a mean of many iterations does not measure the first one
    attempt.last_raw = raw if isinstance(raw := context.entry.raw, bytes) else raw.encode()
    if event.tflops is not None and attempt.tflops_formula is None and attempt.unexplained < EXPLANATIONS:
        _explain(attempt, event.tflops, event.seconds_per_iteration or attempt.pure_seconds)
    return phase


def _in_iterations(attempt: Attempt, event: IterationLogged) -> IterationLogged:
    """Convert the line's samples or tokens to iterations. Without a sequence length, tokens are samples (MLPerf BERT).
    A program that counts steps under the same name is recognised by a number that no batch size divides.
    """
    batch = event.global_batch_size or attempt.topology.global_batch_size
    if event.in_tokens:
        tokens = (batch or 0) * (attempt.topology.sequence_length or 1)
        return structs.replace(event, iteration=event.iteration // tokens) if tokens else event
    if not batch or event.iteration % batch:
        return event
    return structs.replace(event, iteration=event.iteration // batch, consumed_samples=event.iteration)


def _over_epochs(epochs: dict[int, tuple[int, int]], event: IterationLogged, epoch: int) -> IterationLogged:
    """Count through the epochs. An epoch is as long as the line or its last number states, unless the next epoch
    continues from it.
    """
    if epoch not in epochs:
        known = [one for one in epochs if one < epoch]
        before, last = epochs[max(known)] if known else (0, 0)
        if known and event.iteration <= last:
            before += event.epoch_steps or last + (event.iteration == 0)
        epochs[epoch] = before, 0
        if len(epochs) > _EPOCHS:
            del epochs[next(iter(epochs))]
    before, last = epochs[epoch]
    epochs[epoch] = before, max(last, event.iteration)
    return structs.replace(event, iteration=before + event.iteration)


def _is_paused(attempt: Attempt, event: IterationLogged) -> bool:
    """Return True if the line's time does not include evaluations and saves."""
    stops_timer = event.logged_at is not None and program_of(event.format).pauses_timer_if_stamped
    return stops_timer or not BETWEEN_STEPS.isdisjoint(attempt.timers.own)


def _measured(
    state: RunState, event: IterationLogged, clock: float | None, *, whole: bool
) -> tuple[float | None, int | None]:
    """Return (seconds per iteration, iterations measured over or None if the line prints a rate) of a line without the
    seconds.
    """
    attempt = state.attempt
    batch = attempt.latest.global_batch_size
    if event.samples_per_second and batch and event.format not in BY_NAME:
        return batch / event.samples_per_second, None
    if attempt.last_iteration is None and not whole:
        attempt.step_timer.stamps.stop()  # the first iteration of this attempt is unknown
    return measure(state, event.iteration, event.elapsed_seconds, clock)


def _explain(attempt: Attempt, printed: float, seconds: float | None) -> None:
    """Find the formula of the printed TFLOPs. Takes half a millisecond: only for the first lines of an attempt."""
    if seconds is not None and attempt.pure_seconds is not None:
        batch_size, sequence_length = attempt.latest.global_batch_size, attempt.latest.sequence_length
        attempt.tflops_formula = flops.explain_printed(printed, attempt.topology, seconds, batch_size, sequence_length)
        attempt.unexplained += attempt.tflops_formula is None


def _take_values(state: RunState, event: IterationLogged) -> None:
    attempt, latest, topology = state.attempt, state.attempt.latest, state.attempt.topology
    if event.skipped_iterations:
        state.skipped_iterations_total = plus(state.skipped_iterations_total, event.skipped_iterations)
    if event.nan_iterations:
        state.nan_iterations_total = plus(state.nan_iterations_total, event.nan_iterations)
    if event.format != attempt.format or topology.format != event.format:
        attempt.format = topology.format = event.format
    if event.train_iterations is not None:
        attempt.train_iterations = event.train_iterations
    elif attempt.train_iterations is not None and event.iteration > attempt.train_iterations:
        attempt.train_iterations = None  # it was the length of an epoch
    latest.consumed_samples = event.consumed_samples
    latest.consumed_tokens = event.consumed_tokens
    latest.learning_rate = event.learning_rate
    latest.global_batch_size = event.global_batch_size or topology.global_batch_size
    latest.sequence_length = event.sequence_length or topology.sequence_length
    latest.lm_loss = event.lm_loss
    if event.loss_scale is not None and event.loss_scale > 0:  # DeepSpeed's pipeline prints -1.0: it owns the scale
        latest.loss_scale = event.loss_scale
    latest.grad_norm = event.grad_norm
    latest.seconds_per_iteration = event.seconds_per_iteration
    latest.samples_per_second = event.samples_per_second
    latest.tokens_per_second_per_gpu = event.tokens_per_second_per_gpu
    latest.tokens_per_second = event.tokens_per_second
    latest.tflops = event.tflops
    latest.mfu = event.mfu
    latest.losses = event.losses
