"""The history of finished logs as Prometheus would have scraped it: the run on its own clock, looked at every step.

A log that prints times is dated by them: programs print none with a zone, so the caller names the zone. One that prints
none is dated from `start`, the instant of its first line, by the sum of its iterations' times.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import tzinfo
from itertools import islice
from pathlib import Path
from typing import IO

from megatron_monitor.config import Config
from megatron_monitor.core.runs import Run
from megatron_monitor.core.view import view_of
from megatron_monitor.metrics import CATALOGUE, samples_of
from megatron_monitor.parsers.events import LogEvent
from megatron_monitor.prometheus_text import Family, escaped
from megatron_monitor.replay import Replay, merged
from megatron_monitor.snapshot import Histogram, Sample, clean_label
from megatron_monitor.source_clock import Placed

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


class UndatedError(Exception):
    """No line of the run prints a time, and no start was given."""


@dataclass(frozen=True, slots=True)
class Moment:
    """All that one run shows at one instant, Unix seconds."""

    run: str
    at: float
    samples: Samples


def history(
    config: Config, sources: Mapping[str, Iterable[LogEvent]], step: float, zone: tzinfo,
    start: float | None = None, written: Mapping[str, float] | None = None,
) -> Iterator[Moment]:  # fmt: skip
    """Each run in logs that are read together, by their paths, every `step` seconds from the first line to the last,
    and at its own last. Nothing of what is no training.

    `written`: when each file was last written, Unix seconds, for stamps without a year.
    """
    items, dated = merged(sources, written or {}, zone=zone, start=start or 0.0)
    if not dated and start is None:
        raise UndatedError
    player, shown, over = Replay(config, sources, dated=True), dict[str, Samples](), set[str]()
    due: float | None = None
    left = list(islice(items, 1))
    while left:
        item = left.pop()
        due = item.at if due is None else due
        while due < item.at < float("inf"):
            if not player.leaves_open(item) and list(player.pass_until(due)):
                shown.clear()
            for run in player.runs:
                if not run.archived:
                    if run.state.name not in shown:
                        shown[run.state.name] = _samples(config, run)
                    yield Moment(run.state.name, due, shown[run.state.name])
            due += step
        shown.clear()
        deque(player.play(_until(due, item, items, left)), maxlen=0)
        for run in player.runs:
            if run.archived and run.state.name not in over:
                over.add(run.state.name)
                if run.clock > due - step:
                    yield Moment(run.state.name, run.clock, _samples(config, run))
    deque(player.finish(0.0), maxlen=0)
    for run in player.runs:
        if not run.archived:
            yield Moment(run.state.name, run.clock, _samples(config, run))


def _until(due: float, begin: Placed, items: Iterator[Placed], left: list[Placed]) -> Iterator[Placed]:
    """Lines up to the one before which the runs are looked at: that one is `left`."""
    yield begin
    for item in items:
        if due < item.at < float("inf"):
            left.append(item)
            return
        yield item


def _samples(config: Config, run: Run) -> Samples:
    samples = samples_of(view_of(run, config, now=run.clock))
    return {name: values for name, values in samples.items() if name not in _LIVE_ONLY}
