"""The metrics to where a scrape cannot come: a textfile for node_exporter, a Pushgateway.

To add a kind: its keys in monitor/config/schema.py, a file here, a row in `OUTPUTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from monitor.config import OutputConfig, PushgatewaySettings, TextfileSettings
from monitor.metrics import Snapshot
from monitor.outputs.pushgateway import Pushgateway
from monitor.outputs.registry import output_registry
from monitor.outputs.textfile import Textfile
from monitor.outputs.timer import OUTCOMES, Outcome, Output, OutputTimer

__all__ = ["OUTCOMES", "OUTPUTS", "Outcome", "Output", "OutputTimer", "Outputs", "Pushgateway", "Textfile"]

OUTPUTS: dict[type, Callable[[Any, str], Output]] = {
    TextfileSettings: lambda settings, _instance: Textfile(settings),
    PushgatewaySettings: Pushgateway,
}


class Outputs:
    """Every output of a configuration, each on a timer and thread of its own."""

    def __init__(self, settings: Sequence[OutputConfig], snapshot: Callable[[], Snapshot], instance: str) -> None:
        """`instance` names this daemon where an output needs a name for it: host:port."""
        self._timers = [
            OutputTimer(
                OUTPUTS[type(one)](one, instance), output_registry(snapshot, getattr(one, "labels", {})), one.interval
            )
            for one in settings
        ]

    def start(self) -> None:
        """Begin; each output is first written after its interval, when the logs have been read."""
        for timer in self._timers:
            timer.start()

    def stop(self, timeout: float) -> None:
        """Take away what was written, for `timeout` seconds at most."""
        for timer in self._timers:
            timer.begin_stop()
        for timer in self._timers:
            timer.join(timeout / len(self._timers))

    def counts(self) -> dict[tuple[str, Outcome], int]:
        """(output, outcome) -> how many so far, zeros included: `megatron_monitor_output_writes_total`."""
        return {(timer.name, outcome): count for timer in self._timers for outcome, count in timer.counts().items()}
