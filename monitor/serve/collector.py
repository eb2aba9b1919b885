"""A prometheus_client Collector over the last Snapshot: fresh families at every scrape.

One bad family never fails the page: it is left out and counted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from monitor.metrics import CATALOGUE, MONITOR_CATALOGUE, Histogram, Kind, RunSnapshot, Sample, Snapshot, clean_label

_log = logging.getLogger(__name__)


class MonitorCollector(Collector):
    """The daemon's own families. `snapshot` gives the last one; `bad_families` counts those left out."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot
        self.bad_families = 0

    def describe(self) -> list[Metric]:
        """The families without samples: `?name[]=` finds this collector by them, and registering does not scrape."""
        return [new_family(own.name, own.kind, own.help, list(own.labels)) for own in MONITOR_CATALOGUE]

    def collect(self) -> Iterator[Metric]:
        """Every family of the daemon that has a sample."""
        yield from self._own(self._snapshot())

    def _own(self, snapshot: Snapshot) -> Iterator[Metric]:
        for own in MONITOR_CATALOGUE:
            yield from self._guarded(partial(_monitor_family, own.name, own.kind, own.help, own.labels, snapshot))

    def _guarded(self, build: Callable[[], Metric]) -> Iterator[Metric]:
        try:
            family = build()
        except Exception:  # one family that cannot be built must not cost the others
            self.bad_families += 1
            _log.exception("a metric family could not be built and is left out")
            return
        if family.samples:
            yield family


class SnapshotCollector(MonitorCollector):
    """The families of the runs, then the daemon's own."""

    def describe(self) -> list[Metric]:
        """As above."""
        runs = [new_family(row.name, row.kind, row.help, ["run", *row.labels]) for row in CATALOGUE]
        return runs + super().describe()

    def collect(self) -> Iterator[Metric]:
        """Every family of the catalogue that has a sample."""
        snapshot = self._snapshot()
        for row in CATALOGUE:
            yield from self._guarded(partial(run_family, row.name, row.kind, row.help, row.labels, snapshot.runs))
        yield from self._own(snapshot)


def new_family(name: str, kind: Kind, documentation: str, labels: list[str]) -> Metric:
    """A family without samples yet."""
    if kind == "counter":
        return CounterMetricFamily(name, documentation, labels=labels)
    if kind == "histogram":
        return HistogramMetricFamily(name, documentation, labels=labels)
    return GaugeMetricFamily(name, documentation, labels=labels)


def _add(family: Metric, before: list[str], sample: Sample, labels: tuple[str, ...]) -> None:
    """The library pairs labels and values as far as they go: one too many would vanish without a word."""
    if len(sample.labels) != len(labels):
        raise ValueError(f"{family.name}: {len(sample.labels)} values for the labels {labels}")
    family.add_metric([*before, *sample.labels], float(sample.value))  # type: ignore[attr-defined]


def run_family(
    name: str, kind: Kind, documentation: str, labels: tuple[str, ...], runs: Iterable[RunSnapshot]
) -> Metric:
    """One row of the catalogue with the samples of these runs."""
    family = new_family(name, kind, documentation, ["run", *labels])
    for run in runs:
        samples = run.samples.get(name)
        label = clean_label(run.run)
        if isinstance(samples, Histogram):
            family.add_metric([label], list(samples.buckets), samples.sum)  # type: ignore[attr-defined]
            continue
        for sample in samples or ():
            _add(family, [label], sample, labels)
    return family


def _monitor_family(name: str, kind: Kind, documentation: str, labels: tuple[str, ...], snapshot: Snapshot) -> Metric:
    family = new_family(name, kind, documentation, list(labels))
    for sample in snapshot.monitor.get(name, ()):
        _add(family, [], sample, labels)
    return family


def build_registry(snapshot: Callable[[], Snapshot]) -> CollectorRegistry:
    """Our families, and the process's own from the library."""
    registry = CollectorRegistry(auto_describe=True)  # the library's own collectors do not describe themselves
    registry.register(SnapshotCollector(snapshot))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    return registry
