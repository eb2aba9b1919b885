"""Counts a reported step, from any step source, into the totals, the pace and the phase of its attempt."""

from math import gcd

from msgspec import Struct

from megatron_monitor.parsers.programs import BY_NAME, program_of
from megatron_monitor.run.attempts import is_amid_set_up
from megatron_monitor.run.evidence import pass_by
from megatron_monitor.run.phases import Phase
from megatron_monitor.run.records import EventContext, plus
from megatron_monitor.run.restarts import extend_attempt, first_of_attempt
from megatron_monitor.run.silence import SILENT_EVALUATION, SILENT_RESULT, SILENT_SAVE
from megatron_monitor.run.state import Attempt, RunState
from megatron_monitor.run.steps.timing import net_time

_MAX_EPOCHS, _MIN_STEPS = 10, 500  # a training with whole epochs has few epochs of many steps
_MAX_PRINTED_INTERVAL = 100_000  # plausible iterations between two lines, by the arguments
_ROUND = 25  # evaluations and saves come after a multiple of so many steps
LONGEST_INTERVAL = 1000
"""Plausible iterations between two lines before the interval is known."""


class StepReport(Struct, gc=False):
    """The step that one line, or one drawing of a progress bar, reports."""

    iteration: int
    seconds: float | None
    """Per iteration; None if unknown."""
    context: EventContext
    steps: int | None = None
    """How many iterations the seconds were measured over; None if they are printed."""
    passed: float | None = None
    """Seconds since the report before, if `seconds` are not those of all iterations since then."""
    begun: tuple[int, float] | None = None
    """What a progress bar states: (iterations since it began, seconds since then)."""


def count_step(state: RunState, report: StepReport) -> Phase:
    """Count the reported iteration, which has finished. Return the phase that follows."""
    attempt, iteration, at = state.attempt, report.iteration, report.context.at
    last = attempt.last_iteration
    first, outside = last is None, attempt.engine.gap.outside if attempt.step_source == "engine" else None
    if attempt.timers.printed:  # complete the timers of the report before
        attempt.timers.close(last, outside[1] if outside else attempt.step_seconds, attempt.every)
    delta = iteration - (last or 0)
    if last is None or delta != attempt.log_interval:
        delta = _interval(state, iteration)
    if first:
        _note_first(state, report)
    elif delta != attempt.log_interval:
        _note_interval(state, iteration, delta)
    if not attempt.resumed:
        first_of_attempt(state, (attempt.first_iteration or 0) - delta + 1, first=first)
    attempt.last_iteration = attempt.latest.iteration = iteration
    attempt.iterations += delta
    state.iterations_total += delta
    attempt.setup_events.clear()
    if attempt.evidence or attempt.collectives:
        pass_by(state, report.context, step=True)
    attempt.step_seconds, attempt.others = None, 0
    if report.passed is not None:
        state.add_seconds(report.passed)
    if report.seconds is not None:
        attempt.latest.seconds_per_iteration = report.seconds
        record_seconds(state, report, report.steps or delta, first=first)
    if report.steps is not None:
        _count_before(state, report.seconds or 0.0)
    if attempt.timers.own:
        attempt.timers.settle(iteration, attempt.step_seconds)
    state.learned.highest_iteration = max(iteration, state.learned.highest_iteration or 0)
    attempt.step_timer.restart(at)
    if attempt.validations_since or attempt.evaluation_due:
        _leave_evaluation(state, report)
    phase, attempt.silent_work = _after(state, iteration)
    attempt.evaluation_due = phase == "evaluating"
    return phase


def _note_first(state: RunState, report: StepReport) -> None:
    attempt = state.attempt
    attempt.first_iteration, attempt.first_iteration_seconds = report.iteration, report.seconds
    state.mixed |= is_amid_set_up(state, report.iteration)
    attempt.begun = report.begun if attempt.loaded is None else None


def _count_before(state: RunState, seconds: float) -> None:
    """Count the iterations before the first drawn frame of a bar, now that the `seconds` of one are measured.

    A bar states a position. The attempt has done these steps if the time since the bar began is enough for half of
    them (bars print whole seconds). Otherwise they were passed over, as HF Trainer does after a checkpoint.
    """
    attempt = state.attempt
    (steps, elapsed), attempt.begun = attempt.begun or (0, 0.0), None
    known = attempt.iterations - ((attempt.last_iteration or 0) - (attempt.first_iteration or 0))
    if not 0 < known < steps or (elapsed + 1.0) < 0.5 * steps * seconds:
        return
    attempt.iterations += steps - known
    state.iterations_total = plus(state.iterations_total, steps - known)
    attempt.first_iteration_seconds = None  # a mean of many iterations does not measure the first one
    state.add_seconds(elapsed * (steps - known) / steps)
    extend_attempt(state, steps - known)


def _leave_evaluation(state: RunState, report: StepReport) -> None:
    attempt = state.attempt
    if attempt.validations_since:
        attempt.evaluation_sets, attempt.validations_since = attempt.validations_since, 0
    if not attempt.evaluation_due:
        return
    # No line has reported the evaluation that the arguments ask for. There may be no data: expect none before one is
    # seen.
    attempt.evaluation_silent = True
    if report.context.live and state.progress_at is not None and report.context.at > state.progress_at:
        silence = max(0.0, report.context.at - state.progress_at - state.coverage.unobserved(report.context.at))
        if attempt.hung:
            state.learned.silences.forgive(SILENT_EVALUATION, silence, report.context.at)
        else:
            state.learned.silences.learn(SILENT_EVALUATION, silence)


def _interval(state: RunState, iteration: int) -> int:
    """Return the iterations that this report covers. A jump (lost lines, a skipped range) counts as usual."""
    attempt = state.attempt
    last, usual, printed = attempt.last_iteration, attempt.log_interval, attempt.topology.log_interval
    if printed is not None and printed > _MAX_PRINTED_INTERVAL:
        printed = None
    if last is None:
        return _first_interval(attempt, iteration, printed or state.learned.log_interval or 1)
    delta = iteration - last
    if delta == usual or (not _is_regular(attempt) and 0 < delta <= LONGEST_INTERVAL):
        return delta
    usual = usual or printed
    if usual is None:
        return delta if delta <= LONGEST_INTERVAL else 1
    return usual if delta > 2 * usual else max(delta, 1)


def _first_interval(attempt: Attempt, iteration: int, every: int) -> int:
    """Return the same for the first report of an attempt. `every`: iterations between two lines, as far as known."""
    done = iteration - attempt.loaded if attempt.loaded is not None else 0
    if 0 < done <= (every if every > 1 else LONGEST_INTERVAL):
        return done  # the attempt went on from the checkpoint that it loaded
    return every if every > 1 and iteration > 0 and iteration % every == 0 else 1


def _is_regular(attempt: Attempt) -> bool:
    """Return True if its lines come at equal intervals: bars are drawn at any time, lines of a declared format may come
    out of order.
    """
    return attempt.format in BY_NAME and attempt.step_source != "trainer"


def _note_interval(state: RunState, iteration: int, delta: int) -> None:
    """Learn the iterations between two lines. Without equal intervals a smaller number must come twice in a row."""
    attempt, known = state.attempt, state.attempt.log_interval
    if _is_regular(attempt) or known is None or delta >= known or delta == attempt.last_delta:
        if attempt.iterations == 1 and delta > 1 and iteration == 2 * delta and attempt.loaded is None:
            attempt.iterations += delta - 1  # the first line covered as many
            state.iterations_total += delta - 1
        attempt.log_interval = delta
    attempt.last_delta = delta


def record_seconds(state: RunState, report: StepReport, count: int, *, first: bool) -> None:
    """Record the report's seconds for each of the last `count` iterations."""
    attempt, printed_seconds = state.attempt, report.seconds or 0.0
    if report.passed is None:
        state.add_seconds(printed_seconds * count)
    seconds: float | None = printed_seconds
    exact = True
    if attempt.step_timer.interrupted:
        at = report.context.at - state.coverage.unobserved(report.context.at) if report.context.live else None
        interval = attempt.step_timer.interval(count, printed_seconds, attempt.last_iteration, at)
        seconds, exact, interruption = net_time(interval, attempt.pace.predicted())
        if interruption is not None and attempt.validations_since:
            state.learned.silences.learn("evaluating", interruption / attempt.validations_since)
        elif interruption is not None:
            state.learned.silences.learn("saving", interruption)
    if seconds is None:
        return
    attempt.pure_seconds = seconds
    if first:  # warm-up and compilation: shown, but never learned from
        return
    batch_size = attempt.latest.global_batch_size
    if exact:
        attempt.step_seconds = seconds
        by_line = attempt.step_source == "iteration" and seconds == printed_seconds
        state.steady.add(batch_size, seconds, attempt.latest.tflops if by_line else None)
    attempt.pace.add(seconds, batch_size)
    state.seconds.add(seconds, count)


def measure(
    state: RunState, iteration: int, elapsed: float | None, clock: float | None
) -> tuple[float | None, int | None]:
    """Measure a report that does not print its seconds: by the time since the start that it prints, else by its stamp,
    else by its arrival. Return (seconds per iteration, iterations measured over), or None for both.
    """
    timer = state.attempt.step_timer
    if elapsed is None and clock is None:
        arrived = None if state.arrived is None or state.coverage.unobserved(state.arrived) else state.arrived
        lap = timer.arrivals.lap(iteration, arrived, disturbed=timer.interrupted)
    else:
        single = timer.stamps.iteration == state.attempt.last_iteration
        moment = clock if elapsed is None else elapsed
        lap = timer.stamps.lap(iteration, moment, disturbed=timer.interrupted, single=single, stamped=elapsed is None)
    return lap or (None, None)


def _after(state: RunState, iteration: int) -> tuple[Phase, str | None]:
    """Return the phase after an iteration, and the work without a line of its own that may come before the next one: a
    save or an evaluation.
    """
    attempt, topology = state.attempt, state.attempt.topology
    if attempt.ending.state in ("crashed", "finished"):
        return attempt.ending.state, None
    if attempt.training_done:
        return "exiting", None
    every = (topology.eval_interval or attempt.evaluation_interval) if topology.eval_iters != 0 else None
    evaluates = bool(every) and iteration % (every or 1) == 0
    if evaluates and not attempt.evaluation_silent:
        return "evaluating", None  # no line announces the evaluation
    if topology.save_interval and _may_save(state, iteration, topology.save_interval):
        return "training", SILENT_SAVE
    epoch = attempt.step_source == "trainer" and _ends_epoch(attempt, iteration)
    program = program_of(attempt.format)
    if evaluates or epoch or program.silent:
        return "training", SILENT_EVALUATION
    known = attempt.step_source == "trainer" and state.learned.checkpoints.saves
    return "training", SILENT_RESULT if program.results_only and not known and _is_round(attempt, iteration) else None


def _is_round(attempt: Attempt, iteration: int) -> bool:
    """Return True if a round number of steps comes before the next report."""
    return (iteration + attempt.every) // _ROUND > (iteration - 1) // _ROUND


def _may_save(state: RunState, iteration: int, every: int) -> bool:
    """Return True if the arguments ask for a save before the next report, and no line has shown one."""
    attempt = state.attempt
    if state.learned.checkpoints.saves or attempt.topology.saves is False or attempt.save.iteration is not None:
        return False
    return (iteration + attempt.every - 1) // every > (iteration - 1) // every


def _ends_epoch(attempt: Attempt, iteration: int) -> bool:
    """Return True if a loop that prints nothing but its bar may evaluate now: an epoch may have ended."""
    total = attempt.trainer.total if not attempt.validations else None
    return total is not None and total >= _MIN_STEPS and total // gcd(total, iteration) <= _MAX_EPOCHS
