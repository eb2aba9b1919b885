"""Samples with time stamps as OpenMetrics text: each family once, each series together, as the format demands.

History comes in the order of time, the text goes out in the order of series: so points wait in one file a series, and
memory does not grow with the log.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO

from monitor.metrics import CATALOGUE, Histogram, Metric, Sample, clean_label

_BUFFERED = 512  # points of one series kept in memory

_Labels = tuple[tuple[str, str], ...]


class Spool:
    """Points of many runs, kept below `directory` (the caller's, and his to remove)."""

    def __init__(self, directory: Path, extra: Mapping[str, str] | None = None) -> None:
        self._directory = directory
        self._extra: _Labels = tuple((name, clean_label(value)) for name, value in (extra or {}).items())
        self._series: dict[str, dict[tuple[str, _Labels], _Points]] = {}
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
            for suffix, labels, value in _flat(metric, found):
                own = (*self._extra, ("run", clean_label(run)), *labels)
                self._put(metric.name, (suffix, own), at, value)

    def _put(self, family: str, key: tuple[str, _Labels], at: float, value: float) -> None:
        series = self._series.setdefault(family, {})
        points = series.get(key)
        if points is None:
            number = sum(len(known) for known in self._series.values())
            points = series[key] = _Points(self._directory / f"{number}.points")
        points.add(at, value)
        self.points += 1

    def write(self, out: IO[str]) -> None:
        """The whole text, in the catalogue's order."""
        for metric in CATALOGUE:
            series = self._series.get(metric.name)
            if not series:
                continue
            # the family of a counter is named without _total, its samples with it
            family = metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name
            out.write(f"# HELP {family} {_escaped(metric.help)}\n# TYPE {family} {metric.kind}\n")
            for (suffix, labels), points in series.items():
                name = metric.name + suffix
                pairs = ",".join(f'{label}="{_escaped(value)}"' for label, value in labels)
                for line in points.lines():
                    out.write(f"{name}{{{pairs}}} {line}")
        out.write("# EOF\n")


class _Points:
    """`value timestamp` lines of one series, older ones on the disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._buffer: list[str] = []

    def add(self, at: float, value: float) -> None:
        self._buffer.append(f"{_number(value)} {at:.3f}\n")
        if len(self._buffer) >= _BUFFERED:
            with self._path.open("a", encoding="ascii") as stream:
                stream.writelines(self._buffer)
            self._buffer.clear()

    def lines(self) -> Iterable[str]:
        if self._path.exists():
            with self._path.open(encoding="ascii") as stream:
                yield from stream
        yield from self._buffer


def _flat(metric: Metric, found: tuple[Sample, ...] | Histogram) -> Iterable[tuple[str, _Labels, float]]:
    """(suffix, labels, value) of each series."""
    if isinstance(found, Histogram):
        for bound, count in found.buckets:
            yield "_bucket", (("le", bound),), count
        yield "_count", (), found.buckets[-1][1]
        yield "_sum", (), found.sum
        return
    for sample in found:
        yield "", tuple(zip(metric.labels, sample.labels, strict=True)), sample.value


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return ("+Inf" if value > 0 else "-Inf") if math.isinf(value) else repr(float(value))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
