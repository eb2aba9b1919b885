"""Samples with time stamps as OpenMetrics text: each family once, each label set together, as the format demands.

History comes in the order of time, the text goes out in the order of label sets: so lines wait in a file
each, and memory does not grow with the log.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO

from monitor.metrics import CATALOGUE, Histogram, Sample, clean_label

_BUFFERED = 512  # points of one label set kept in memory

_Labels = tuple[tuple[str, str], ...]


class Spool:
    """Points of many runs, kept below `directory` (the caller's, and his to remove)."""

    def __init__(self, directory: Path, extra: Mapping[str, str] | None = None) -> None:
        self._directory = directory
        self._extra: _Labels = tuple((name, clean_label(value)) for name, value in (extra or {}).items())
        self._groups: dict[str, dict[_Labels, _Lines]] = {}
        self.points = 0
        self.first: float | None = None
        self.last: float | None = None

    def add(self, run: str, at: float, samples: Mapping[str, tuple[Sample, ...] | Histogram]) -> None:
        """Everything that one run shows at one instant (Unix seconds), as metrics.samples_of gives it."""
        self.first = at if self.first is None else min(self.first, at)
        self.last = at if self.last is None else max(self.last, at)
        for metric in CATALOGUE:
            found = samples.get(metric.name)
            if found is None:
                continue
            before: _Labels = (*self._extra, ("run", clean_label(run)))
            if isinstance(found, Histogram):
                self._lines(metric.name, before).add(_histogram(metric.name, before, found, at))
                self.points += len(found.buckets) + 2
                continue
            for sample in found:
                labels = (*before, *zip(metric.labels, sample.labels, strict=True))
                self._lines(metric.name, labels).add(_line(metric.name, labels, sample.value, at))
                self.points += 1

    def _lines(self, family: str, labels: _Labels) -> _Lines:
        groups = self._groups.setdefault(family, {})
        lines = groups.get(labels)
        if lines is None:
            number = sum(len(known) for known in self._groups.values())
            lines = groups[labels] = _Lines(self._directory / f"{number}.lines")
        return lines

    def write(self, out: IO[str]) -> None:
        """The whole text, in the catalogue's order."""
        for metric in CATALOGUE:
            groups = self._groups.get(metric.name)
            if not groups:
                continue
            # the family of a counter is named without _total, its samples with it
            family = metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name
            out.write(f"# HELP {family} {_escaped(metric.help)}\n# TYPE {family} {metric.kind}\n")
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


def _histogram(name: str, labels: _Labels, found: Histogram, at: float) -> str:
    """All lines of one point: a histogram's buckets of one instant stand together."""
    return "".join(
        [
            *(_line(f"{name}_bucket", (*labels, ("le", bound)), count, at) for bound, count in found.buckets),
            _line(f"{name}_count", labels, found.buckets[-1][1], at),
            _line(f"{name}_sum", labels, found.sum, at),
        ]
    )


def _line(name: str, labels: _Labels, value: float, at: float) -> str:
    pairs = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
    return f"{name}{{{pairs}}} {_number(value)} {at:.3f}\n"


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return ("+Inf" if value > 0 else "-Inf") if math.isinf(value) else repr(float(value))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
