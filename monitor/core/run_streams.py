"""The streams of a log that report steps or arguments, and what each adds to the others (monitor/run/replicas.py)."""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from megatron_monitor.core.sources import Source
from megatron_monitor.identity.naming import are_of_one_attempt, is_of_a_process
from megatron_monitor.parsers.events import LogEvent
from megatron_monitor.run.replicas import ReplicaAttempts, join
from megatron_monitor.run.steps.copies import NO_ATTEMPT, StreamPosition

Due: TypeAlias = list[tuple[Sequence[LogEvent], float]]
"""(events to be folded, instant at which they were written)."""

_MAX_STREAMS = 64  # of a run, with which a new stream is compared: the last ones with steps or arguments


def add(source: Source) -> None:
    """Add a stream that reports steps or arguments."""
    streams = source.log.reporting
    streams.setdefault(source.name, source)
    if len(streams) > _MAX_STREAMS:
        del streams[next(iter(streams))]


def leave(source: Source) -> None:
    """Remove a stream that is no longer followed or moves to another run."""
    if (stream := replica_of(source)) is not None:
        stream.replica_attempt, stream.joins_attempt = NO_ATTEMPT, False
    source.log.reporting.pop(source.name, None)


def others_of(source: Source) -> Iterator[Source]:
    """Yield the other streams of its log."""
    others = tuple(source.log.reporting.values())
    return (other for other in others if other is not source)


def join_replicas(source: Source) -> None:
    """Join a per-process file to another file of the same attempt, by the launcher's file names."""
    if is_of_a_process(source.path) and replica_of(source) is None:
        replicas = (other for other in others_of(source) if are_of_one_attempt(source.path, other.path))
        if (first := next(replicas, None)) is not None:
            join_streams(source, first)


def join_streams(source: Source, other: Source) -> None:
    """Note that both streams report the same training."""
    run = source.run
    if run is not None:
        if source.waiting:  # its waiting lines are read again
            run.state.copies.position(source.name).marks.clear()
        join(run.state, source.name, other.name, live=source.caught_up)


def beyond(source: Source, due: Due) -> Due:
    """Return the events that no other stream of the run has reported."""
    run, stream = source.run, replica_of(source)
    if stream is None or run is None:
        return due
    found = Due()
    replica = ReplicaAttempts(run.state, stream, live=source.caught_up, copies=bool(source.member.copy_of))
    for entries, at in due:
        kept, ends = replica.beyond(entries)
        if replica.stepped:
            source.ends.clear()
            replica.stepped = False
        source.ends += [(entry, at) for entry in ends]
        if kept:
            found.append((kept, at))
    if stream.leads:
        source.member.copy_of = ""
    return found


def replica_of(source: Source) -> StreamPosition | None:
    """Return its position in the run if other streams of the run report the same training; otherwise None."""
    run = source.run
    stream = run.state.copies.positions.get(source.name) if run is not None else None
    return stream if stream is not None and stream.is_replica else None


def joins_attempt(source: Source) -> bool:
    """Return True if its set-up lines begin no attempt and no experiment."""
    stream = replica_of(source)
    return stream is not None and stream.joins_attempt


def ended(source: Source) -> Due:
    """Return the events of its end, after it was read whole, if its last step belongs to the present attempt."""
    run, stream, ends = source.run, replica_of(source), source.ends
    source.ends = []
    is_present = run is not None and stream is not None and stream.replica_attempt == run.state.attempt.number
    return [((entry,), at) for entry, at in ends] if is_present else []
