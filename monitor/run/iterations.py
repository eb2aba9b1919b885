"""Iterations, whoever counts them: the training loop's line, DeepSpeed's engine, HF Trainer.

One of them drives the run: the loop's own line before the Trainer before the engine. The others add values to the same
step and never count it twice. Each function returns whether the event was progress.
"""

from __future__ import annotations

from monitor.model import flops
from monitor.run.bursts import watch_bursts
from monitor.run.counting import in_iterations, is_beside, measured, take_interval
from monitor.run.evidence import pass_by
from monitor.run.launches import begin_launch, first_of_launch, is_over, program_of, set_phase
from monitor.run.observed import observe_iteration
from monitor.run.pace import Intervals
from monitor.run.phases import Phase
from monitor.run.state import Launch, RunState
from monitor.run.totals import plus
from parsers.dialects import BY_NAME, dialect_of
from parsers.events import IterationLogged
from parsers.timers import BESIDE

_LONGEST_TOLD = 100_000  # iterations between two lines, as the arguments say
_LONGEST_INTERVAL = 1000  # iterations between two lines that are believed before an interval is known
_LEAST_SHARE = 0.1  # of the time that a line tells: lines that were written out together leave next to nothing of it
_LONG = 100.0  # seconds between lines beside which the follower's delay is lost
SILENT_EVALUATION = "evaluating silently"
"""Key of the gaps in which an evaluation may lie of which no line tells."""
SILENT_SAVE = "saving silently"
"""Key of the gaps in which a save may lie of which no line tells."""
EXPLANATIONS = 16  # lines of a launch that are tried against the formulas


def fold_iteration(
    state: RunState, event: IterationLogged, source: str, at: float, live: bool, clock: float | None = None
) -> bool:
    """The training loop's own line. `clock` is its stamp on the log's own clock."""
    counted = event.in_samples or event.in_tokens
    if counted:
        event = in_iterations(state, event)
    if state.launch.driver == "engine" and _is_another_programs(state.launch, event.iteration):
        begin_launch(state, at)
    attempt, iteration = state.launch, event.iteration
    highest = state.past.highest_iteration
    last = attempt.last_iteration
    if last is not None and event.dialect != state.launch.dialect and is_beside(state, event, source):
        return False
    if iteration == last and event.dialect not in BY_NAME:
        return False  # a bar that is drawn again
    if (last is None or iteration != last + (state.launch.log_interval or 1)) and state.copies.is_rivals(
        iteration, last, state.launch.log_interval or state.past.log_interval or 1, attempt.iterations
    ):
        return False
    if highest is not None and iteration <= highest and not _is_news(state, event, source, at):
        return False
    attempt = state.launch
    if state.launch.driver != "iteration":
        _replace_engine(state, event)
    state.copies.remember(event, source, attempt.number)
    if event.dialect != state.launch.dialect or state.launch.topology.dialect != event.dialect:
        state.launch.dialect = state.launch.topology.dialect = event.dialect
    if event.train_iterations is not None:
        state.launch.train_iterations = event.train_iterations
    elif state.launch.train_iterations is not None and iteration > state.launch.train_iterations:
        state.launch.train_iterations = None  # it was the length of an epoch
    take_values(state, event)
    if event.skipped_iterations:
        state.skipped_iterations_total = plus(state.skipped_iterations_total, event.skipped_iterations)
    if event.nan_iterations:
        state.nan_iterations_total = plus(state.nan_iterations_total, event.nan_iterations)
    if event.logged_at is not None and dialect_of(event.dialect).pauses_timer_if_stamped:
        state.launch.impure = False  # the loop that prints time stamps stops its timer around evaluation and saving
    whole = counted and last is None and attempt.number == 0 and iteration <= _LONGEST_INTERVAL
    if not BESIDE.isdisjoint(state.launch.account.own):
        state.launch.impure = False  # the line prints what evaluation and saving took, and they are out of its time
    elapsed, steps = event.seconds_per_iteration, None
    batch = state.launch.latest.global_batch_size
    if elapsed is None and event.samples_per_second and batch and event.dialect not in BY_NAME:
        elapsed = batch / event.samples_per_second
    if elapsed is None:
        if last is None and not whole:
            state.launch.stopwatch.stop()  # where this launch began to count is not known
        elapsed, steps = measured(state, event, clock)
    count_step(state, iteration, elapsed, at, live, steps)
    if whole:
        state.iterations_total += iteration - attempt.iterations  # its first line says how far it is
        attempt.iterations = iteration
        attempt.first_iteration_seconds = None  # a mean of many is no measure of one
    latest = state.launch.latest
    observe_iteration(state.launch.observed, event, latest.global_batch_size, latest.sequence_length)
    if state.launch.tflops_formula is None and event.tflops is not None:
        _explain(state, event)
    return True


def _is_another_programs(launch: Launch, iteration: int) -> bool:
    """Whether a loop begins behind a training that DeepSpeed's engine had counted to its end."""
    over = is_over(launch) or launch.phase == "exiting"
    return over and launch.last_iteration is not None and iteration < launch.last_iteration


def _is_news(state: RunState, event: IterationLogged, source: str, at: float) -> bool:
    """Whether a line of an iteration that was seen before counts: it does where a launch computes it again, which may
    begin with this line. Copies and sources that lag behind their twin do not.
    """
    attempt, copies = state.launch, state.copies
    if copies.is_copy(event, source, attempt.number):
        copies.moved(source, event.iteration, attempt.number)
        return False
    if state.launch.driver == "engine":
        _replace_engine(state, event)
    if attempt.last_iteration is not None and event.iteration <= attempt.last_iteration:
        cursor = copies.cursors.get(source)
        if cursor is not None and cursor.last_iteration is not None and event.iteration > cursor.last_iteration:
            copies.moved(source, event.iteration, attempt.number)
            return False
        begin_launch(state, at, in_process=program_of(event.dialect) == program_of(attempt.dialect))
    return True


def _replace_engine(state: RunState, event: IterationLogged) -> None:
    """The loop's own line counts from now on. What DeepSpeed's engine reported before was the same training."""
    if state.launch.driver == "engine":
        attempt = state.launch
        state.past.programs = [program_of(event.dialect)]
        state.past.engine_beside = True
        state.iterations_total -= attempt.iterations
        attempt.iterations, attempt.last_iteration = 0, None
        state.productive_seconds -= state.launch.engine_seconds
        state.gpu_seconds = max(
            0.0, state.gpu_seconds - state.launch.engine_seconds * (state.launch.topology.world_size or 0)
        )
        state.launch.seconds_since_checkpoint = max(
            0.0, state.launch.seconds_since_checkpoint - state.launch.engine_seconds
        )
        state.launch.engine_seconds = 0.0
    state.launch.driver = "iteration"
    state.launch.log_interval = None


def _explain(state: RunState, event: IterationLogged) -> None:
    """Which formula printed these TFLOPs? All of them take half a millisecond: asked of a launch's first lines only."""
    if event.tflops is None or state.launch.pure_seconds is None or state.launch.observed.unexplained >= EXPLANATIONS:
        return
    state.launch.tflops_formula = flops.explain_printed(
        event.tflops,
        state.launch.topology,
        event.seconds_per_iteration or state.launch.pure_seconds,
        state.launch.latest.global_batch_size,
        state.launch.latest.sequence_length,
    )
    state.launch.observed.unexplained += state.launch.tflops_formula is None


def take_values(state: RunState, event: IterationLogged) -> None:
    """The line's values are the newest."""
    latest, topology = state.launch.latest, state.launch.topology
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


def count_step(
    state: RunState, iteration: int, elapsed: float | None, at: float, live: bool, steps: int | None = None
) -> None:
    """Iteration `iteration` has finished; the last ones took `elapsed` seconds each, as printed. `steps`: the last so
    many, where that was measured over several lines.
    """
    attempt = state.launch
    last = attempt.last_iteration
    first = last is None
    if state.launch.account.active:
        state.launch.account.close(last, state.launch.step_seconds, state.launch.log_interval or 1)
    if last is not None and iteration - last == state.launch.log_interval:
        delta = state.launch.log_interval
    else:
        delta = _interval(state, iteration)
        if first:
            attempt.first_iteration = iteration
            attempt.first_iteration_seconds = elapsed
        else:
            take_interval(state, iteration, delta)
    if not attempt.resumed:
        first_of_launch(state, (attempt.first_iteration or 0) - delta + 1, first=first)
    attempt.last_iteration = state.launch.latest.iteration = iteration
    attempt.iterations += delta
    state.iterations_total = plus(state.iterations_total, delta)
    attempt.opening.clear()
    pass_by(state, at, step=True)
    state.launch.step_seconds = None
    if elapsed is not None:
        state.launch.latest.seconds_per_iteration = elapsed
        take_seconds(state, elapsed, steps or delta, first, at - state.unheard if live else None)
    if state.launch.account.own:
        state.launch.account.settle(iteration, state.launch.step_seconds)
    if live:
        watch_bursts(state, elapsed, delta, at)
    if state.past.highest_iteration is None or iteration > state.past.highest_iteration:
        state.past.highest_iteration = max(iteration, 0)
    state.launch.last_iteration_at = at
    if state.launch.impure or state.launch.overhead_until is not None:
        (
            state.launch.overhead_until,
            state.launch.overhead_iteration,
            state.launch.timed_overhead,
            state.launch.impure,
        ) = None, None, 0.0, False
    if state.launch.validations_since:
        state.launch.evaluated_at = last
        state.launch.evaluation_sets, state.launch.validations_since = state.launch.validations_since, 0
    if state.launch.evaluation_due:
        _nothing_evaluated(state, at, live)
    ended = state.launch.ending.state
    phase = ended if ended in ("crashed", "finished") else _phase_after(state, iteration)
    if phase != state.launch.phase:
        set_phase(state, phase, at)
    if phase == "evaluating":
        state.launch.evaluation_due = True
    state.launch.silent_work = _silent_work(state, iteration) if phase == "training" else None


def _told_interval(state: RunState) -> int | None:
    """What the arguments say, unless no training prints so rarely."""
    told = state.launch.topology.log_interval
    return told if told is not None and told <= _LONGEST_TOLD else None


def _interval(state: RunState, iteration: int) -> int:
    """Iterations that this line stands for. A jump (lost lines, a skipped range) counts as one usual interval."""
    last = state.launch.last_iteration
    if last is None:
        every = _told_interval(state) or state.past.log_interval or 1
        return every if every > 1 and iteration > 0 and iteration % every == 0 else 1
    delta = iteration - last
    if delta == state.launch.log_interval or (0 < delta <= _LONGEST_INTERVAL and state.launch.dialect not in BY_NAME):
        return delta
    usual = state.launch.log_interval or _told_interval(state)
    if usual is None:
        return delta if delta <= _LONGEST_INTERVAL else 1
    return usual if delta > 2 * usual else max(delta, 1)


def take_seconds(state: RunState, elapsed: float, delta: int, first: bool, at: float | None) -> None:
    """The last `delta` iterations took `elapsed` seconds each. DeepSpeed tells it on a line behind the step's own."""
    seconds = elapsed * delta
    if state.launch.driver == "engine":
        state.launch.engine_seconds += seconds  # the loop may yet report them itself
    state.productive_seconds += seconds  # what a restart computes again was taken off when it began
    state.gpu_seconds += seconds * (state.launch.topology.world_size or 0)
    state.launch.seconds_since_checkpoint += seconds
    pure = _pure_seconds(state, elapsed, delta, at) if state.launch.impure else elapsed
    if pure is None:
        return
    state.launch.pure_seconds = pure
    if first:  # warm-up and compilation: shown, never learned from
        return
    # Live, an interruption is measured by when lines arrived, to half a second: good enough for long iterations only.
    batch_size = state.launch.latest.global_batch_size
    if not state.launch.impure or pure * (delta if pure == elapsed else _iterations_behind(state, delta)) >= _LONG:
        state.launch.step_seconds = pure
        printed = state.launch.latest.tflops if state.launch.driver == "iteration" and pure == elapsed else None
        state.steady.add(batch_size, pure, printed)
    state.launch.pace.add(pure, batch_size)
    state.seconds.add(pure, delta)


def _pure_seconds(state: RunState, elapsed: float, delta: int, at: float | None) -> float | None:
    """Seconds per iteration without the evaluation or save that came since the last line; None where that is in them
    and cannot be measured. `at` is when the line came, None where that says nothing (a backlog).
    """
    usual = state.launch.pace.predicted()
    overhead, inside = state.launch.timed_overhead, False
    if state.launch.overhead_until is not None and state.launch.last_iteration_at is not None and at is not None:
        since = state.launch.overhead_until - state.launch.last_iteration_at
        overhead = max(overhead, _interruption(state, elapsed, delta, since))
        # A loop that stops its timer prints less than the time from line to line. One iteration tells by itself.
        inside = delta > 1 and at - state.launch.last_iteration_at - elapsed * delta < 0.5 * overhead
    least = 0.5 * usual if usual is not None else _LEAST_SHARE * elapsed
    believable = overhead > 0 and elapsed * delta - overhead >= least * delta
    if usual is not None and elapsed <= 1.05 * usual and not (inside and believable):
        return elapsed  # the loop stopped its timer, or the overhead is lost in the noise
    if believable:
        _learn_overhead(state, overhead)
        return (elapsed * delta - overhead) / delta
    if usual is not None:
        _learn_overhead(state, (elapsed - usual) * delta)
    return None


def _interruption(state: RunState, elapsed: float, delta: int, since: float) -> float:
    """Seconds of the evaluation or save that ended `since` seconds after the line before. Where it did not come right
    after that line, the iterations behind it tell what one takes: the rest of the line's time is theirs alone.
    """
    behind = _iterations_behind(state, delta)
    if behind == delta:
        return since
    return max(0.0, elapsed * delta - (elapsed * delta - since) / behind * delta)


def _iterations_behind(state: RunState, delta: int) -> int:
    """Of the iterations that a line stands for, those after its last evaluation or save; all where nothing tells."""
    last, before = state.launch.last_iteration, state.launch.overhead_iteration
    behind = last - before if last is not None and before is not None else delta
    return behind if 0 < behind < delta else delta


def _learn_overhead(state: RunState, seconds: float) -> None:
    """An evaluation or save took this long: the log told it through the iteration's time."""
    validations = state.launch.validations_since
    if validations:
        gap_of(state, "evaluating").add(seconds / validations)
    else:
        gap_of(state, "saving").add(seconds)


def gap_of(state: RunState, phase: str) -> Intervals:
    """The gaps learned for a phase."""
    return state.past.gaps.setdefault(phase, Intervals())


def evaluation_every(state: RunState) -> int | None:
    """Iterations between two evaluations; None (or 0) where the run does not evaluate, or nobody knows when."""
    return (
        (state.launch.topology.eval_interval or state.launch.evaluation_interval)
        if state.launch.topology.eval_iters != 0
        else None
    )


def _silent_work(state: RunState, iteration: int) -> str | None:
    """What the arguments ask for between this line and the next, where no line has told of any before."""
    checkpoints, every = state.past.checkpoints, state.launch.topology.save_interval
    saves = state.launch.topology.saves is not False and not checkpoints.saves and state.launch.save.iteration is None
    if every and saves and (iteration + (state.launch.log_interval or 1) - 1) // every > (iteration - 1) // every:
        return SILENT_SAVE
    every = evaluation_every(state)
    return SILENT_EVALUATION if state.launch.evaluation_silent and every and iteration % every == 0 else None


def _nothing_evaluated(state: RunState, at: float, live: bool) -> None:
    """The loop went on after an iteration at which it was to evaluate, and nothing told of that: arguments ask for
    evaluations that need not be (there may be no validation data). It is not expected again before one is seen.
    """
    state.launch.evaluation_due, state.launch.evaluation_silent = False, True
    if live and state.progress_at is not None and at > state.progress_at:
        gap_of(state, SILENT_EVALUATION).add(max(0.0, at - state.progress_at - state.unheard))


def _phase_after(state: RunState, iteration: int) -> Phase:
    if state.launch.train_iterations is not None and iteration >= state.launch.train_iterations:
        return "exiting"
    every = evaluation_every(state)
    if every and iteration % every == 0 and not state.launch.evaluation_silent:
        return "evaluating"  # no line announces it: the loop evaluates before it goes on
    return "training"
