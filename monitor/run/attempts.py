"""Decides where an attempt of a run begins, by the table `OUTCOMES`. Pure. No other module begins an attempt.

Each set-up mark and each report of a step is compared with the present attempt: it is the first of its kind, a copy,
late, or back at an earlier step. The state of the attempt and this observation give the outcome; restarts.py applies
the begin of an attempt.

A step is identified by its number and values. The same number with the same values in one attempt is a copy, for
example of another rank. Two trainings write into one log if an attempt that seemed replaced continues: the training
that is ahead counts (incident mixed_log). If it is silent for some lines, the other one counts, as a new attempt
without lost work.
"""

from typing import Final, Literal, NamedTuple, TypeAlias

from megatron_monitor.parsers import events
from megatron_monitor.parsers.events import EngineStepLogged, Event, IterationLogged
from megatron_monitor.parsers.programs import BY_NAME
from megatron_monitor.run.ending import MOMENT
from megatron_monitor.run.log_clock import log_clock
from megatron_monitor.run.phases import ENDED
from megatron_monitor.run.records import EventContext
from megatron_monitor.run.restarts import begin_attempt, enter, program_name, stamp_of, take_back, withdraw
from megatron_monitor.run.state import Attempt, RunState
from megatron_monitor.run.steps.sources import PRECEDENCE, StepSource

State: TypeAlias = Literal["set-up", "stepping", "leaving", "ended"]
Seen: TypeAlias = Literal[
    "new step", "step far ahead after a set-up", "copy of a step", "late step", "step of another format",
    "step of another training", "step goes back",
    "another program's step goes back",
    "first mark", "first mark, unconfirmed failure", "mark of another stream", "mark again",
]  # fmt: skip
Outcome: TypeAlias = Literal["same attempt", "failure withdrawn", "ignored", "new attempt", "new attempt, same process"]

STATES: Final[tuple[State, ...]] = ("set-up", "stepping", "leaving", "ended")
_ROWS: Final[dict[Seen, tuple[Outcome, ...]]] = {
    "new step": ("same attempt", "same attempt", "same attempt", "same attempt"),
    "step far ahead after a set-up": ("same attempt", "new attempt", "new attempt", "new attempt"),
    "copy of a step": ("ignored", "ignored", "ignored", "ignored"),
    "late step": ("same attempt", "ignored", "ignored", "ignored"),
    "step of another format": ("same attempt", "ignored", "ignored", "ignored"),
    "step of another training": ("same attempt", "ignored", "ignored", "ignored"),
    "step goes back": (
        "same attempt",
        "new attempt, same process",
        "new attempt, same process",
        "new attempt, same process",
    ),
    "another program's step goes back": ("same attempt", "new attempt", "new attempt", "new attempt"),
    "first mark": ("same attempt", "same attempt", "same attempt", "new attempt"),
    "first mark, unconfirmed failure": ("same attempt", "same attempt", "same attempt", "failure withdrawn"),
    "mark of another stream": ("same attempt", "same attempt", "same attempt", "same attempt"),
    "mark again": ("same attempt", "new attempt", "new attempt", "new attempt"),
}
OUTCOMES: Final[dict[tuple[State, Seen], Outcome]] = {
    (state, seen): outcome for seen, row in _ROWS.items() for state, outcome in zip(STATES, row, strict=True)
}
"""(state of the attempt, observation) -> outcome. The columns are the states in the order of STATES."""

_NEXT: Final = "next launch"
LAUNCHER: Final = "launcher "
"""Prefix of the set-up mark of a launcher that starts the processes of a node; the node's name follows."""
_AHEAD = 2  # maximum intervals between two lines of one attempt
_FAR = 3  # intervals between two lines that mean missing lines or another attempt
_LEFT = 4  # earlier attempts of which one may continue at the same time
_AMID = 16  # iterations that one training finishes between two set-up lines of another
_SINGLE = 5  # consecutive lines of another training after which the counting one is over


def state_of(attempt: Attempt) -> State:
    """Return the state of the attempt."""
    if attempt.phase in ENDED:
        return "ended"
    if not (attempt.iterations or attempt.failed):
        return "set-up"
    return "leaving" if attempt.phase == "exiting" else "stepping"


def _follow(state: RunState, seen: Seen, context: EventContext) -> bool:
    """Apply the outcome. Return True if the line adds something."""
    if seen == "new step":
        return True  # by far the most frequent case: the attempt continues in each state
    before = state.attempt
    outcome = OUTCOMES[state_of(before), seen]
    if outcome == "failure withdrawn":
        before.forget()
        enter(state, "starting", context.at)
    elif outcome in ("new attempt", "new attempt, same process"):
        context.settle()
        begin_attempt(state, context.at, in_process=outcome == "new attempt, same process")
    return outcome != "ignored"


# --- marks of a set-up ----------------------------------------------------------------------------------------------


class SetupMark(NamedTuple):
    """A set-up line that occurs once per attempt."""

    kind: str
    stamp: str
    """Its time, or else its content or source. A different stamp is a different mark."""
    timeless: bool = False


def mark_of(event: Event, source: str = "") -> SetupMark | None:
    """Return the set-up mark of the line; None if it is not a mark."""
    match event:
        case events.ArgumentsDumped():
            return SetupMark("arguments", stamp_of(event), timeless=True)
        case events.MilestoneReached() if event.milestone != "training_done":
            return SetupMark(event.milestone, event.logged_at or source)
        case events.TrainerSetting(name="running_training"):
            return SetupMark(event.name, event.logged_at or source)
        case events.TopologyLogged():  # Megatron's first line, DeepSpeed's launcher's on a node
            if event.nodes is not None and event.processes_per_node is not None and event.logged_at is not None:
                return SetupMark(f"{LAUNCHER}{event.node or ''}", event.logged_at)
            if event.world_size is not None and event.data_parallel_size is not None:
                return SetupMark("world", f"{event.world_size}/{event.data_parallel_size}", timeless=True)
    return None


def take_mark(state: RunState, mark: SetupMark, context: EventContext) -> None:
    """Apply a set-up mark."""
    if mark.kind == "running_training" and state.attempt.trainer.inferred:
        withdraw(state)
    _follow(state, _see_mark(state, mark, context), context)
    state.attempt.boundaries.setdefault(mark.kind, mark.stamp)
    if not (stream := state.copies.position(context.source)).is_replica:
        stream.marks.add(mark.kind)
        stream.set_up_again = state.attempt.iterations > 0
    if mark.timeless:
        state.attempt.boundaries.setdefault(f"{mark.kind} {context.source}", mark.stamp)


def _see_mark(state: RunState, mark: SetupMark, context: EventContext) -> Seen:
    attempt = state.attempt
    known, crashed = attempt.boundaries.get(mark.kind), attempt.phase == "crashed"
    if state.copies.position(context.source).joins_attempt:
        return "mark of another stream"
    first = known is None and not is_written_before(attempt, context)
    if first and crashed and attempt.unconfirmed and not attempt.iterations:
        return "first mark, unconfirmed failure"
    if counted_in(state, context.source) or known not in (None, mark.stamp):
        return "mark of another stream" if _is_delayed(attempt, mark, context) else "mark again"
    # an equal mark without a time in the same file, after an end, belongs to another attempt
    if mark.timeless and f"{mark.kind} {context.source}" in attempt.boundaries and crashed and not attempt.unconfirmed:
        return "mark again"
    return "first mark" if first else "mark of another stream"


def _is_delayed(attempt: Attempt, mark: SetupMark, context: EventContext) -> bool:
    """Return True if the line's stamp shows that another process wrote it during the set-up of this attempt.

    Its output was merged into the file behind steps that were written later. A launch comes before all of them.
    """
    known = log_clock(attempt.boundaries.get(mark.kind))
    if (
        context.clock is None
        or known is None
        or attempt.progress_clock is None
        or mark.kind.startswith(("launched", LAUNCHER))
    ):
        return False
    return abs(context.clock - known) <= MOMENT and context.clock < attempt.progress_clock


def is_written_before(attempt: Attempt, context: EventContext) -> bool:
    """Return True if the line may have been written before the attempt ended.

    Either the launcher delayed its program's output, or only other files show the end before the first step, and the
    line without a time was read shortly after the end or its file is in the middle of the attempt's set-up.
    """
    rows = attempt.evidence
    if any(row.output_follows for row in rows):
        return True
    if attempt.iterations or context.clock is not None or not rows or any(row.stream == context.source for row in rows):
        return False
    begun = any(f"{kind} {context.source}" in attempt.boundaries for kind in ("arguments", "world"))
    return begun or context.at - max(row.at for row in rows) <= MOMENT


def counted_in(state: RunState, source: str) -> bool:
    """Return True if the source has counted iterations of the present attempt."""
    cursor = state.copies.positions.get(source)
    return cursor is not None and cursor.attempt == state.attempt.number


def take_end(state: RunState, event: Event, context: EventContext) -> None:
    """Begin an attempt if this cause of an end belongs to the next attempt, which had no set-up mark.

    After the end of an attempt without steps this is an uncaught exception, or the cancellation of another job. After
    any end, if the launcher has started again, this is an uncaught exception of any rank.
    """
    again = False
    if isinstance(event, events.TracebackSeen):
        own = event.role in (None, "trainer") and event.top_level and not event.lost_peer
        next_launch = state.attempt.boundaries.get(_NEXT) == context.source
        again = bool(own) and (next_launch or (event.rank is None and _launch_ended(state, context.source)))
    elif isinstance(event, events.FailureSeen) and event.notice == "job_cancelled":
        cancelled = {row.message for row in state.attempt.evidence if row.notice == "job_cancelled"}
        again = bool(cancelled) and event.message not in cancelled and not state.attempt.iterations
    if again:
        _follow(state, "mark again", context)


def on_launcher_started(state: RunState, _event: Event, context: EventContext) -> bool:
    """Note that a launcher starts after the one of this attempt, or its training, has ended. It may start another
    program.
    """
    if _launch_ended(state, context.source, before_steps=False) or state_of(state.attempt) in ("leaving", "ended"):
        state.attempt.boundaries[_NEXT] = context.source
    return False


def _launch_ended(state: RunState, source: str, *, before_steps: bool = True) -> bool:
    """Return True if the source has reported the end of the attempt's launcher, before the first step or its output.

    On several nodes each node has a launcher, and others may still run. `before_steps` False: at any step.
    """
    attempt = state.attempt
    if len(attempt.nodes) > 1 or (attempt.topology.nodes or 1) > 1:
        return False
    ends = (row for row in attempt.evidence if row.attempt and row.stream == source)
    return any(row.output_follows or not (before_steps and attempt.iterations) for row in ends)


def take_bar(state: RunState, total: int, context: EventContext) -> None:
    """A progress bar with `total` steps starts at 0: begin an attempt if the last one ended, hung, or had no step.

    A bar with another total begins an attempt only after a certain crash. Otherwise the bar may be an evaluation, or
    delayed output of another node.
    """
    attempt, unconfirmed = state.attempt, state.attempt.unconfirmed
    declared, before = attempt.trainer.declared, attempt.trainer
    over = bool(attempt.iterations) and (declared or not unconfirmed) and (attempt.hung or attempt.phase == "crashed")
    begins = over and (total == before.total or (declared and not unconfirmed and not attempt.hung))
    begins = begins or _launch_ended(state, context.source)
    _follow(state, "mark again" if begins else "mark of another stream", context)
    if begins and total == before.total:
        trainer = state.attempt.trainer
        trainer.declared, trainer.inferred, trainer.total = declared, before.inferred, total


# --- reports of steps -----------------------------------------------------------------------------------------------


def take_iteration(state: RunState, event: IterationLogged, context: EventContext) -> bool:
    """Apply a line of the loop. Return True if it reports a new step."""
    seen = _see_iteration(state, event, context.source)
    if seen in ("copy of a step", "late step"):
        state.copies.count(context.source, state.attempt.number).last_iteration = event.iteration
    if seen != "new step" and not _follow(state, seen, context):
        return False
    if state.attempt.step_source != "iteration":
        take_over(state, "iteration", event.format, context)
    state.copies.remember(event, context.source, state.attempt.number)
    return True


def _see_iteration(state: RunState, event: IterationLogged, source: str) -> Seen:
    attempt, iteration, last = state.attempt, event.iteration, state.attempt.last_iteration
    counted = attempt.step_source == "iteration"  # otherwise this source may take over
    if not counted and (_is_over(attempt) or attempt.phase == "exiting"):
        if attempt.step_source == "engine" and last is not None and iteration < last:
            return "another program's step goes back"
        counted = attempt.step_source == "trainer"
    if iteration == last and event.format not in BY_NAME:
        return "step of another format"  # a redrawn progress bar
    highest = state.learned.highest_iteration
    if highest is not None and iteration <= highest:
        # a stream repeats its own steps after an end: the next attempt computes the same with the same seed
        again = _is_over(attempt) and iteration < (state.copies.position(source).last_iteration or 0)
        if not again and state.copies.is_copy(event, source, attempt.number):
            return "copy of a step"
    elif last is not None and iteration == last + attempt.every:
        return "new step"
    return _see_another(state, iteration) or _see_order(state, event, source, counted=counted)


def _see_order(state: RunState, event: IterationLogged, source: str, *, counted: bool) -> Seen:
    """Return the observation for a step by its distance from the last one. `counted`: the last one is of its kind."""
    attempt, iteration, last = state.attempt, event.iteration, state.attempt.last_iteration
    stream, ahead = state.copies.position(source), 0 if last is None else iteration - last
    if stream.set_up_again and ahead > _FAR * (attempt.log_interval or iteration):
        return "step far ahead after a set-up"
    if last is None or iteration > last or not counted:
        return "new step"
    if stream.last_iteration is not None and iteration > stream.last_iteration:
        return "late step"
    return (
        "step goes back"
        if program_name(event.format) == program_name(attempt.format)
        else "another program's step goes back"
    )


def take_engine_step(state: RunState, event: EngineStepLogged, number: int, context: EventContext) -> bool:
    """Apply a step of the counting engine. Return True if it is new."""
    if not _follow(state, _see_engine_step(state, event, number), context):
        return False
    state.attempt.step_source = "engine"
    state.copies.record(number, event, state.attempt.number)
    return True


def _see_engine_step(state: RunState, event: EngineStepLogged, number: int) -> Seen:
    attempt, last = state.attempt, state.attempt.last_iteration
    if last is None or number in (last, last + 1):
        return "new step"
    if state.copies.is_reported(number, event, attempt.number):
        return "copy of a step"
    return _see_another(state, number) or ("step goes back" if number < last else "new step")


def take_engine(state: RunState, event: EngineStepLogged, format_name: str, context: EventContext) -> bool:
    """Return True if the engine counts the steps. If another source counts and its attempt is over, an engine step that
    is not late begins an attempt of another program.
    """
    attempt, engine_step = state.attempt, state.attempt.engine.latest_step
    if (
        attempt.step_source not in (None, "engine")
        and _is_over(attempt)
        and (engine_step is None or event.step < engine_step)
    ):
        _follow(state, "another program's step goes back", context)
    return take_over(state, "engine", format_name, context)


def _is_over(attempt: Attempt) -> bool:
    """Return True if the log proves that the attempt has ended."""
    return attempt.phase in ENDED and not attempt.unconfirmed


def take_over(state: RunState, name: StepSource, format_name: str, context: EventContext) -> bool:
    """Return True if this step source counts from now on. A better source repeats the steps that DeepSpeed's engine
    reported before, so those are taken back.
    """
    attempt = state.attempt
    before = attempt.step_source
    if before == name:
        return True
    if before is not None and PRECEDENCE.index(name) > PRECEDENCE.index(before):
        return False
    context.settle()
    if before == "trainer" and attempt.trainer.inferred:
        attempt = withdraw(state)
    elif before is not None:
        state.learned.programs, state.learned.has_engine_steps = [program_name(format_name)], before == "engine"
        take_back(state)
    attempt.step_source, attempt.log_interval = name, None
    return True


# --- two trainings in one log ---------------------------------------------------------------------------------------


def _see_another(state: RunState, iteration: int) -> Seen | None:
    """Return the observation for a step of another training that writes into the same log; None for other steps.

    The numbers go back without a set-up. Then an attempt that seemed replaced continues, or both replace each other.
    """
    attempt, ends = state.attempt, state.ends
    last, most = attempt.last_iteration, _AHEAD * (attempt.log_interval or state.learned.log_interval or 1)
    if last is None or not ends or iteration == last + attempt.every:
        return None
    state.mixed |= _continues_another(state, iteration, last, most)
    if iteration > last or not state.mixed:
        return None
    attempt.others += 1
    return "step of another training" if attempt.others <= _SINGLE else "step goes back"


def _continues_another(state: RunState, iteration: int, last: int, most: int) -> bool:
    """Return True if the step continues an attempt that seemed replaced, within `most` iterations."""
    left = [end.last_iteration for end in state.ends[-_LEFT:] if end.last_iteration is not None]
    if iteration > last:
        return iteration - last > most and any(0 < iteration - before <= most for before in left)
    before, at_once = state.ends[-1].last_iteration, state.attempt.iterations <= most and last - iteration <= most
    return at_once and before is not None and abs(iteration - before) <= most


def is_amid_set_up(state: RunState, iteration: int) -> bool:
    """Return True if the set-up of another training came between steps of a training that never stopped.

    Then the first steps of this and the last attempt continue without a gap, and the last attempt was short.
    """
    if len(state.ends) < 2:
        return False
    before, last = state.ends[-2:]
    if before.crashed or last.crashed or before.last_iteration is None or last.last_iteration is None:
        return False
    most = _AHEAD * (state.learned.log_interval or 1)
    went_on = abs(last.last_iteration - last.iterations - before.last_iteration) < most
    return went_on and last.iterations <= _AMID and 0 < iteration - last.last_iteration <= most
