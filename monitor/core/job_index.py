"""Index of streams by Slurm job or Kubernetes owner, and what it shows on the pages of runs."""

from collections.abc import Iterator

from megatron_monitor import identity
from megatron_monitor.core.logs import Log
from megatron_monitor.core.sources import Source
from megatron_monitor.core.watched import Watched
from megatron_monitor.run.steps.step import STEP_EVENTS

STEP_KINDS = frozenset(kind.kind for kind in STEP_EVENTS)


class JobIndex:
    """Job or owner (identity.JobKey) -> its streams."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._streams: dict[str, dict[str, Source]] = {}
        self._due: set[Log] = set()  # logs with a changed identity

    def add(self, source: Source) -> None:
        """Add a stream with a known key."""
        self._streams.setdefault(source.member.key, {})[source.name] = source
        self.changed(source.log)

    def remove(self, source: Source) -> None:
        """Remove a stream that is no longer followed, or gets another key."""
        for other in self.others(source):
            self.changed(other.log)
        streams = self._streams.get(source.member.key, {})
        streams.pop(source.name, None)
        if not streams:
            self._streams.pop(source.member.key, None)
        self.changed(source.log)

    def others(self, source: Source) -> Iterator[Source]:
        """Yield the other streams of its job, in the order in which they were added."""
        others = tuple(self._streams.get(source.member.key, {}).values())
        return (other for other in others if other is not source)

    def changed(self, log: Log) -> None:
        """Note that the identity of the log's run must be shown again."""
        self._due.add(log)

    def bring_up_to_date(self) -> None:
        """Update `Run.identity` of changed runs and of runs in the same job."""
        due, self._due = self._due, set()
        for log in due.union(*map(self._same_job, due)):
            if (run := log.runs.get("")) is None:
                continue
            own = {source.name: source.member for source in log.sources.values()}
            shown = identity.page(own, sorted(other.name for other in self._same_job(log)))
            if shown != run.identity:
                run.identity, run.dirty = shown, True

    def _same_job(self, log: Log) -> set[Log]:
        """Return the other logs of its job."""
        keys = {source.member.key for source in log.sources.values()}
        return {other.log for key in keys for other in self._streams.get(key, {}).values()} - {log}
