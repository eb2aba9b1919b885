"""The training loop's own line, of any dialect: values and time. Pure."""

from msgspec import structs

from megatron_monitor.model import flops
from megatron_monitor.parsers.dialects import BY_NAME, dialect_of
from megatron_monitor.parsers.events import IterationLogged
from megatron_monitor.parsers.timers import BETWEEN_STEPS
from megatron_monitor.run.attempts import take_iteration
from megatron_monitor.run.phases import Moved
from megatron_monitor.run.records import EventContext, plus
from megatron_monitor.run.state import Attempt, RunState
from megatron_monitor.run.steps.counting import LONGEST_INTERVAL, StepReport, count_step, measure

EXPLANATIONS = 16  # lines of an attempt that are tried against the formulas


def fold_iteration(state: RunState, event: IterationLogged, context: EventContext) -> Moved:
    """A line of the loop. Returns whether it was progress."""
    in_units = event.in_samples or event.in_tokens
    if in_units:
        event = _in_iterations(state.attempt, event)
    if not take_iteration(state, event, context):
        return False
    attempt, iteration = state.attempt, event.iteration
    last = attempt.last_iteration
    if event.dialect != attempt.dialect or attempt.topology.dialect != event.dialect:
        attempt.dialect = attempt.topology.dialect = event.dialect
    _take_values(attempt, event)
    _take_totals(state, event)
    whole = bool(in_units) and last is None and attempt.number == 0 and iteration <= LONGEST_INTERVAL
    seconds, steps = _seconds(state, event, context.clock, whole=whole)
    phase = count_step(state, StepReport(iteration, seconds, context, steps))
    if whole:
        state.iterations_total += iteration - attempt.iterations  # its first line says how far it is
        attempt.iterations = iteration
        attempt.first_iteration_seconds = None  # a mean of many is no measure of one
    attempt.last_raw = raw if isinstance(raw := context.entry.raw, bytes) else raw.encode()
    _explain(attempt, event)
    return phase


def _take_totals(state: RunState, event: IterationLogged) -> None:
    attempt = state.attempt
    if event.train_iterations is not None:
        attempt.train_iterations = event.train_iterations
    elif attempt.train_iterations is not None and event.iteration > attempt.train_iterations:
        attempt.train_iterations = None  # it was the length of an epoch
    if event.skipped_iterations:
        state.skipped_iterations_total = plus(state.skipped_iterations_total, event.skipped_iterations)
    if event.nan_iterations:
        state.nan_iterations_total = plus(state.nan_iterations_total, event.nan_iterations)


def _in_iterations(attempt: Attempt, event: IterationLogged) -> IterationLogged:
    """The line's iteration, where it counts samples or tokens; where no length of a sequence is told these are samples
    (MLPerf's BERT). A program that counts steps under the same name shows by a number that no batch size divides.
    """
    batch = event.global_batch_size or attempt.topology.global_batch_size
    if event.in_tokens:
        each = (batch or 0) * (attempt.topology.sequence_length or 1)
        return structs.replace(event, iteration=event.iteration // each) if each else event
    if not batch or attempt.counts_steps or event.iteration % batch:
        attempt.counts_steps = bool(batch)
        return event
    return structs.replace(event, iteration=event.iteration // batch, consumed_samples=event.iteration)


def _seconds(
    state: RunState, event: IterationLogged, clock: float | None, *, whole: bool
) -> tuple[float | None, int | None]:
    """(seconds per iteration, iterations that they were measured over, where they were): as the line prints, else by
    the time since the start that it prints, else by its stamp, else by when it arrived.
    """
    attempt = state.attempt
    stops_timer = event.logged_at is not None and dialect_of(event.dialect).pauses_timer_if_stamped
    if stops_timer or not BETWEEN_STEPS.isdisjoint(attempt.timers.own):
        attempt.step_timer.interrupted = False  # evaluation and saving are out of the time that the line tells
    if event.seconds_per_iteration is not None:
        return event.seconds_per_iteration, None
    batch = attempt.latest.global_batch_size
    if event.samples_per_second and batch and event.dialect not in BY_NAME:
        return batch / event.samples_per_second, None
    if attempt.last_iteration is None and not whole:
        attempt.step_timer.stamps.stop()  # where this attempt began to count is not known
    return measure(state, event.iteration, event.elapsed_seconds, clock)


def _explain(attempt: Attempt, event: IterationLogged) -> None:
    """Find the formula that printed the TFLOPs. It takes half a millisecond: done on an attempt's first lines only."""
    latest = attempt.latest
    if attempt.tflops_formula is not None or event.tflops is None:
        return
    if attempt.pure_seconds is None or attempt.unexplained >= EXPLANATIONS:
        return
    attempt.tflops_formula = flops.explain_printed(
        event.tflops,
        attempt.topology,
        event.seconds_per_iteration or attempt.pure_seconds,
        latest.global_batch_size,
        latest.sequence_length,
    )
    attempt.unexplained += attempt.tflops_formula is None


def _take_values(attempt: Attempt, event: IterationLogged) -> None:
    """The line's values are the newest."""
    latest, topology = attempt.latest, attempt.topology
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
    latest.mfu, latest.hfu = event.mfu, event.hfu
    latest.losses = event.losses
