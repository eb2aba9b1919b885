"""Streams that tell one training abreast: files of ranks, of nodes, and copies. Pure.

Each stream goes through the attempts of its run on its own: it begins anew where a mark of the set-up comes behind its
steps or once more, or where its numbers go back. The first that does so begins an attempt of the run (attempts.py).
The others join it, soon where they come live, a whole file later where they are read as history. A step counts once,
whoever tells it first. What a file of history says of an attempt that another file has told to its end is known
already, but for what it says of its own end.
"""

from collections.abc import Sequence

from megatron_monitor.parsers.events import (
    ArgumentsDumped,
    EngineStepLogged,
    EnvironmentVariableSeen,
    Event,
    FailureSeen,
    HostSeen,
    IterationLogged,
    LogEvent,
    MilestoneReached,
    ModelSettingLogged,
    ProcessExited,
    ProcessTerminated,
    SoftwareSeen,
    TopologyLogged,
    TracebackSeen,
    TrainerLogged,
    TrainerProgressed,
    TrainerSetting,
)
from megatron_monitor.run.attempts import mark_of
from megatron_monitor.run.state import RunState
from megatron_monitor.run.steps.copies import NO_ATTEMPT, StreamPosition

ENDS = (FailureSeen, ProcessExited, ProcessTerminated, TracebackSeen)
_REPEATED = (
    *ENDS, ArgumentsDumped, EnvironmentVariableSeen, HostSeen, MilestoneReached, ModelSettingLogged, SoftwareSeen,
    TopologyLogged, TrainerSetting, TrainerProgressed,
)  # fmt: skip
"""What a file of history adds to the present attempt, of which it has told steps."""


def step_of(event: Event) -> tuple[str, float] | None:
    """(kind of line, which step it tells of); None of any other line, and of a bar: there are bars of much else."""
    if isinstance(event, IterationLogged):
        return event.kind, event.iteration
    if isinstance(event, EngineStepLogged):
        return f"{event.kind} {event.form}", event.step  # the timer's line of a step follows the step's own
    if isinstance(event, TrainerLogged):
        number = event.step if event.step is not None else event.epoch
        return None if number is None else (event.kind, number)
    return None


def note_step(state: RunState, source: str, event: Event) -> None:
    """A stream has told of a step. Of one that is abreast of others `Abreast` notes it."""
    step = step_of(event)
    if step is not None and (stream := state.copies.position(source)).replica_attempt == NO_ATTEMPT:
        stream.reported[step[0]] = step[1]


def join(state: RunState, source: str, other: str, *, live: bool) -> None:
    """Both streams tell one training. What is history (not `live`) goes through its attempts once more, from the first
    that the other told.
    """
    number, copies = state.attempt.number, state.copies
    mine, its = copies.position(source), copies.position(other)
    if not its.is_replica:
        its.replica_attempt = number if its.first_attempt == NO_ATTEMPT else its.attempt
    if live or its.first_attempt == NO_ATTEMPT:
        mine.replica_attempt = number
    elif not mine.is_replica:
        mine.replica_attempt = its.first_attempt
    mine.reported.clear()
    if its.replica_attempt == number:
        copies.note_furthest(its.reported, number)


class ReplicaAttempts:
    """What is to be folded of a stream's lines. `copies`: whether it repeats another's letter by letter."""

    def __init__(self, state: RunState, stream: StreamPosition, *, live: bool, copies: bool) -> None:
        self._stream, self._number, self._seen = stream, state.attempt.number, state.copies
        self._live, self._copies = live, copies
        self.stepped = False
        """It has told a step: no line before it shows how it ended."""
        self.leads = False
        """It has told a step that no other stream had told."""
        if stream.reported:
            stream.replica_attempt = min(stream.replica_attempt, self._number)
        stream.joins_attempt = False

    def beyond(self, entries: Sequence[LogEvent]) -> tuple[list[LogEvent], list[LogEvent]]:
        """(what is folded now, what is folded when it has been read to its end, if no step of it follows)."""
        kept, ends = list[LogEvent](), list[LogEvent]()
        for entry in entries:
            step = step_of(entry.event)
            is_new = self._is_new(entry.event, step)
            if step is not None:
                self.stepped = True
                ends.clear()
            if (
                is_new
                and not self._live
                and self._stream.replica_attempt <= self._number
                and isinstance(entry.event, ENDS)
            ):
                ends.append(entry)
            elif is_new:
                kept.append(entry)
        return kept, ends

    def _is_new(self, event: Event, step: tuple[str, float] | None) -> bool:
        """Whether the line tells what nobody has told."""
        stream, mark, number = self._stream, mark_of(event), self._number
        kind = mark.kind if mark is not None else ""
        if _begins_anew(stream, kind, step):
            stream.replica_attempt += 1
            stream.reported.clear()
            stream.marks.clear()
        if stream.replica_attempt == number and not stream.reported:
            stream.joins_attempt = True
        elif stream.replica_attempt > number:
            stream.joins_attempt = False
        if kind:
            stream.marks.add(kind)
        if step is None:
            return stream.replica_attempt > number or self._adds(event)
        stream.reported[step[0]] = step[1]
        if stream.replica_attempt > number:  # it is the first that begins that attempt
            self._seen.note_furthest(stream.reported, stream.replica_attempt)
            return True
        known = self._seen.furthest if self._seen.furthest_attempt == number else {}
        if step[1] <= known.get(step[0], float("-inf")) or (stream.replica_attempt < number and not self._live):
            return False
        stream.replica_attempt, self.leads, self._copies = number, True, False
        self._seen.note_furthest({step[0]: step[1]}, number)
        return True

    def _adds(self, event: Event) -> bool:
        """The same of a line that tells no step. What comes live may be of the present attempt, whoever tells it."""
        if self._live:
            return not self._copies or isinstance(event, ENDS)
        if self._stream.replica_attempt < self._number:
            return False
        if self._copies:
            return isinstance(event, ENDS)
        return not self._stream.reported or isinstance(event, _REPEATED)


def _begins_anew(stream: StreamPosition, mark: str, step: tuple[str, float] | None) -> bool:
    if step is not None:
        return step[1] < stream.reported.get(step[0], step[1])
    return mark != "" and (bool(stream.reported) or mark in stream.marks)
