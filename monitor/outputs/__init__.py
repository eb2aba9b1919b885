"""The metrics to where a scrape cannot come: a textfile for node_exporter, a Pushgateway.

To add a kind: its keys in monitor/config/schema.py, a file here, a row in `OUTPUTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from monitor.config import OutputConfig, PushgatewaySettings, TextfileSettings
from monitor.metrics import Snapshot
from monitor.outputs.pushgateway import Pushgateway
from monitor.outputs.textfile import Textfile
from monitor.outputs.timer import OUTCOMES, Outcome, Output, OutputTimer
from monitor.serve.text import TextFormat

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
                OUTPUTS[type(one)](one, instance),
                partial(_page, TextFormat(labels=getattr(one, "labels", None)), snapshot),
                one.interval,
            )
            for one in settings
        ]

    def start(self) -> None:
        """Begin; each output is first written after its interval, when the logs have been read."""
        for timer in self._timers:
            timer.start()

    def stop(self, timeout: float) -> None:
        """Remove what was written; waits `timeout` seconds at most."""
        for timer in self._timers:
            timer.begin_stop()
        for timer in self._timers:
            timer.join(timeout / len(self._timers))

    def counts(self) -> dict[tuple[str, Outcome], int]:
        """(output, outcome) -> how many so far, zeros included: `megatron_monitor_output_writes_total`."""
        return {(timer.name, outcome): count for timer in self._timers for outcome, count in timer.counts().items()}


def _page(text: TextFormat, snapshot: Callable[[], Snapshot]) -> bytes:
    """Our own families; those of the process are left out: node_exporter has process_* of its own."""
    return text.page(snapshot()).encode()
