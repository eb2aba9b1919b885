"""The history of finished logs as Prometheus would have scraped it: the run on its own clock, looked at every step.

A log that prints times is dated by them: programs print none with a zone, so the caller names the zone. One that prints
none is dated from `start`, the instant of its first line, by the sum of its iterations' times.
"""

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import tzinfo
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import IO

from megatron_monitor.config import Config
from megatron_monitor.core.view import view_of
from megatron_monitor.judgement import Judge
from megatron_monitor.metrics import CATALOGUE, samples_of
from megatron_monitor.parsers.events import LogEvent
from megatron_monitor.prometheus_text import Family, escaped
from megatron_monitor.replay import Players, Replay
from megatron_monitor.run.experiments import BOUNDS
from megatron_monitor.snapshot import Histogram, Sample, clean_label
from megatron_monitor.source_clock import Placed, SourceClock, clocked

_BUFFERED = 512  # points of one label set kept in memory

_Values = tuple[str, ...]


class Spool:
    """Points of many runs as OpenMetrics text: each family once, each label set together, as the format demands.

    History comes in the order of time, the text goes out in the order of label sets: so lines wait in a file each,
    below `directory` (the caller's, and his to remove), and memory does not grow with the log.
    """

    def __init__(self, directory: Path, extra: Mapping[str, str] | None = None) -> None:
        self._directory = directory
        constant = {name: clean_label(value) for name, value in (extra or {}).items()}
        self._families = [Family(row, ("run", *row.labels), openmetrics=True, constant=constant) for row in CATALOGUE]
        self._groups: dict[str, dict[_Values, _Lines]] = {}
        self.points = 0
        self.first: float | None = None
        self.last: float | None = None

    def add(self, run: str, at: float, samples: Mapping[str, tuple[Sample, ...] | Histogram]) -> None:
        """Everything that one run shows at one instant (Unix seconds), as metrics.samples_of gives it."""
        self.first = at if self.first is None else min(self.first, at)
        self.last = at if self.last is None else max(self.last, at)
        first, stamp = (escaped(clean_label(run)),), f" {at:.3f}"
        for family in self._families:
            found = samples.get(family.name)
            if isinstance(found, Histogram):  # its buckets of one instant stand together
                self._lines(family.name, first).add(family.text(first, found, stamp))
                self.points += len(found.buckets) + 2
                continue
            for sample in found or ():
                self._lines(family.name, (*first, *sample.labels)).add(family.text(first, (sample,), stamp))
                self.points += 1

    def _lines(self, family: str, labels: _Values) -> "_Lines":
        groups = self._groups.setdefault(family, {})
        lines = groups.get(labels)
        if lines is None:
            number = sum(len(known) for known in self._groups.values())
            lines = groups[labels] = _Lines(self._directory / f"{number}.lines")
        return lines

    def write(self, out: IO[str]) -> None:
        """The whole text, in the catalogue's order."""
        for family in self._families:
            groups = self._groups.get(family.name)
            if not groups:
                continue
            out.write(family.head)
            for lines in groups.values():
                out.writelines(lines.all())
        out.write("# EOF\n")


class _Lines:
    """The lines of one label set in the order of time, older ones on the disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._buffer: list[str] = []

    def add(self, text: str) -> None:
        self._buffer.append(text)
        if len(self._buffer) >= _BUFFERED:
            with self._path.open("a", encoding="utf-8") as stream:
                stream.writelines(self._buffer)
            self._buffer.clear()

    def all(self) -> Iterable[str]:
        if self._path.exists():
            with self._path.open(encoding="utf-8") as stream:
                yield from stream
        yield from self._buffer


Samples = Mapping[str, tuple[Sample, ...] | Histogram]

_LIVE_ONLY = frozenset({"megatron_hang_deadline_timestamp_seconds"})
"""Nobody waits for a finished log: a deadline in a history that ends just before now would be reported as a hang."""
_DAY = 86400.0  # by which stamps of another zone may seem later than the file


class UndatedError(Exception):
    """No line of the run prints a time, and no start was given."""


@dataclass(frozen=True, slots=True)
class Moment:
    """All that one run shows at one instant, Unix seconds."""

    run: str
    at: float
    samples: Samples


def history(
    config: Config, judge: Judge, name: str, sources: Mapping[str, Iterable[LogEvent]], step: float, zone: tzinfo,
    start: float | None = None, written: float | None = None,
) -> Iterator[Moment]:  # fmt: skip
    """The run every `step` seconds from its first line to its last, and at the last, and so each of the experiments in
    its log, one after the other. Nothing of what is no training.

    `written`: when the files were last written, Unix seconds, for stamps without a year.
    """
    latest = float("inf") if written is None else written + _DAY
    clocks = {source: SourceClock(zone, written, latest) for source in sources}
    streams = _begun(sources, clocks, start, name)
    players = Players(judge, name, clocks)
    player = players.current()
    player.dated = any(clock.scale.dated for clock in clocks.values())
    due: float | None = None
    shown: Samples | None = None
    items = heapq.merge(*streams, key=itemgetter(0))
    left = list(islice(items, 1))
    while left:
        item = left.pop()
        at = item.at
        if due is None:
            due = at
        while due < at < float("inf"):
            unproved = player.leaves_open(item)
            transitions = [] if unproved else list(player.pass_until(due))
            if transitions or shown is None:
                shown = _samples(config, player)
            if player.run.state.proven:
                yield Moment(player.run.state.name, due, shown)
            due += step
        before, shown = player, None
        deque(players.play(_until(due, item, items, left)), maxlen=0)
        player = players.current()
        if player is not before and before.now > due - step:
            yield from _last(config, before)
    deque(players.finish(0.0), maxlen=0)
    yield from _last(config, player)


def _until(due: float, begin: Placed, items: Iterator[Placed], left: list[Placed]) -> Iterator[Placed]:
    """Lines up to the one before which the run is looked at: that one is `left`. Alone where another run may begin."""
    yield begin
    alone = begin.entry.event.kind in BOUNDS
    for item in items:
        if alone or due < item.at < float("inf") or item.entry.event.kind in BOUNDS:
            left.append(item)
            return
        yield item


def _begun(
    sources: Mapping[str, Iterable[LogEvent]], clocks: Mapping[str, SourceClock], start: float | None, name: str
) -> list[Iterator[Placed]]:
    """Each source's lines at their times: its first one is read, and waits for those of the others."""
    streams = [clocked(entries, source, clocks[source]) for source, entries in sources.items()]
    firsts = [next(stream, None) for stream in streams]
    begins = [first.at for first in firsts if first is not None and clocks[first.source].scale.dated]
    if not begins and start is None:
        raise UndatedError(name)
    origin = min(begins, default=start or 0.0)
    return [
        _dated(chain([first], stream), 0.0 if clocks[first.source].scale.dated else origin)
        for first, stream in zip(firsts, streams, strict=True) if first is not None
    ]  # fmt: skip


def _last(config: Config, player: Replay) -> Iterator[Moment]:
    """How a run ends that holds a training."""
    if player.run.state.proven:
        yield Moment(player.run.state.name, player.now, _samples(config, player))


def _dated(items: Iterable[Placed], origin: float) -> Iterator[Placed]:
    """Times counted from 0 made times of the day; an origin of 0 leaves them as they are."""
    for item in items:
        yield item._replace(at=item.at + origin) if origin else item


def _samples(config: Config, player: Replay) -> Samples:
    samples = samples_of(view_of(player.run, config, now=player.now))
    return {name: values for name, values in samples.items() if name not in _LIVE_ONLY}
