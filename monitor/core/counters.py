"""Counters of the reading itself: cheap per delivery, brought into MonitorCounts when somebody looks."""

from collections import Counter
from collections.abc import Iterable, Sequence

from monitor.core.sources import Source
from monitor.snapshot import MonitorCounts
from parsers.events import LineDiscarded, LogEvent, Malformed

_FAULTS = frozenset({Malformed.kind, LineDiscarded.kind})


class Counters:
    """Written by the loop thread alone."""

    def __init__(self) -> None:
        self.counts = MonitorCounts()
        self._events: Counter[str] = Counter()
        self._bytes = 0
        self._read_at: float | None = None

    def add_bytes(self, size: int, read_at: float) -> None:
        """So many were read at `read_at`, Unix seconds."""
        self._bytes += size
        self._read_at = read_at

    def add_events(self, kinds: Sequence[str], entries: Iterable[LogEvent]) -> None:
        """`kinds`: those of `entries`."""
        self._events.update(kinds)
        if _FAULTS.isdisjoint(kinds):
            return
        for entry in entries:
            if isinstance(entry.event, Malformed):
                self.counts.add("malformed_lines_total", entry.event.rule)
            elif isinstance(entry.event, LineDiscarded):
                self.counts.add("lines_total", "too_long")

    def add_lines(self, source: Source) -> None:
        """What its reader has read since the last call."""
        lines, matched = source.reader.lines, source.reader.matched_lines
        known_lines, known_matched = source.counted
        if lines != known_lines:
            source.counted = (lines, matched)
            self.add_read(lines - known_lines, matched - known_matched)

    def add_read(self, lines: int, matched: int) -> None:
        """So many were read, and so many of them gave an event."""
        self.counts.add("lines_total", "matched", by=matched)
        self.counts.add("lines_total", "other", by=lines - matched)

    def up_to_date(self, sources: Iterable[Source]) -> MonitorCounts:
        """Everything counted so far."""
        for source in sources:
            self.add_lines(source)
        for kind, count in self._events.items():
            self.counts.add("events_total", kind, by=count)
        self._events.clear()
        if self._read_at is not None:
            self.counts.add("bytes_total", by=self._bytes)
            self.counts.set("last_read_timestamp_seconds", self._read_at)
            self._bytes, self._read_at = 0, None
        return self.counts
