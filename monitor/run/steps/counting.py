"""Counting: a report of a step, whoever told of it, into the totals, the pace and the phase of its launch."""

from math import gcd

from msgspec import Struct

from megatron_monitor.parsers.dialects import BY_NAME, dialect_of
from megatron_monitor.run.attempts import is_amid_set_up
from megatron_monitor.run.evidence import pass_by
from megatron_monitor.run.launches import add_seconds, first_of_launch
from megatron_monitor.run.phases import Phase
from megatron_monitor.run.records import Told, plus
from megatron_monitor.run.silence import SILENT_EVALUATION, SILENT_SAVE
from megatron_monitor.run.state import Launch, RunState
from megatron_monitor.run.steps.pace import likely_interval
from megatron_monitor.run.steps.watch import pure

_EPOCHS, _LEAST_STEPS = 10, 500  # of a training whose steps may be those of whole epochs: few of them end one
_LONGEST_TOLD = 100_000  # iterations between two lines, as the arguments say
LONGEST_INTERVAL = 1000
"""Iterations between two lines that are believed before an interval is known."""


class Report(Struct, gc=False):
    """What one line, or one redraw of a bar, says of a step."""

    iteration: int
    seconds: float | None
    """Per iteration; None where this report does not tell."""
    told: Told
    steps: int | None = None
    """The seconds are those of so many iterations, where they were measured over several reports."""
    passed: float | None = None
    """Seconds that went by since the report before, where the pace is measured over several; None: as the pace says."""


def count_step(state: RunState, report: Report) -> Phase:
    """The iteration of the report has finished; the phase that it leads to."""
    launch, iteration, at = state.launch, report.iteration, report.told.at
    first = launch.last_iteration is None
    if launch.account.active:
        launch.account.close(launch.last_iteration, launch.step_seconds, launch.log_interval or 1)
    delta = _advance(state, report)
    launch.opening.clear()
    pass_by(launch, at, report.told.source, step=True)
    launch.step_seconds, launch.others = None, 0
    if report.passed is not None:
        add_seconds(state, report.passed)
    if report.seconds is not None:
        launch.latest.seconds_per_iteration = report.seconds
        take_seconds(state, report, report.steps or delta, first=first)
    if launch.account.own:
        launch.account.settle(iteration, launch.step_seconds)
    if report.told.live:
        watch_bursts(state, report.seconds, delta, at)
    state.past.highest_iteration = max(iteration, state.past.highest_iteration or 0)
    launch.watch.restart(at)
    if launch.validations_since or launch.evaluation_due:
        _leave_evaluation(state, report)
    phase = _phase_after(launch, iteration)
    launch.evaluation_due = launch.evaluation_due or phase == "evaluating"
    launch.silent_work = _silent_work(state, iteration) if phase == "training" else None
    return phase


def _advance(state: RunState, report: Report) -> int:
    """Count the iterations that the report stands for: so many."""
    launch, iteration = state.launch, report.iteration
    first, delta = launch.last_iteration is None, _interval(state, iteration)
    if first:
        launch.first_iteration, launch.first_iteration_seconds = iteration, report.seconds
        launch.mixed = is_amid_set_up(state, iteration)
    elif delta != launch.log_interval:
        _take_interval(state, iteration, delta)
    if not launch.resumed:
        first_of_launch(state, (launch.first_iteration or 0) - delta + 1, first=first)
    launch.last_iteration = launch.latest.iteration = iteration
    launch.iterations += delta
    state.iterations_total = plus(state.iterations_total, delta)
    return delta


def _leave_evaluation(state: RunState, report: Report) -> None:
    """The loop goes on: what was evaluated before, or that nothing was."""
    launch = state.launch
    if launch.validations_since:
        launch.evaluation_sets, launch.validations_since = launch.validations_since, 0
    if not launch.evaluation_due:
        return
    # Arguments ask for evaluations that need not be: there may be no data. None is expected before one is seen.
    launch.evaluation_due, launch.evaluation_silent = False, True
    if report.told.live and state.progress_at is not None and report.told.at > state.progress_at:
        silence = max(0.0, report.told.at - state.progress_at - state.coverage.unobserved(report.told.at))
        if launch.hung:
            state.past.silences.forgive(SILENT_EVALUATION, silence, report.told.at)
        else:
            state.past.silences.learn(SILENT_EVALUATION, silence)


def _told_interval(launch: Launch) -> int | None:
    """What the arguments say, unless no training prints so rarely."""
    told = launch.topology.log_interval
    return told if told is not None and told <= _LONGEST_TOLD else None


def _interval(state: RunState, iteration: int) -> int:
    """Iterations that this report stands for. A jump (lost lines, a skipped range) counts as one usual interval."""
    launch = state.launch
    last, usual = launch.last_iteration, launch.log_interval
    if last is None:
        return _first_interval(state, iteration)
    delta = iteration - last
    seldom_drawn = launch.driver == "trainer" or launch.dialect not in BY_NAME
    if delta == usual or (seldom_drawn and 0 < delta <= LONGEST_INTERVAL):
        return delta
    usual = usual or _told_interval(launch)
    if usual is None:
        return delta if delta <= LONGEST_INTERVAL else 1
    return usual if delta > 2 * usual else max(delta, 1)


def _first_interval(state: RunState, iteration: int) -> int:
    """The same of a launch's first report."""
    launch = state.launch
    by_dict = launch.driver == "trainer" and launch.trainer.bar is None  # the first comes behind an interval
    every = _told_interval(launch) or state.past.log_interval or (likely_interval(iteration) if by_dict else 1)
    done = iteration - launch.loaded if launch.loaded is not None else 0
    if 0 < done <= (every if every > 1 else LONGEST_INTERVAL):
        return done  # it went on from the checkpoint that it loaded
    return every if every > 1 and iteration > 0 and iteration % every == 0 else 1


def _take_interval(state: RunState, iteration: int, delta: int) -> None:
    """The iterations between two lines; of a declared dialect, whose lines may come out of turn, and of bars, which are
    drawn at any time, the usual number.
    """
    launch, known = state.launch, state.launch.log_interval
    regular = launch.dialect in BY_NAME and launch.driver != "trainer"
    if regular or known is None or delta >= known or delta == launch.last_delta:
        if launch.iterations == 1 and delta > 1 and iteration == 2 * delta and launch.loaded is None:
            launch.iterations += delta - 1  # the first line stood for as many
            state.iterations_total += delta - 1
        launch.log_interval = delta
    launch.last_delta = delta


def take_seconds(state: RunState, report: Report, count: int, *, first: bool) -> None:
    """The last `count` iterations took the report's seconds each. DeepSpeed tells it behind the step's own line."""
    launch, told = state.launch, report.seconds or 0.0
    if report.passed is None:
        add_seconds(state, told * count)
    seconds: float | None = told
    exact = True
    if launch.watch.inside:
        at = report.told.at - state.coverage.unobserved(report.told.at) if report.told.live else None
        interval = launch.watch.interval(count, told, launch.last_iteration, at)
        seconds, exact, within = pure(interval, launch.pace.predicted())
        if within is not None:
            validations = launch.validations_since
            state.past.silences.learn(*(("evaluating", within / validations) if validations else ("saving", within)))
    if seconds is None:
        return
    launch.pure_seconds = seconds
    if first:  # warm-up and compilation: shown, never learned from
        return
    batch_size = launch.latest.global_batch_size
    if exact:
        launch.step_seconds = seconds
        printed = launch.latest.tflops if launch.driver == "iteration" and seconds == told else None
        state.steady.add(batch_size, seconds, printed)
    launch.pace.add(seconds, batch_size)
    state.seconds.add(seconds, count)


def measured(
    state: RunState, iteration: int, elapsed: float | None, clock: float | None
) -> tuple[float | None, int | None]:
    """(seconds per iteration, iterations that they were measured over) of a report that does not print them, where
    they were measured: by the time since the start that it prints, else by its stamp, else by when it arrived.
    """
    watch = state.launch.watch
    moment = clock if elapsed is None else elapsed
    if moment is None:
        arrived = None if state.arrived is None or state.coverage.unobserved(state.arrived) else state.arrived
        lap = watch.arrivals.lap(iteration, arrived, disturbed=watch.inside)
    else:
        alone = watch.stamps.iteration == state.launch.last_iteration
        lap = watch.stamps.lap(iteration, moment, disturbed=watch.inside, alone=alone, stamped=elapsed is None)
    return lap if lap is not None else (None, None)


def evaluation_every(launch: Launch) -> int | None:
    """Iterations between two evaluations; None (or 0) where the run does not evaluate, or nobody knows when."""
    top = launch.topology
    return (top.eval_interval or launch.evaluation_interval) if top.eval_iters != 0 else None


def _silent_work(state: RunState, iteration: int) -> str | None:
    """What the arguments ask for between this line and the next, where no line has told of any before."""
    launch, top = state.launch, state.launch.topology
    every = top.save_interval if top.saves is not False and launch.save.iteration is None else None
    ends = every and (iteration + (launch.log_interval or 1) - 1) // every > (iteration - 1) // every
    if ends and not state.past.checkpoints.saves:
        return SILENT_SAVE
    asked = launch.evaluation_silent and (every := evaluation_every(launch)) and iteration % every == 0
    guessed = dialect_of(launch.dialect).silent or _ends_epoch(launch, iteration)
    return SILENT_EVALUATION if asked or guessed else None


def _ends_epoch(launch: Launch, iteration: int) -> bool:
    """Whether so many steps are a few of a few epochs: a loop that prints nothing but its bar may evaluate then."""
    total = launch.trainer.total if launch.driver == "trainer" and not launch.validations else None
    return total is not None and total >= _LEAST_STEPS and total // gcd(total, iteration) <= _EPOCHS


def _phase_after(launch: Launch, iteration: int) -> Phase:
    if launch.ending.state in ("crashed", "finished"):
        return launch.ending.state
    if launch.training_done:
        return "exiting"
    every = evaluation_every(launch)
    if every and iteration % every == 0 and not launch.evaluation_silent:
        return "evaluating"  # no line announces it: the loop evaluates before it goes on
    return "training"


_RATIO = 0.25  # a line that arrives in under a quarter of the time its iterations took was held back
_EXPLAINED = 0.7  # a burst whose iterations sum to this share of the silence before it explains the silence


def watch_bursts(state: RunState, elapsed: float | None, delta: int, at: float) -> None:
    """A line of `delta` iterations of `elapsed` seconds came live at `at`. Lines that a launcher held back come in
    bursts: the silence before was no hang (docs/incident-record.md, "How logs behave", 5).
    """
    last, burst = state.launch.watch.at, state.buffering
    if last is None or elapsed is None:
        return
    gap, took = at - last - state.coverage.unobserved(at), elapsed * delta
    if gap > _RATIO * took:
        burst.burst_iterations, burst.burst_seconds, burst.silence_before = 1, took, gap
        return
    burst.burst_iterations += 1
    burst.burst_seconds += took
    silence = burst.silence_before
    if burst.burst_iterations >= 3 and silence > 2 * took and burst.burst_seconds >= _EXPLAINED * silence:
        state.past.silences.hold(silence)
