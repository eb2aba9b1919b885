"""Samples with time stamps as OpenMetrics text: each family once, each label set together, as the format demands.

History comes in the order of time, the text goes out in the order of label sets: so lines wait in a file
each, and memory does not grow with the log.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO

from monitor.metrics import CATALOGUE
from monitor.prometheus_text import Family, escaped
from monitor.snapshot import Histogram, Sample, clean_label

_BUFFERED = 512  # points of one label set kept in memory

_Values = tuple[str, ...]


class Spool:
    """Points of many runs, kept below `directory` (the caller's, and his to remove)."""

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
