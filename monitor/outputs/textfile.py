"""A file for node_exporter's textfile collector, replaced whole: a reader sees the old figures or the new ones."""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from megatron_monitor import scalars
from megatron_monitor.metrics import CATALOGUE, MONITOR_CATALOGUE
from megatron_monitor.outputs.output import Output
from megatron_monitor.scalars import FilePath

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

    @property
    def constant_labels(self) -> Mapping[str, str]:
        """As configured."""
        return self.labels

    def write(self, page: bytes, instance: str) -> None:  # noqa: ARG002 - the file is of this host
        """Write beside it and rename. Raises OSError."""
        beside = Path(f"{self.path}.{os.getpid()}")  # node_exporter reads names that end in .prom alone
        try:
            beside.unlink(missing_ok=True)
            with beside.open("xb") as stream:  # the directory may be everybody's: no link is followed
                stream.write(page)
            beside.replace(self.path)
        except OSError:
            beside.unlink(missing_ok=True)
            raise

    def remove(self, instance: str) -> None:  # noqa: ARG002
        """Delete the file: node_exporter would go on exporting it. Raises OSError."""
        Path(self.path).unlink(missing_ok=True)
