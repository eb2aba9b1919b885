"""Companions: the streams that tell steps or arguments of a run, and what each adds to what the others have told
(monitor/run/replicas.py).
"""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from megatron_monitor.core.sources import Source
from megatron_monitor.core.watched import Watched
from megatron_monitor.identity.naming import are_of_one_attempt, is_of_a_process
from megatron_monitor.parsers.events import LogEvent
from megatron_monitor.run.replicas import ReplicaAttempts, join
from megatron_monitor.run.steps.copies import NO_ATTEMPT, StreamPosition

Due: TypeAlias = list[tuple[Sequence[LogEvent], float]]
"""What is to be folded now, and when it was written."""

_MOST = 64  # streams of a run, those that told steps or arguments last, with which another is compared


class RunStreams:
    """Of each run."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._streams: dict[str, dict[str, Source]] = {}

    def add(self, source: Source) -> None:
        """It tells steps or arguments."""
        streams = self._streams.setdefault(source.run, {})
        streams.setdefault(source.name, source)
        if len(streams) > _MOST:
            del streams[next(iter(streams))]

    def leave(self, source: Source) -> None:
        """It is followed no more, or goes to another run."""
        if (stream := self._stream(source)) is not None:
            stream.replica_attempt, stream.joins_attempt = NO_ATTEMPT, False
        streams = self._streams.get(source.run, {})
        streams.pop(source.name, None)
        if not streams:
            self._streams.pop(source.run, None)

    def of(self, source: Source) -> Iterator[Source]:
        """The others of its run."""
        others = tuple(self._streams.get(source.run, {}).values())
        return (other for other in others if other is not source)

    def count(self, run: str) -> int:
        """How many a run has."""
        return len(self._streams.get(run, ()))

    def join_replicas(self, source: Source) -> None:
        """It is in the attempt of another process of it, as the launcher calls their files."""
        if is_of_a_process(source.path) and not self.is_replica(source):
            replicas = (one for one in self.of(source) if are_of_one_attempt(source.path, one.path))
            if (mate := next(replicas, None)) is not None:
                self.join(source, mate)

    def join(self, source: Source, other: Source) -> None:
        """Both tell one training."""
        run = self._watched.current(source)
        if run is not None:
            if source.waiting:  # it is gone through once more
                run.state.copies.position(source.name).marks.clear()
            join(run.state, source.name, other.name, live=source.caught_up)

    def beyond(self, source: Source, due: Due) -> Due:
        """What others of its training have not told."""
        run, stream = self._watched.current(source), self._stream(source)
        if stream is None or run is None:
            return [(entries, at) for entries, at in due if entries]
        found, replica = (
            Due(),
            ReplicaAttempts(run.state, stream, live=source.caught_up, copies=bool(source.member.copy_of)),
        )
        for entries, at in due:
            kept, ends = replica.beyond(entries)
            if replica.stepped:
                source.ends.clear()
                replica.stepped = False
            source.ends += [(entry, at) for entry in ends]
            if kept:
                found.append((kept, at))
        if replica.leads:
            source.member.copy_of = ""
        return found

    def _stream(self, source: Source) -> StreamPosition | None:
        """Where it stands in its run, if it is abreast of others."""
        run = self._watched.current(source)
        stream = run.state.copies.positions.get(source.name) if run is not None else None
        return stream if stream is not None and stream.is_replica else None

    def is_replica(self, source: Source) -> bool:
        """Whether others of its run tell the same training."""
        return self._stream(source) is not None

    def ended(self, source: Source) -> Due:
        """It was read to its end: what it says of that, where its last step is of the present attempt."""
        run, stream, ends = self._watched.current(source), self._stream(source), source.ends
        source.ends = []
        is_present = run is not None and stream is not None and stream.replica_attempt == run.state.attempt.number
        return [((entry,), at) for entry, at in ends] if is_present else []
