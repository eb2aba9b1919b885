"""Streams that tell one training abreast: files of ranks, of nodes, and copies. Pure.

Each stream goes through the launches of its run on its own: it begins anew where a mark of the set-up comes behind its
steps or once more, or where its numbers go back. The first that does so begins a launch of the run; the others join it,
soon where they come live, a whole file later where they are read as history. A step counts once, whoever tells it
first. What a file of history says of a launch that another file has told to its end is known already, but for what it
says of its own end.
"""

from collections.abc import Sequence

from megatron_monitor.identity import Member, step_of
from megatron_monitor.parsers.events import (
    ArgumentsDumped,
    EnvironmentVariableSeen,
    Event,
    FailureSeen,
    HostSeen,
    LogEvent,
    MilestoneReached,
    ModelSettingLogged,
    ProcessExited,
    ProcessTerminated,
    SoftwareSeen,
    TopologyLogged,
    TracebackSeen,
    TrainerProgressed,
    TrainerSetting,
)
from megatron_monitor.run.attempts import mark_of

ENDS = (FailureSeen, ProcessExited, ProcessTerminated, TracebackSeen)
_SETTINGS = (
    ArgumentsDumped, EnvironmentVariableSeen, HostSeen, MilestoneReached, ModelSettingLogged, SoftwareSeen,
    TopologyLogged, TrainerSetting,
)  # fmt: skip


class Abreast:
    """What is to be folded of a stream's lines. `number`: the run's present launch; `highest`: kind of step -> the
    last one of that launch that any stream has told, which this brings up to date.
    """

    def __init__(self, member: Member, number: int, highest: dict[str, float], *, live: bool) -> None:
        self._member, self._number, self._highest, self._live = member, number, highest, live
        self.stepped = False
        """It has told a step: no line before it shows how it ended."""
        self.joins = False
        """What it says of the set-up is of the present launch, in which it has told no step before."""

    def beyond(self, entries: Sequence[LogEvent]) -> tuple[list[LogEvent], list[LogEvent]]:
        """(what is folded now, what is folded when it has been read to its end, if no step of it follows)."""
        kept, ends = list[LogEvent](), list[LogEvent]()
        for entry in entries:
            tells = self._tells(entry.event)
            if step_of(entry.event) is not None:
                self.stepped = True
                ends.clear()
            if tells and not self._live and self._member.launch <= self._number and isinstance(entry.event, ENDS):
                ends.append(entry)
            elif tells:
                kept.append(entry)
        return kept, ends

    def _tells(self, event: Event) -> bool:
        """Whether the line tells what nobody has told."""
        member, mark, step = self._member, mark_of(event), step_of(event)
        kind = mark.kind if mark is not None else ""
        if _begins_anew(member, kind, step):
            member.launch += 1
            member.told.clear()
            member.marks.clear()
        if member.launch == self._number and not member.told:
            self.joins = True
        elif member.launch > self._number:
            self.joins = False
        if kind:
            member.marks.add(kind)
        if step is not None:
            member.told[step[0]] = step[1]
        if member.launch > self._number:
            return True  # it is the first that begins that launch
        if step is None:
            return self._adds(event)
        if step[1] <= self._highest.get(step[0], float("-inf")):
            return False
        if member.launch < self._number and not self._live:
            return False
        member.launch, member.copy_of = self._number, ""
        self._highest[step[0]] = step[1]
        return True

    def _adds(self, event: Event) -> bool:
        """The same of a line that tells no step. What comes live may be of the present launch, whoever tells it."""
        if self._live:
            return not self._member.copy_of or isinstance(event, ENDS)
        if self._member.launch < self._number:
            return False
        if self._member.copy_of:
            return isinstance(event, ENDS)
        return not self._member.told or isinstance(event, (*ENDS, *_SETTINGS, TrainerProgressed))


def _begins_anew(member: Member, mark: str, step: tuple[str, float] | None) -> bool:
    if step is not None:
        return step[1] < member.told.get(step[0], step[1])
    return mark != "" and (bool(member.told) or mark in member.marks)
