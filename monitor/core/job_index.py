"""Which streams are of one job, under whatever names, and what of that is shown of the runs."""

from collections.abc import Iterator

from megatron_monitor import identity
from megatron_monitor.core.sources import Source
from megatron_monitor.core.watched import Watched
from megatron_monitor.run.steps.step import STEP_EVENTS

STEP_KINDS = frozenset(kind.kind for kind in STEP_EVENTS)


class JobIndex:
    """By job or owner (identity.Key): its streams."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._streams: dict[str, dict[str, Source]] = {}
        self._due: set[str] = set()  # runs of which something else is to be shown

    def add(self, source: Source) -> None:
        """Its key is known."""
        if source.member.key:
            self._streams.setdefault(source.member.key, {})[source.name] = source
            self.changed(source.run)

    def remove(self, source: Source) -> None:
        """It is followed no more, or has another key."""
        for other in self.others(source):
            self.changed(other.run)
        streams = self._streams.get(source.member.key, {})
        streams.pop(source.name, None)
        if not streams:
            self._streams.pop(source.member.key, None)
        self.changed(source.run)

    def others(self, source: Source) -> Iterator[Source]:
        """The other streams of its job, in the order in which that was known."""
        others = tuple(self._streams.get(source.member.key, {}).values())
        return (other for other in others if other is not source)

    def changed(self, run: str) -> None:
        """Something is to be shown of the run that was not before."""
        self._due.add(run)

    def bring_up_to_date(self) -> None:
        """`Run.identity` of those that have changed, and of those that share a job with them."""
        due, self._due = self._due, set()
        for name in sorted(due | {mate for one in due for mate in self._replicas(one)}):
            if (run := self._watched.runs.get(name)) is None:
                continue
            own = {source.name: source.member for source in self._watched.sources.of_run(name)}
            shown = identity.page(own, self._replicas(name))
            if shown != run.identity:
                run.identity, run.dirty = shown, True

    def _replicas(self, run: str) -> list[str]:
        """The other runs in its job."""
        keys = {source.member.key for source in self._watched.sources.of_run(run)}
        return sorted({other.run for key in keys for other in self._streams.get(key, {}).values()} - {run})
