"""Counting: a report of a step, whoever told of it, into the totals, the pace and the phase of its attempt."""

from math import gcd

from msgspec import Struct

from megatron_monitor.parsers.dialects import BY_NAME, dialect_of
from megatron_monitor.run.attempts import is_amid_set_up
from megatron_monitor.run.evidence import pass_by
from megatron_monitor.run.phases import Phase
from megatron_monitor.run.records import EventContext, plus
from megatron_monitor.run.restarts import add_seconds, first_of_attempt
from megatron_monitor.run.silence import SILENT_EVALUATION, SILENT_SAVE
from megatron_monitor.run.state import Attempt, RunState
from megatron_monitor.run.steps.pace import likely_interval
from megatron_monitor.run.steps.timing import net_time

_EPOCHS, _LEAST_STEPS = 10, 500  # of a training whose steps may be those of whole epochs: few of them end one
_LONGEST_PRINTED = 100_000  # iterations between two lines, as the arguments say
LONGEST_INTERVAL = 1000
"""Iterations between two lines that are believed before an interval is known."""


class StepReport(Struct, gc=False):
    """What one line, or one redraw of a bar, says of a step."""

    iteration: int
    seconds: float | None
    """Per iteration; None where this report does not tell."""
    context: EventContext
    steps: int | None = None
    """The seconds are those of so many iterations, where they were measured over several reports."""
    passed: float | None = None
    """Seconds that went by since the report before, where the pace is measured over several; None: as the pace says."""


def count_step(state: RunState, report: StepReport) -> Phase:
    """The iteration of the report has finished; the phase that it leads to."""
    attempt, iteration, at = state.attempt, report.iteration, report.context.at
    first = attempt.last_iteration is None
    if attempt.timers.active:
        attempt.timers.close(attempt.last_iteration, attempt.step_seconds, attempt.log_interval or 1)
    delta = _advance(state, report)
    attempt.setup_events.clear()
    pass_by(attempt, at, report.context.source, step=True)
    attempt.step_seconds, attempt.others = None, 0
    if report.passed is not None:
        add_seconds(state, report.passed)
    if report.seconds is not None:
        attempt.latest.seconds_per_iteration = report.seconds
        record_seconds(state, report, report.steps or delta, first=first)
    if attempt.timers.own:
        attempt.timers.settle(iteration, attempt.step_seconds)
    if report.context.live:
        note_burst(state, report.seconds, delta, at)
    state.learned.highest_iteration = max(iteration, state.learned.highest_iteration or 0)
    attempt.step_timer.restart(at)
    if attempt.validations_since or attempt.evaluation_due:
        _leave_evaluation(state, report)
    phase = _phase_after(attempt, iteration)
    attempt.evaluation_due = attempt.evaluation_due or phase == "evaluating"
    attempt.silent_work = _silent_work(state, iteration) if phase == "training" else None
    return phase


def _advance(state: RunState, report: StepReport) -> int:
    """Count the iterations that the report stands for: so many."""
    attempt, iteration = state.attempt, report.iteration
    first, delta = attempt.last_iteration is None, _interval(state, iteration)
    if first:
        attempt.first_iteration, attempt.first_iteration_seconds = iteration, report.seconds
        attempt.mixed = is_amid_set_up(state, iteration)
    elif delta != attempt.log_interval:
        _take_interval(state, iteration, delta)
    if not attempt.resumed:
        first_of_attempt(state, (attempt.first_iteration or 0) - delta + 1, first=first)
    attempt.last_iteration = attempt.latest.iteration = iteration
    attempt.iterations += delta
    state.iterations_total = plus(state.iterations_total, delta)
    return delta


def _leave_evaluation(state: RunState, report: StepReport) -> None:
    """The loop goes on: what was evaluated before, or that nothing was."""
    attempt = state.attempt
    if attempt.validations_since:
        attempt.evaluation_sets, attempt.validations_since = attempt.validations_since, 0
    if not attempt.evaluation_due:
        return
    # Arguments ask for evaluations that need not be: there may be no data. None is expected before one is seen.
    attempt.evaluation_due, attempt.evaluation_silent = False, True
    if report.context.live and state.progress_at is not None and report.context.at > state.progress_at:
        silence = max(0.0, report.context.at - state.progress_at - state.coverage.unobserved(report.context.at))
        if attempt.hung:
            state.learned.silences.forgive(SILENT_EVALUATION, silence, report.context.at)
        else:
            state.learned.silences.learn(SILENT_EVALUATION, silence)


def _printed_interval(attempt: Attempt) -> int | None:
    """What the arguments say, unless no training prints so rarely."""
    context = attempt.topology.log_interval
    return context if context is not None and context <= _LONGEST_PRINTED else None


def _interval(state: RunState, iteration: int) -> int:
    """Iterations that this report stands for. A jump (lost lines, a skipped range) counts as one usual interval."""
    attempt = state.attempt
    last, usual = attempt.last_iteration, attempt.log_interval
    if last is None:
        return _first_interval(state, iteration)
    delta = iteration - last
    seldom_drawn = attempt.step_source == "trainer" or attempt.dialect not in BY_NAME
    if delta == usual or (seldom_drawn and 0 < delta <= LONGEST_INTERVAL):
        return delta
    usual = usual or _printed_interval(attempt)
    if usual is None:
        return delta if delta <= LONGEST_INTERVAL else 1
    return usual if delta > 2 * usual else max(delta, 1)


def _first_interval(state: RunState, iteration: int) -> int:
    """The same of an attempt's first report."""
    attempt = state.attempt
    by_dict = attempt.step_source == "trainer" and attempt.trainer.bar is None  # the first comes behind an interval
    every = _printed_interval(attempt) or state.learned.log_interval or (likely_interval(iteration) if by_dict else 1)
    done = iteration - attempt.loaded if attempt.loaded is not None else 0
    if 0 < done <= (every if every > 1 else LONGEST_INTERVAL):
        return done  # it went on from the checkpoint that it loaded
    return every if every > 1 and iteration > 0 and iteration % every == 0 else 1


def _take_interval(state: RunState, iteration: int, delta: int) -> None:
    """The iterations between two lines; of a declared dialect, whose lines may come out of turn, and of bars, which are
    drawn at any time, the usual number.
    """
    attempt, known = state.attempt, state.attempt.log_interval
    regular = attempt.dialect in BY_NAME and attempt.step_source != "trainer"
    if regular or known is None or delta >= known or delta == attempt.last_delta:
        if attempt.iterations == 1 and delta > 1 and iteration == 2 * delta and attempt.loaded is None:
            attempt.iterations += delta - 1  # the first line stood for as many
            state.iterations_total += delta - 1
        attempt.log_interval = delta
    attempt.last_delta = delta


def record_seconds(state: RunState, report: StepReport, count: int, *, first: bool) -> None:
    """The last `count` iterations took the report's seconds each. DeepSpeed tells it behind the step's own line."""
    attempt, context = state.attempt, report.seconds or 0.0
    if report.passed is None:
        add_seconds(state, context * count)
    seconds: float | None = context
    exact = True
    if attempt.step_timer.interrupted:
        at = report.context.at - state.coverage.unobserved(report.context.at) if report.context.live else None
        interval = attempt.step_timer.interval(count, context, attempt.last_iteration, at)
        seconds, exact, within = net_time(interval, attempt.pace.predicted())
        if within is not None:
            validations = attempt.validations_since
            state.learned.silences.learn(*(("evaluating", within / validations) if validations else ("saving", within)))
    if seconds is None:
        return
    attempt.pure_seconds = seconds
    if first:  # warm-up and compilation: shown, never learned from
        return
    batch_size = attempt.latest.global_batch_size
    if exact:
        attempt.step_seconds = seconds
        printed = attempt.latest.tflops if attempt.step_source == "iteration" and seconds == context else None
        state.steady.add(batch_size, seconds, printed)
    attempt.pace.add(seconds, batch_size)
    state.seconds.add(seconds, count)


def measure(
    state: RunState, iteration: int, elapsed: float | None, clock: float | None
) -> tuple[float | None, int | None]:
    """(seconds per iteration, iterations that they were measured over) of a report that does not print them, where
    they were measured: by the time since the start that it prints, else by its stamp, else by when it arrived.
    """
    watch = state.attempt.step_timer
    moment = clock if elapsed is None else elapsed
    if moment is None:
        arrived = None if state.arrived is None or state.coverage.unobserved(state.arrived) else state.arrived
        lap = watch.arrivals.lap(iteration, arrived, disturbed=watch.interrupted)
    else:
        single = watch.stamps.iteration == state.attempt.last_iteration
        lap = watch.stamps.lap(iteration, moment, disturbed=watch.interrupted, single=single, stamped=elapsed is None)
    return lap if lap is not None else (None, None)


def evaluation_every(attempt: Attempt) -> int | None:
    """Iterations between two evaluations; None (or 0) where the run does not evaluate, or nobody knows when."""
    top = attempt.topology
    return (top.eval_interval or attempt.evaluation_interval) if top.eval_iters != 0 else None


def _silent_work(state: RunState, iteration: int) -> str | None:
    """What the arguments ask for between this line and the next, where no line has told of any before."""
    attempt, top = state.attempt, state.attempt.topology
    every = top.save_interval if top.saves is not False and attempt.save.iteration is None else None
    ends = every and (iteration + (attempt.log_interval or 1) - 1) // every > (iteration - 1) // every
    if ends and not state.learned.checkpoints.saves:
        return SILENT_SAVE
    asked = attempt.evaluation_silent and (every := evaluation_every(attempt)) and iteration % every == 0
    inferred = dialect_of(attempt.dialect).silent or _ends_epoch(attempt, iteration)
    return SILENT_EVALUATION if asked or inferred else None


def _ends_epoch(attempt: Attempt, iteration: int) -> bool:
    """Whether so many steps are a few of a few epochs: a loop that prints nothing but its bar may evaluate then."""
    total = attempt.trainer.total if attempt.step_source == "trainer" and not attempt.validations else None
    return total is not None and total >= _LEAST_STEPS and total // gcd(total, iteration) <= _EPOCHS


def _phase_after(attempt: Attempt, iteration: int) -> Phase:
    if attempt.ending.state in ("crashed", "finished"):
        return attempt.ending.state
    if attempt.training_done:
        return "exiting"
    every = evaluation_every(attempt)
    if every and iteration % every == 0 and not attempt.evaluation_silent:
        return "evaluating"  # no line announces it: the loop evaluates before it goes on
    return "training"


_RATIO = 0.25  # a line that arrives in under a quarter of the time its iterations took was held back
_EXPLAINED = 0.7  # a burst whose iterations sum to this share of the silence before it explains the silence


def note_burst(state: RunState, elapsed: float | None, delta: int, at: float) -> None:
    """A line of `delta` iterations of `elapsed` seconds came live at `at`. Lines that a launcher held back come in
    bursts: the silence before was no hang (docs/development/incident-record.md, "How logs behave", 5).
    """
    last, burst = state.attempt.step_timer.at, state.buffering
    if last is None or elapsed is None:
        return
    gap, duration = at - last - state.coverage.unobserved(at), elapsed * delta
    if gap > _RATIO * duration:
        burst.burst_iterations, burst.burst_seconds, burst.silence_before = 1, duration, gap
        return
    burst.burst_iterations += 1
    burst.burst_seconds += duration
    silence = burst.silence_before
    if burst.burst_iterations >= 3 and silence > 2 * duration and burst.burst_seconds >= _EXPLAINED * silence:
        state.learned.silences.hold(silence)
