"""A file for node_exporter's textfile collector, replaced whole: a reader sees the old figures or the new ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
from prometheus_client import write_to_textfile
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from monitor import scalars
from monitor.metrics import CATALOGUE, MONITOR_CATALOGUE, clean_label
from monitor.outputs.output import Output, registry_of
from monitor.scalars import FilePath

_OWN_LABELS = {"run", *(label for row in CATALOGUE for label in row.labels)}
_OWN_LABELS |= {label for own in MONITOR_CATALOGUE for label in own.labels}


class Textfile(Output, frozen=True, kw_only=True, tag_field="type", tag="textfile"):
    """The metrics as a file for node_exporter's textfile collector."""

    path: FilePath
    """Below node_exporter's --collector.textfile.directory."""
    labels: Mapping[scalars.Variable, str] = msgspec.field(default_factory=scalars.empty)
    """Added to every sample: two daemons on one node would else write the same series twice."""

    def problems(self) -> scalars.Problems:
        """What the values together have wrong."""
        if not self.path.endswith(".prom"):
            yield "path", "does not end in .prom, and node_exporter reads no other file"
        for label in self.labels:
            if label in _OWN_LABELS or label.startswith("__"):
                yield "labels", f"{label} is a label of the metrics themselves"

    def write(self, collector: Collector, instance: str) -> None:  # noqa: ARG002 - the file is of this host
        """Write beside it and rename. Raises OSError."""
        write_to_textfile(self.path, registry_of(_Labelled(collector, self.labels)))

    def remove(self, instance: str) -> None:  # noqa: ARG002
        """Node_exporter would show it for ever. Raises OSError."""
        Path(self.path).unlink(missing_ok=True)


class _Labelled(Collector):
    """Adds constant labels to every sample; the families are made anew at each collection."""

    def __init__(self, inner: Collector, labels: Mapping[str, str]) -> None:
        self._inner = inner
        self._labels = {name: clean_label(value) for name, value in labels.items()}

    def collect(self) -> Iterator[Metric]:
        for family in self._inner.collect():
            family.samples = [sample._replace(labels={**self._labels, **sample.labels}) for sample in family.samples]
            yield family
