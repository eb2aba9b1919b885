"""Companions: the streams that tell steps or arguments of a run, and what each adds to what the others have told
(monitor/identity/abreast.py).
"""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from megatron_monitor.core.sources import Source
from megatron_monitor.core.watched import Watched
from megatron_monitor.identity import ALONE
from megatron_monitor.identity.abreast import Abreast
from megatron_monitor.identity.naming import are_of_one_launch, is_of_a_process
from megatron_monitor.parsers.events import LogEvent

Due: TypeAlias = list[tuple[Sequence[LogEvent], float]]
"""What is to be folded now, and when it was written."""

_MOST = 64  # streams of a run, those that told steps or arguments last, with which another is compared


class Companions:
    """Of each run."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._streams: dict[str, dict[str, Source]] = {}
        self._highest: dict[str, tuple[int, dict[str, float]]] = {}
        """Run -> of which launch, and the last steps that its streams told of it, by kind of line."""

    def add(self, source: Source) -> None:
        """It tells steps or arguments."""
        streams = self._streams.setdefault(source.run, {})
        streams.setdefault(source.name, source)
        if len(streams) > _MOST:
            del streams[next(iter(streams))]

    def leave(self, source: Source) -> None:
        """It is followed no more, or goes to another run."""
        source.member.launch = ALONE
        streams = self._streams.get(source.run, {})
        streams.pop(source.name, None)
        if not streams:
            self._streams.pop(source.run, None)
            self._highest.pop(source.run, None)

    def of(self, source: Source) -> Iterator[Source]:
        """The others of its run."""
        others = tuple(self._streams.get(source.run, {}).values())
        return (other for other in others if other is not source)

    def count(self, run: str) -> int:
        """How many a run has."""
        return len(self._streams.get(run, ()))

    def join_mates(self, source: Source) -> None:
        """It is in the launch of another process of it, as the launcher calls their files."""
        if source.member.launch == ALONE and is_of_a_process(source.path):
            mates = (one for one in self.of(source) if are_of_one_launch(source.path, one.path))
            if (mate := next(mates, None)) is not None:
                self.join(source, mate)

    def join(self, source: Source, other: Source) -> None:
        """Both tell one training. What is history goes through its launches once more, from the first that the other
        told.
        """
        run = self._watched.current(source)
        if run is None:
            return
        number, cursor = run.state.launch.number, run.state.copies.cursors.get(other.name)
        for one, first in ((other, False), (source, not source.caught_up)):
            if one.member.launch == ALONE:
                one.member.launch = number if cursor is None else cursor.first if first else cursor.launch
        if source.caught_up:
            source.member.launch = number
        if source.waiting:  # it is gone through once more
            source.member.marks.clear()
        source.member.told.clear()
        self._highest.pop(run.state.name, None)

    def beyond(self, source: Source, due: Due) -> Due:
        """What others of its training have not told."""
        run, member = self._watched.current(source), source.member
        if member.launch == ALONE or run is None:
            return [(entries, at) for entries, at in due if entries]
        number, copies, found = run.state.launch.number, run.state.copies, Due()
        known, highest = self._highest.get(run.state.name, (number, {}))
        if known != number or not highest:
            highest = self._highest_of(source, number)
            self._highest[run.state.name] = number, highest
        if member.told:
            member.launch = min(member.launch, number)
        stream = Abreast(member, number, highest, live=source.caught_up)
        for entries, at in due:
            kept, ends = stream.beyond(entries)
            if stream.stepped:
                source.ends.clear()
                stream.stepped = False
            source.ends += [(entry, at) for entry in ends]
            if kept:
                found.append((kept, at))
        if stream.joins:
            copies.joined.add(source.name)
        else:
            copies.joined.discard(source.name)
        return found

    def _highest_of(self, source: Source, number: int) -> dict[str, float]:
        """What the other streams of its run have told last, of that launch."""
        highest: dict[str, float] = {}
        for other in self.of(source):
            if other.member.launch == number:
                for kind, step in other.member.told.items():
                    highest[kind] = max(step, highest.get(kind, step))
        return highest

    def ended(self, source: Source) -> Due:
        """It was read to its end: what it says of that, where its last step is of the present launch."""
        run, ends = self._watched.current(source), source.ends
        source.ends = []
        is_present = run is not None and source.member.launch == run.state.launch.number
        return [((entry,), at) for entry, at in ends] if is_present else []
