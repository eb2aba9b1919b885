"""Streams that report the same attempt at the same time: per-rank files, per-node files and copies. Pure.

Each stream passes through the attempts of its run separately. A stream begins an attempt at a set-up mark after its
steps, at a repeated mark, or where its step numbers go back. The first such stream begins the run's attempt
(attempts.py), and the others join it. A step counts once, from the stream that reports it first. A file that is read as
history adds nothing to an attempt that another file has reported, except its own end.
"""

from collections.abc import Sequence

from megatron_monitor.parsers import events
from megatron_monitor.parsers.events import Event, LogEvent
from megatron_monitor.run.attempts import mark_of
from megatron_monitor.run.state import RunState
from megatron_monitor.run.steps.copies import NO_ATTEMPT, StreamPosition, step_of

ENDS = (events.FailureSeen, events.ProcessExited, events.ProcessTerminated, events.TracebackSeen)
_REPEATED = (
    *ENDS, events.ArgumentsDumped, events.EnvironmentVariableSeen, events.HostSeen, events.MilestoneReached,
    events.ModelSettingLogged, events.SoftwareSeen, events.TopologyLogged, events.TrainerSetting,
    events.TrainerProgressed,
)  # fmt: skip
"""Events that a file read as history adds to the present attempt after its steps."""


def join(state: RunState, source: str, other: str, *, live: bool) -> None:
    """Note that both streams report one training. History (not `live`) passes through its attempts again."""
    number, copies = state.attempt.number, state.copies
    copies.joined = True
    mine, its = copies.position(source), copies.position(other)
    if not its.is_replica:
        its.replica_attempt = number if its.first_attempt == NO_ATTEMPT else its.attempt
    if live or its.first_attempt == NO_ATTEMPT:
        mine.replica_attempt = number
    elif not mine.is_replica:
        mine.replica_attempt = its.first_attempt
    mine.leads = False
    mine.reported.clear()
    if its.replica_attempt == number:
        copies.note_furthest(its.reported, number)


class ReplicaAttempts:
    """Selects the lines of a replica that are folded. `copies`: the stream repeats another one literally."""

    def __init__(self, state: RunState, stream: StreamPosition, *, live: bool, copies: bool) -> None:
        self._stream, self._number, self._seen = stream, state.attempt.number, state.copies
        self._live, self._copies = live, copies
        self.stepped = False
        """True: it has reported a step, so earlier lines do not show its end."""
        if stream.reported:
            stream.replica_attempt = min(stream.replica_attempt, self._number)
        stream.joins_attempt = False

    def beyond(self, entries: Sequence[LogEvent]) -> tuple[list[LogEvent], list[LogEvent]]:
        """Return (events to fold now, events of an end to fold after the stream is read, if no step follows)."""
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
        """Return True if no other stream has reported this line's event."""
        stream, mark, number = self._stream, mark_of(event), self._number
        kind = mark.kind if mark is not None else ""
        if _begins_attempt(stream, kind, step):
            stream.replica_attempt += 1
            stream.leads = False
            stream.reported.clear()
            stream.marks.clear()
        if stream.replica_attempt == number and not stream.reported:
            stream.joins_attempt = True
        elif stream.replica_attempt > number:
            stream.joins_attempt = False
        if kind:
            stream.marks.add(kind)
        if step is None:
            return stream.replica_attempt > number or stream.leads or self._adds(event)
        stream.reported[step[0]] = step[1]
        stream.leads = False
        if stream.replica_attempt > number:  # the first stream of that attempt
            self._seen.note_furthest(stream.reported, stream.replica_attempt)
            return True
        known = self._seen.furthest if self._seen.furthest_attempt == number else {}
        if step[1] <= known.get(step[0], float("-inf")) or (stream.replica_attempt < number and not self._live):
            return False
        stream.replica_attempt, stream.leads, self._copies = number, True, False
        self._seen.note_furthest({step[0]: step[1]}, number)
        return True

    def _adds(self, event: Event) -> bool:
        """The same for a line without a step. A live line may belong to the present attempt."""
        if self._live:
            return not self._copies or isinstance(event, ENDS)
        if self._stream.replica_attempt < self._number:
            return False
        if self._copies:
            return isinstance(event, ENDS)
        return not self._stream.reported or isinstance(event, _REPEATED)


def _begins_attempt(stream: StreamPosition, mark: str, step: tuple[str, float] | None) -> bool:
    if step is not None:
        return step[1] < stream.reported.get(step[0], step[1])
    return mark != "" and (bool(stream.reported) or mark in stream.marks)
