"""The metrics written to where a scrape cannot come: a textfile for node_exporter, a Pushgateway.

An output is one file: a struct of its keys with `write` and `remove`, and a row in `OUTPUTS`.
"""

from collections.abc import Callable, Sequence

from megatron_monitor.outputs.output import OUTCOMES, Outcome, Output, OutputTimer
from megatron_monitor.outputs.pushgateway import Pushgateway
from megatron_monitor.outputs.textfile import Textfile
from megatron_monitor.snapshot import Snapshot

__all__ = ["OUTCOMES", "OUTPUTS", "Outcome", "Output", "OutputTimer", "Outputs"]

OUTPUTS: tuple[type[Output], ...] = (Textfile, Pushgateway)
"""The configuration takes each class from here: `type:` is its tag."""


class Outputs:
    """Every output of a configuration, each on a thread of its own."""

    def __init__(self, outputs: Sequence[Output], snapshot: Callable[[], Snapshot], instance: str) -> None:
        """`snapshot` gives the last one; `instance` names this daemon: host:port."""
        self._timers = [OutputTimer(output, snapshot, instance) for output in outputs]

    def start(self) -> None:
        """Begin."""
        for timer in self._timers:
            timer.thread.start()

    def write_last(self) -> float:
        """Write the present figures as well, outside the intervals; seconds until they have been read there."""
        for timer in self._timers:
            timer.wake()
        return max((timer.output.interval for timer in self._timers), default=0.0)

    def stop(self, timeout: float) -> None:
        """Remove what was written, within `timeout` seconds at most."""
        for timer in self._timers:
            timer.wake(stop=True)
        for timer in self._timers:
            if timer.thread.is_alive():
                timer.thread.join(timeout / len(self._timers))

    def counts(self) -> dict[tuple[str, Outcome], int]:
        """(output, outcome) -> how many so far, zeros included: `megatron_monitor_output_writes_total`."""
        return {
            (timer.output.name, outcome): count for timer in self._timers for outcome, count in timer.counts.items()
        }
