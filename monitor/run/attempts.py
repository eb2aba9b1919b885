"""Where an attempt of a run begins: the one place that decides it, by the table `OUTCOMES`. Pure.

Each set-up mark and each report of a step is seen against the present attempt: as the first of its kind, as a copy, as
one that lags behind, as one that goes back. What the attempt is at and what is seen give the outcome; attempts.py does
what a beginning comes to. Nothing else begins an attempt.

A step is known by its number and its values. The same number with the same values in the same attempt is a copy, as
that of another rank. Two trainings that write into one log show when an attempt that seemed replaced goes on: the one
that is ahead counts (incident mixed_log). If it is silent for some lines, the other one counts, as a new attempt that
has lost nothing.
"""

from typing import Final, Literal, NamedTuple, TypeAlias

from megatron_monitor.parsers import events
from megatron_monitor.parsers.dialects import BY_NAME
from megatron_monitor.parsers.events import EngineStepLogged, Event, IterationLogged
from megatron_monitor.run.ending import MOMENT
from megatron_monitor.run.phases import ENDED
from megatron_monitor.run.records import EventContext
from megatron_monitor.run.restarts import begin_attempt, enter, program_of, stamp_of, take_back, withdraw
from megatron_monitor.run.state import Attempt, RunState
from megatron_monitor.run.steps.sources import PRECEDENCE, StepSource

State: TypeAlias = Literal["set-up", "stepping", "leaving", "ended"]
Seen: TypeAlias = Literal[
    "new step", "far ahead behind a set-up", "copy", "lags", "beside", "of another training", "goes back",
    "another program goes back",
    "first mark", "first mark, failure in doubt", "mark of others", "mark again",
]  # fmt: skip
Outcome: TypeAlias = Literal["goes on", "nothing had failed", "adds nothing", "anew", "anew in its process"]

STATES: Final[tuple[State, ...]] = ("set-up", "stepping", "leaving", "ended")
_ROWS: Final[dict[Seen, tuple[Outcome, ...]]] = {
    "new step": ("goes on", "goes on", "goes on", "goes on"),
    "far ahead behind a set-up": ("goes on", "anew", "anew", "anew"),
    "copy": ("adds nothing", "adds nothing", "adds nothing", "adds nothing"),
    "lags": ("goes on", "adds nothing", "adds nothing", "adds nothing"),
    "beside": ("goes on", "adds nothing", "adds nothing", "adds nothing"),
    "of another training": ("goes on", "adds nothing", "adds nothing", "adds nothing"),
    "goes back": ("goes on", "anew in its process", "anew in its process", "anew in its process"),
    "another program goes back": ("goes on", "anew", "anew", "anew"),
    "first mark": ("goes on", "goes on", "goes on", "anew"),
    "first mark, failure in doubt": ("goes on", "goes on", "goes on", "nothing had failed"),
    "mark of others": ("goes on", "goes on", "goes on", "goes on"),
    "mark again": ("goes on", "anew", "anew", "anew"),
}
OUTCOMES: Final[dict[tuple[State, Seen], Outcome]] = {
    (state, seen): outcome for seen, row in _ROWS.items() for state, outcome in zip(STATES, row, strict=True)
}
"""What comes of what is seen of an attempt at its set-up, with steps, at its end, and behind that."""

LAUNCHER: Final = "launcher "
"""Before the node's name: the set-up mark of a launcher that starts the processes of a node."""
_COPY_BEHIND = 2  # lines by which another program's report of the same step may lag, or lead
_AHEAD = 2  # intervals by which two lines of one attempt may be apart
_FAR = 3  # intervals by which no line of an attempt is before the one behind it, but where lines are missing
_LEFT = 4  # attempts before the present one, of which one may go on beside it
_AMID = 16  # iterations that one training finishes between two lines of another's set-up
_SINGLE = 5  # lines of another training in a row after which the one that counts is believed to be over


def state_of(attempt: Attempt) -> State:
    """What the attempt is at."""
    if attempt.phase in ENDED:
        return "ended"
    if not (attempt.iterations or attempt.failed):
        return "set-up"
    return "leaving" if attempt.phase == "exiting" else "stepping"


def _follow(state: RunState, seen: Seen, context: EventContext) -> bool:
    """Do what comes of it: whether the line adds anything."""
    if seen == "new step":
        return True  # the most frequent by far: it goes on in each state
    before = state.attempt
    outcome = OUTCOMES[state_of(before), seen]
    if outcome == "nothing had failed":
        before.forget()
        enter(state, "starting", context.at)
    elif outcome in ("anew", "anew in its process"):
        context.settle()
        begin_attempt(state, context.at, in_process=outcome == "anew in its process")
        state.attempt.resumed = seen == "goes back" and before.mixed  # then it has lost nothing
    return outcome != "adds nothing"


# --- marks of a set-up ----------------------------------------------------------------------------------------------


class SetupMark(NamedTuple):
    """What of a set-up there is one of in an attempt."""

    kind: str
    stamp: str
    """Its time, else its contents or its source: another one is another mark's."""
    timeless: bool = False


def mark_of(event: Event, source: str = "") -> SetupMark | None:
    """The mark that the line is, if it is one."""
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
    """A mark of a set-up."""
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
        return "mark of others"
    first = known is None and not is_written_before(attempt, context)
    if first and crashed and attempt.unconfirmed and not attempt.iterations:
        return "first mark, failure in doubt"
    if counted_in(state, context.source) or (known is not None and known != mark.stamp):
        return "mark again"
    # the same without a time in the same file, after an end, is of another attempt
    if mark.timeless and f"{mark.kind} {context.source}" in attempt.boundaries and crashed and not attempt.unconfirmed:
        return "mark again"
    return "first mark" if first else "mark of others"


def is_written_before(attempt: Attempt, context: EventContext) -> bool:
    """Whether the line may have been written before the attempt ended: its program's output was held back until then,
    or only other files tell of the end, before the first step, and the line has no time: it was read a moment behind
    the end, or its file is amid the attempt's set-up.
    """
    rows = attempt.evidence
    if any(row.output_follows for row in rows):
        return True
    if attempt.iterations or context.clock is not None or not rows or any(row.stream == context.source for row in rows):
        return False
    begun = any(f"{kind} {context.source}" in attempt.boundaries for kind in ("arguments", "world"))
    return begun or context.at - max(row.at for row in rows) <= MOMENT


def counted_in(state: RunState, source: str) -> bool:
    """Whether the source has counted iterations of the present attempt."""
    cursor = state.copies.positions.get(source)
    return cursor is not None and cursor.attempt == state.attempt.number


def take_end(state: RunState, event: Event, context: EventContext) -> None:
    """A cause of an end. Behind the end of an attempt that made no step it is the next attempt's, of which no mark of a
    set-up was known: an exception that nobody caught, the cancellation of another job.
    """
    again = False
    if isinstance(event, events.TracebackSeen):
        own = event.role in (None, "trainer") and event.top_level and event.rank is None and not event.lost_peer
        again = bool(own) and _launch_ended(state, context.source)
    elif isinstance(event, events.FailureSeen) and event.notice == "job_cancelled":
        cancelled = {row.message for row in state.attempt.evidence if row.notice == "job_cancelled"}
        again = bool(cancelled) and event.message not in cancelled and not state.attempt.iterations
    if again:
        _follow(state, "mark again", context)


def _launch_ended(state: RunState, source: str) -> bool:
    """Whether the source has told that the attempt's launcher ended, before the first step or before its output. On
    several nodes each has one of its own, and others may live.
    """
    attempt = state.attempt
    if len(attempt.nodes) > 1 or (attempt.topology.nodes or 1) > 1:
        return False
    ends = (row for row in attempt.evidence if row.attempt and row.stream == source)
    return any(row.output_follows or not attempt.iterations for row in ends)


def take_bar(state: RunState, total: int, context: EventContext) -> None:
    """A bar of so many steps is drawn at 0: of a new attempt behind a crash, which must not be in doubt where the bar
    is of another length, behind a hang, or behind the end of an attempt that made no step. (Else it may be an
    evaluation as long as the training, or what another node held back.)
    """
    attempt, unconfirmed = state.attempt, state.attempt.unconfirmed
    declared, before = attempt.trainer.declared, attempt.trainer
    over = bool(attempt.iterations) and (declared or not unconfirmed) and (attempt.hung or attempt.phase == "crashed")
    anew = over and (total == before.total or (declared and not unconfirmed and not attempt.hung))
    anew = anew or _launch_ended(state, context.source)
    _follow(state, "mark again" if anew else "mark of others", context)
    if anew and total == before.total:
        trainer = state.attempt.trainer
        trainer.declared, trainer.inferred, trainer.total = declared, before.inferred, total


# --- reports of steps -----------------------------------------------------------------------------------------------


def take_iteration(state: RunState, event: IterationLogged, context: EventContext) -> bool:
    """A line of the loop: whether it reports a step that has not been counted."""
    seen, number = _see_iteration(state, event, context.source), state.attempt.number
    if seen in ("copy", "lags"):
        state.copies.moved(context.source, event.iteration, number)
    if not _follow(state, seen, context):
        return False
    take_over(state, "iteration", event.dialect, context)
    state.copies.remember(event, context.source, state.attempt.number)
    return True


def _see_iteration(state: RunState, event: IterationLogged, source: str) -> Seen:
    attempt, iteration, last = state.attempt, event.iteration, state.attempt.last_iteration
    counted = attempt.step_source == "iteration"  # else what has counted may be taken over
    if not counted and (_is_over(attempt) or attempt.phase == "exiting"):
        if attempt.step_source == "engine" and last is not None and iteration < last:
            return "another program goes back"
        counted = attempt.step_source == "trainer"
    if last is not None and event.dialect != attempt.dialect and _is_second_format(state, event, source):
        return "beside"
    if iteration == last and event.dialect not in BY_NAME:
        return "beside"  # a bar that is drawn again
    highest = state.learned.highest_iteration
    known = highest is not None and iteration <= highest
    if known and state.copies.is_copy(event, source, attempt.number):
        return "copy"
    if not known and last is not None and iteration == last + (attempt.log_interval or 1):
        return "new step"
    if (other := _see_another(state, iteration)) is not None:
        return other
    cursor = state.copies.positions.get(source)
    ahead = 0 if last is None else iteration - last
    if cursor is not None and cursor.set_up_again and ahead > _FAR * (attempt.log_interval or iteration):
        return "far ahead behind a set-up"
    if last is None or iteration > last or not counted:
        return "new step"
    if cursor is not None and cursor.last_iteration is not None and iteration > cursor.last_iteration:
        return "lags"
    return "goes back" if program_of(event.dialect) == program_of(attempt.dialect) else "another program goes back"


def _is_second_format(state: RunState, event: IterationLogged, source: str) -> bool:
    """Whether another program's line reports steps of this attempt that its own lines report too: a progress bar beside
    a logger, MLPerf's log beside the trainer's. It counts where it is ahead of them by more than it may be.
    """
    attempt = state.attempt
    if event.dialect in BY_NAME and attempt.dialect in BY_NAME:
        return False  # two ages of Megatron's one line
    last, iteration = attempt.last_iteration or 0, event.iteration
    author = f"{source} {event.dialect}"
    cursor = state.copies.positions.get(author)
    before = cursor.last_iteration if cursor is not None else None
    if before is not None and iteration < before:
        return False  # it went back itself: an attempt begins
    state.copies.moved(author, iteration, attempt.number)
    interval = attempt.log_interval or 1
    if iteration <= last:
        return before is not None or last - iteration <= _COPY_BEHIND * interval
    return before is not None and iteration - before > interval and iteration - last <= _COPY_BEHIND * interval


def take_engine_step(state: RunState, event: EngineStepLogged, number: int, context: EventContext) -> bool:
    """A step of the engine that counts: whether it was not told before."""
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
        return "copy"
    return _see_another(state, number) or ("goes back" if number < last else "new step")


def take_engine(state: RunState, event: EngineStepLogged, dialect: str, context: EventContext) -> bool:
    """An engine's step: whether the engine counts. Where another source counts and that attempt is over, the engine of
    another program begins one, if this is no late line.
    """
    attempt, engine_step = state.attempt, state.attempt.engine.latest_step
    if (
        attempt.step_source not in (None, "engine")
        and _is_over(attempt)
        and (engine_step is None or event.step < engine_step)
    ):
        _follow(state, "another program goes back", context)
    return take_over(state, "engine", dialect, context)


def _is_over(attempt: Attempt) -> bool:
    """Whether the attempt has ended, as far as a log can prove it."""
    return attempt.phase in ENDED and not attempt.unconfirmed


def take_over(state: RunState, name: StepSource, dialect: str, context: EventContext) -> bool:
    """Whether reports of the source count from now on. What DeepSpeed's engine reported before was the same training:
    it is reported again by the source that takes its place.
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
        state.learned.programs, state.learned.has_engine_steps = [program_of(dialect)], before == "engine"
        take_back(state)
    attempt.step_source, attempt.log_interval = name, None
    return True


# --- two trainings in one log ---------------------------------------------------------------------------------------


def _see_another(state: RunState, iteration: int) -> Seen | None:
    """Whether the step is one of another training that writes into the same log at the same time: the numbers go back
    without a set-up, and then an attempt that seemed replaced goes on where it was, or each replaces the other again.
    """
    attempt, ends = state.attempt, state.ends
    last, most = attempt.last_iteration, _AHEAD * (attempt.log_interval or state.learned.log_interval or 1)
    if last is None or not ends or iteration == last + (attempt.log_interval or 1):
        return None
    left = [end.last_iteration for end in ends[-_LEFT:] if end.last_iteration is not None]
    if iteration > last:
        attempt.mixed |= iteration - last > most and any(0 < iteration - before <= most for before in left)
        return None
    before = ends[-1].last_iteration
    at_once = attempt.iterations <= most and last - iteration <= most
    attempt.mixed |= at_once and before is not None and abs(iteration - before) <= most
    if not attempt.mixed:
        return None
    attempt.others += 1
    return "of another training" if attempt.others <= _SINGLE else "goes back"


def is_amid_set_up(state: RunState, iteration: int) -> bool:
    """Whether the first step of an attempt goes straight on, as that of the attempt before did, and that one was short:
    the set-up of another training came between steps of one that never stopped.
    """
    if len(state.ends) < 2:
        return False
    before, last = state.ends[-2:]
    if before.crashed or last.crashed or before.last_iteration is None or last.last_iteration is None:
        return False
    most = _AHEAD * (state.learned.log_interval or 1)
    went_on = abs(last.last_iteration - last.iterations - before.last_iteration) < most
    return went_on and last.iterations <= _AMID and 0 < iteration - last.last_iteration <= most
