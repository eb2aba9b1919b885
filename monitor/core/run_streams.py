"""The streams of a run that report steps or arguments, and what each adds to the others (monitor/run/replicas.py)."""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from megatron_monitor.core.sources import Source
from megatron_monitor.core.watched import Watched
from megatron_monitor.identity.naming import are_of_one_attempt, is_of_a_process
from megatron_monitor.parsers.events import LogEvent
from megatron_monitor.run.replicas import ReplicaAttempts, join
from megatron_monitor.run.steps.copies import NO_ATTEMPT, StreamPosition

Due: TypeAlias = list[tuple[Sequence[LogEvent], float]]
"""(events to be folded, instant at which they were written)."""

_MAX_STREAMS = 64  # of a run, with which a new stream is compared: the last ones with steps or arguments


class RunStreams:
    """The reporting streams, by run."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched

    def add(self, source: Source) -> None:
        """Add a stream that reports steps or arguments."""
        streams = source.log.reporting
        streams.setdefault(source.name, source)
        if len(streams) > _MAX_STREAMS:
            del streams[next(iter(streams))]

    def leave(self, source: Source) -> None:
        """Remove a stream that is no longer followed or moves to another run."""
        if (stream := self._stream(source)) is not None:
            stream.replica_attempt, stream.joins_attempt = NO_ATTEMPT, False
        source.log.reporting.pop(source.name, None)

    def of(self, source: Source) -> Iterator[Source]:
        """Yield the other streams of its run."""
        others = tuple(source.log.reporting.values())
        return (other for other in others if other is not source)

    def count(self, run: str) -> int:
        """Return the number of streams of the log with that name."""
        log = self._watched.logs.get(run)
        return 0 if log is None else len(log.reporting)

    def join_replicas(self, source: Source) -> None:
        """Join a per-process file to another file of the same attempt, by the launcher's file names."""
        if is_of_a_process(source.path) and not self.is_replica(source):
            replicas = (other for other in self.of(source) if are_of_one_attempt(source.path, other.path))
            if (first := next(replicas, None)) is not None:
                self.join(source, first)

    def join(self, source: Source, other: Source) -> None:
        """Note that both streams report the same training."""
        run = self._watched.current(source)
        if run is not None:
            if source.waiting:  # its waiting lines are read again
                run.state.copies.position(source.name).marks.clear()
            join(run.state, source.name, other.name, live=source.caught_up)

    def beyond(self, source: Source, due: Due) -> Due:
        """Return the events that no other stream of the run has reported."""
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
        """Return its position in the run if it is a replica; otherwise None."""
        run = self._watched.current(source)
        stream = run.state.copies.positions.get(source.name) if run is not None else None
        return stream if stream is not None and stream.is_replica else None

    def is_replica(self, source: Source) -> bool:
        """Return True if other streams of its run report the same training."""
        return self._stream(source) is not None

    def ended(self, source: Source) -> Due:
        """Return the events of its end, after it was read whole, if its last step belongs to the present attempt."""
        run, stream, ends = self._watched.current(source), self._stream(source), source.ends
        source.ends = []
        is_present = run is not None and stream is not None and stream.replica_attempt == run.state.attempt.number
        return [((entry,), at) for entry, at in ends] if is_present else []
