"""Writes the metrics to places without scrapes: a textfile for node_exporter, a Pushgateway.

The main loop never waits for an output, and no output waits for another. A failure is counted, logged once, and retried
at the next interval. Only the present values are written, so that nothing queues. The metrics of the runs and of the
monitor are written. Those of the process are omitted, because node_exporter has its own process_*.
"""

import http.client
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import default_handler, delete_from_gateway, push_to_gateway

from megatron_monitor import scalars
from megatron_monitor.metrics import CATALOGUE, MONITOR_CATALOGUE
from megatron_monitor.prometheus_text import TextFormat
from megatron_monitor.scalars import FilePath, Name, PositiveSeconds
from megatron_monitor.snapshot import Snapshot

_log = logging.getLogger(__name__)
_FAILURES = (OSError, http.client.HTTPException, ValueError)
_OWN_LABELS = {"run", *(label for row in (*CATALOGUE, *MONITOR_CATALOGUE) for label in row.labels)}
_EMPTY = CollectorRegistry()
"""prometheus_client sends the requests to a gateway. prometheus_text.py makes the page, because it is faster."""


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """A destination. `instance` names this daemon: host:port. Both methods raise OSError, HTTPException or ValueError
    in bounded time.
    """

    name: Name
    """Also the label `output` of its metrics."""
    interval: PositiveSeconds = 15.0
    """Seconds between two writes, as often as Prometheus scrapes."""

    def write(self, page: bytes, instance: str) -> None:
        """Replace the last values by the present ones, as Prometheus text."""
        raise NotImplementedError

    def remove(self, instance: str) -> None:
        """Delete what was written, because the daemon ends and the values would become stale."""
        raise NotImplementedError


class Textfile(Output, frozen=True, kw_only=True, tag_field="type", tag="textfile"):
    """The metrics as a file for node_exporter's textfile collector, replaced as a whole."""

    path: FilePath
    """In node_exporter's --collector.textfile.directory."""
    labels: Mapping[scalars.Variable, str] = msgspec.field(default_factory=dict)
    """Added to each sample. Without them two daemons on one node would write the same series."""

    def problems(self) -> scalars.Problems:
        """Yield what is wrong with the combination of values."""
        if not self.path.endswith(".prom"):
            yield "path", "does not end in .prom, and node_exporter reads no other file"
        for label in self.labels:
            if label in _OWN_LABELS or label.startswith("__"):
                yield "labels", f"{label} is a label of the metrics themselves"

    def write(self, page: bytes, instance: str) -> None:  # noqa: ARG002 - the file is of this host
        """Write a temporary file and rename it. Raises OSError."""
        temporary = Path(f"{self.path}.{os.getpid()}")  # node_exporter reads only names that end with .prom
        try:
            temporary.unlink(missing_ok=True)
            with temporary.open("xb") as stream:  # other users may write to the directory: no link is followed
                stream.write(page)
            temporary.replace(self.path)
        finally:
            temporary.unlink(missing_ok=True)

    def remove(self, instance: str) -> None:  # noqa: ARG002
        """Delete the file, which node_exporter would continue to export. Raises OSError."""
        Path(self.path).unlink(missing_ok=True)


class Pushgateway(Output, frozen=True, kw_only=True, tag_field="type", tag="pushgateway"):
    """The metrics pushed to a Pushgateway. The daemon's group is deleted at its end."""

    url: scalars.Url
    job: Name = "megatron-monitor"
    """The job name that the rules expect for daemons."""
    timeout: PositiveSeconds = 10.0
    """Seconds for one push: more than a healthy gateway needs, less than the interval."""

    def write(self, page: bytes, instance: str) -> None:
        """Push by PUT, so that runs which are no longer exported leave the gateway as well. Raises OSError or
        HTTPException.
        """

        def sender(data: bytes, **request: Any) -> Callable[[], None]:  # noqa: ARG001
            return default_handler(**request, data=page)

        push_to_gateway(self.url, self.job, _EMPTY, {"instance": instance}, self.timeout, sender)

    def remove(self, instance: str) -> None:
        """Delete the group, because a gateway shows the last push forever. Raises OSError or HTTPException."""
        delete_from_gateway(self.url, self.job, {"instance": instance}, self.timeout)


OUTPUTS: tuple[type[Output], ...] = (Textfile, Pushgateway)
"""All outputs. The configuration selects one by its tag `type:`."""


class OutputTimer(threading.Thread):
    """Writes the last snapshot to `output` every `output.interval` seconds, for the first time one interval after the
    logs have been read. It may hang; it ends with the process.
    """

    def __init__(self, output: Output, snapshot: Callable[[], Snapshot], instance: str) -> None:
        super().__init__(name=f"output-{output.name}", daemon=True)
        self.output = output
        self.counts = {"written": 0, "failed": 0}
        """Outcome -> number of writes."""
        self._snapshot, self._instance = snapshot, instance
        self._text = TextFormat(labels=getattr(output, "labels", None))
        self._woken = threading.Event()
        self._stopping = False
        self._failing = ""

    def wake(self, *, stop: bool = False) -> None:
        """Write now, besides the intervals. With `stop`, remove the output."""
        self._stopping = self._stopping or stop
        self._woken.set()

    def run(self) -> None:
        """Write until stopped."""
        while not self._stopping:
            self._woken.wait(self.output.interval)
            self._woken.clear()
            if not self._stopping:
                self.counts[self._try(self._write)] += 1
        self._try(lambda: self.output.remove(self._instance))

    def _write(self) -> None:
        self.output.write(self._text.page(self._snapshot()).encode(), self._instance)

    def _try(self, act: Callable[[], None]) -> str:
        """Write and return the outcome. A failure is logged when it begins or changes, and when it ends."""
        failing, bug = "", None
        try:
            act()
        except Exception as error:  # noqa: BLE001 - a bug in one output must not silence it, nor anything else
            failing, bug = str(error) or type(error).__name__, None if isinstance(error, _FAILURES) else error
        if failing and failing != self._failing:
            _log.warning("output=%s outcome=%s error=%s", self.output.name, "failed", failing, exc_info=bug)
        elif self._failing and not failing:
            _log.info("output=%s written again", self.output.name)
        self._failing = failing
        return "failed" if failing else "written"


class Outputs:
    """All outputs of a configuration, each in a thread of its own."""

    def __init__(self, outputs: Sequence[Output], snapshot: Callable[[], Snapshot], instance: str) -> None:
        """`snapshot` returns the last one. `instance` names this daemon: host:port."""
        self._timers = [OutputTimer(output, snapshot, instance) for output in outputs]

    def start(self) -> None:
        """Start the threads."""
        for timer in self._timers:
            timer.start()

    def write_last(self) -> float:
        """Write the present values now, besides the intervals. Return the seconds until they have been read there."""
        for timer in self._timers:
            timer.wake()
        return max((timer.output.interval for timer in self._timers), default=0.0)

    def stop(self, timeout: float) -> None:
        """Remove what was written, within `timeout` seconds."""
        for timer in self._timers:
            timer.wake(stop=True)
        for timer in self._timers:
            if timer.is_alive():
                timer.join(timeout / len(self._timers))

    def counts(self) -> dict[tuple[str, str], int]:
        """Return (output, outcome) -> number, zeros included: `megatron_monitor_output_writes_total`."""
        return {(one.output.name, outcome): count for one in self._timers for outcome, count in one.counts.items()}
