"""The monitor's counts of its own reading, for MonitorCounts. For the loop's thread only."""

from collections import Counter
from collections.abc import Iterable, Sequence

from megatron_monitor.core.sources import Source
from megatron_monitor.parsers.events import LineDiscarded, LogEvent, Malformed
from megatron_monitor.snapshot import MonitorCounts

_FAULTS = frozenset({Malformed.kind, LineDiscarded.kind})


def count_events(counts: MonitorCounts, kinds: Sequence[str], entries: Iterable[LogEvent]) -> None:
    """Count events. `kinds` are those of `entries`."""
    for kind, many in Counter(kinds).items():
        counts.add("events_total", kind, by=many)
    if _FAULTS.isdisjoint(kinds):
        return
    for entry in entries:
        if isinstance(entry.event, Malformed):
            counts.add("malformed_lines_total", entry.event.rule)
        elif isinstance(entry.event, LineDiscarded):
            counts.add("lines_total", "too_long")


def count_lines(counts: MonitorCounts, source: Source) -> None:
    """Count the lines that a reader has read since the last call."""
    lines, matched = source.reader.lines, source.reader.matched_lines
    known_lines, known_matched = source.counted
    if lines != known_lines:
        source.counted = (lines, matched)
        counts.add("lines_total", "matched", by=matched - known_matched)
        counts.add("lines_total", "other", by=lines - known_lines - (matched - known_matched))


def count_left_out(counts: MonitorCounts, source: Source) -> None:
    """Count the lines of a pushed stream that came too late or twice since the last call."""
    if (ordered := source.ordered) is not None:
        for name, many in (("late_lines_total", ordered.late), ("duplicate_lines_total", ordered.again)):
            if many:
                counts.add(name, source.log.name, by=many)
        ordered.late = ordered.again = 0
