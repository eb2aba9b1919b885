"""A job's id that stands behind a stream's steps: that of a launch that begins, or text that a training prints."""

from __future__ import annotations

from collections.abc import Sequence

from monitor.core.runs import Run
from monitor.core.sources import Source
from monitor.identity import JOB_VARIABLE
from monitor.run.steps.step import STEP_EVENTS
from parsers.events import EnvironmentVariableSeen, LogEvent

_STEP_KINDS = frozenset(kind.kind for kind in STEP_EVENTS)


class LaterIds:
    """By stream: the line that is withheld, and the run and the launch in which it came."""

    def __init__(self) -> None:
        self._withheld: dict[str, tuple[LogEvent, str, int]] = {}

    def withhold(self, source: Source, entries: Sequence[LogEvent], run: Run | None) -> list[LogEvent]:
        """The entries without such ids, of which the last is kept here."""
        kept: list[LogEvent] = []
        for entry in entries:
            event = entry.event
            if not (isinstance(event, EnvironmentVariableSeen) and event.name == JOB_VARIABLE):
                kept.append(entry)
            elif run is not None:
                self._withheld[source.name] = entry, run.state.name, run.state.launch.number
        return kept

    def holds(self, source: Source) -> bool:
        """Is one kept?"""
        return source.name in self._withheld

    def begun(self, source: Source, kinds: Sequence[str], run: Run | None) -> LogEvent | None:
        """Its next lines, of these kinds, were folded: the id, if another launch has begun with them. If they tell a
        step of the same launch, it was text.
        """
        entry, name, number = self._withheld[source.name]
        if run is not None and (run.state.name, run.state.launch.number) != (name, number):
            del self._withheld[source.name]
            return entry
        if not _STEP_KINDS.isdisjoint(kinds) and EnvironmentVariableSeen.kind not in kinds:
            del self._withheld[source.name]
        return None

    def drop(self, source: Source) -> None:
        """It is followed no more."""
        self._withheld.pop(source.name, None)
