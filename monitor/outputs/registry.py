"""What an output writes: our own families of the last Snapshot, with labels of the site's.

The process's own families are left out: node_exporter has process_* of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from monitor.metrics import Snapshot, clean_label
from monitor.serve.collector import SnapshotCollector


class _Labelled(Collector):
    """Adds constant labels to every sample; the families are made anew at each collection."""

    def __init__(self, inner: Collector, labels: Mapping[str, str]) -> None:
        self._inner = inner
        self._labels = {name: clean_label(value) for name, value in labels.items()}

    def collect(self) -> Iterator[Metric]:
        for family in self._inner.collect():
            family.samples = [sample._replace(labels={**self._labels, **sample.labels}) for sample in family.samples]
            yield family


def output_registry(snapshot: Callable[[], Snapshot], labels: Mapping[str, str]) -> CollectorRegistry:
    """A registry over the last Snapshot."""
    registry = CollectorRegistry(auto_describe=False)
    collector: Collector = SnapshotCollector(snapshot)
    registry.register(_Labelled(collector, labels) if labels else collector)
    return registry
