"""What every output shares: its first keys, and a thread that writes it at an interval and removes it at the end.

Law: the loop never waits for an output, nor one output for another. A failure is counted, logged once, and tried again
at the next interval: what is written is always the present, so nothing queues up.
"""

import http.client
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Final, Literal

from msgspec import Struct

from megatron_monitor.prometheus_text import TextFormat
from megatron_monitor.scalars import Name
from megatron_monitor.snapshot import Snapshot
from megatron_monitor.units import PositiveSeconds

Outcome = Literal["written", "failed"]
OUTCOMES: Final[tuple[Outcome, ...]] = ("written", "failed")
Wait = Callable[[threading.Event, float], object]
_FAILURES = (OSError, http.client.HTTPException, ValueError)

_log = logging.getLogger(__name__)


class Output(Struct, frozen=True, kw_only=True):
    """One place to write to: a subclass adds its keys, `write` and `remove`.

    `instance` names this daemon where an output needs a name for it: host:port. Both methods raise OSError,
    HTTPException or ValueError, in bounded time.
    """

    name: Name
    """Also the label `output` of its metrics."""
    interval: PositiveSeconds = 15.0
    """Between two writes: as often as Prometheus scrapes."""

    @property
    def constant_labels(self) -> Mapping[str, str]:
        """Put on every sample."""
        return {}

    def write(self, page: bytes, instance: str) -> None:
        """Put the present figures, as Prometheus text, in the place of the last ones."""
        raise NotImplementedError

    def remove(self, instance: str) -> None:
        """Delete what was written: the daemon ends, and nobody renews it."""
        raise NotImplementedError


class OutputTimer:
    """Writes the last snapshot to `output` every `output.interval` seconds: the families of the runs and the monitor's
    own; those of the process are left out, node_exporter has its own process_*.
    """

    def __init__(
        self, output: Output, snapshot: Callable[[], Snapshot], instance: str, wait: Wait = threading.Event.wait
    ) -> None:
        """`wait` waits for the event, so many seconds at most."""
        self.output = output
        self.counts: dict[Outcome, int] = dict.fromkeys(OUTCOMES, 0)
        """How many writes had which outcome."""
        self.thread = threading.Thread(target=self._run, name=f"output-{output.name}", daemon=True)
        """First written after the interval, when the logs have been read. It may hang: it ends with the process."""
        self._snapshot = snapshot
        self._text = TextFormat(labels=output.constant_labels)
        self._instance = instance
        self._wait = wait
        self._woken = threading.Event()
        self._stopping = False
        self._failing = ""

    def wake(self, *, stop: bool = False) -> None:
        """Write once more now, outside the intervals; or `stop`: the output is removed."""
        self._stopping = self._stopping or stop
        self._woken.set()

    def _run(self) -> None:
        while not self._stopping:
            self._wait(self._woken, self.output.interval)
            self._woken.clear()
            if not self._stopping:
                self.counts[self._try(self._write)] += 1
        self._try(lambda: self.output.remove(self._instance))

    def _write(self) -> None:
        self.output.write(self._text.page(self._snapshot()).encode(), self._instance)

    def _try(self, act: Callable[[], None]) -> Outcome:
        try:
            act()
        except _FAILURES as error:
            self._log_change(str(error) or type(error).__name__)
            return "failed"
        except Exception:  # noqa: BLE001 - a bug in one output must not silence it, nor anything else
            _log.exception("output=%s outcome=bug", self.output.name)
            return "failed"
        self._log_change("")
        return "written"

    def _log_change(self, failing: str) -> None:
        """Once when it begins to fail or fails in another way, once when it works again."""
        if failing != self._failing:
            if failing:
                _log.warning("output=%s outcome=failed error=%r", self.output.name, failing)
            else:
                _log.info("output=%s outcome=written again", self.output.name)
        self._failing = failing
