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

from monitor.prometheus_text import TextFormat
from monitor.scalars import Name
from monitor.snapshot import Snapshot
from monitor.units import PositiveSeconds

Outcome = Literal["written", "failed"]
OUTCOMES: Final[tuple[Outcome, ...]] = ("written", "failed")
Wait = Callable[[threading.Event, float], bool]
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
        """`wait` waits, and returns true once the event is set."""
        self.name = output.name
        self.interval = output.interval
        self._output = output
        self._snapshot = snapshot
        self._text = TextFormat(labels=output.constant_labels)
        self._instance = instance
        self._wait = wait
        self._stopping = threading.Event()
        self._writing = threading.Lock()
        self._counts: dict[Outcome, int] = dict.fromkeys(OUTCOMES, 0)
        self._failing = ""
        self._thread = threading.Thread(target=self._run, name=f"output-{output.name}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def write_soon(self) -> None:
        """Write once more, on a thread of its own."""
        threading.Thread(target=self._write_counted, name=f"output-{self.name}-last", daemon=True).start()

    def begin_stop(self) -> None:
        """End after what is being done now; the output is removed."""
        self._stopping.set()

    def join(self, timeout: float) -> None:
        """Wait for the end. A thread that hangs in its output is left behind: it ends with the process."""
        if self._thread.is_alive():
            self._thread.join(timeout)

    def counts(self) -> dict[Outcome, int]:
        """How many writes had which outcome."""
        return dict(self._counts)

    def _run(self) -> None:
        while not self._wait(self._stopping, self._output.interval):
            self._write_counted()
        self._try(lambda: self._output.remove(self._instance))

    def _write_counted(self) -> None:
        with self._writing:
            self._counts[self._try(self._write)] += 1

    def _write(self) -> None:
        self._output.write(self._text.page(self._snapshot()).encode(), self._instance)

    def _try(self, act: Callable[[], None]) -> Outcome:
        try:
            act()
        except _FAILURES as error:
            self._log_change(str(error) or type(error).__name__)
            return "failed"
        except Exception:  # noqa: BLE001 - a bug in one output must not silence it, nor anything else
            _log.exception("output=%s outcome=bug", self.name)
            return "failed"
        self._log_change("")
        return "written"

    def _log_change(self, failing: str) -> None:
        """Once when it begins to fail or fails in another way, once when it works again."""
        if failing != self._failing:
            if failing:
                _log.warning("output=%s outcome=failed error=%r", self.name, failing)
            else:
                _log.info("output=%s outcome=written again", self.name)
        self._failing = failing
