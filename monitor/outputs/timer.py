"""One output on a thread of its own: written at an interval, removed at the end.

Law: the loop never waits for an output, nor one output for another. A failure is counted, logged once, and tried again
at the next interval: each write holds the present values, so nothing queues up.
"""

from __future__ import annotations

import http.client
import logging
import threading
from collections.abc import Callable
from typing import Final, Literal, Protocol

Outcome = Literal["written", "failed"]
OUTCOMES: Final[tuple[Outcome, ...]] = ("written", "failed")
_FAILURES = (OSError, http.client.HTTPException, ValueError)

_log = logging.getLogger(__name__)


class Output(Protocol):
    """One place to write to. Both methods raise OSError, HTTPException or ValueError, in bounded time."""

    @property
    def name(self) -> str:
        """The name in the configuration, and the label `output`."""
        ...

    def write(self, page: bytes) -> None:
        """Put the present figures, as Prometheus text, in the place of the last ones."""
        ...

    def remove(self) -> None:
        """Remove them: this daemon ends, nobody updates them."""
        ...


def _wait(stop: threading.Event, seconds: float) -> bool:
    return stop.wait(seconds)


class OutputTimer:
    """Writes `page()` to `output` every `interval` seconds."""

    def __init__(
        self,
        output: Output,
        page: Callable[[], bytes],
        interval: float,
        wait: Callable[[threading.Event, float], bool] = _wait,
    ) -> None:
        """`wait` waits, and returns true once the event is set."""
        self._output = output
        self._page = page
        self._interval = interval
        self._wait = wait
        self._stopping = threading.Event()
        self._guard = threading.Lock()
        self._counts: dict[Outcome, int] = dict.fromkeys(OUTCOMES, 0)
        self._failing = ""
        self._thread = threading.Thread(target=self._run, name=f"output-{output.name}", daemon=True)

    @property
    def name(self) -> str:
        """The output's name."""
        return self._output.name

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def begin_stop(self) -> None:
        """End after the present write; the output is removed."""
        self._stopping.set()

    def join(self, timeout: float) -> None:
        """Wait for the end. A thread that hangs in its output is left behind: it ends with the process."""
        if self._thread.is_alive():
            self._thread.join(timeout)

    def counts(self) -> dict[Outcome, int]:
        """How many writes came to what."""
        with self._guard:
            return dict(self._counts)

    def _run(self) -> None:
        while not self._wait(self._stopping, self._interval):
            self._count(self._try(lambda: self._output.write(self._page())))
        self._try(self._output.remove)

    def _try(self, act: Callable[[], None]) -> Outcome:
        try:
            act()
        except _FAILURES as error:
            self._report(str(error) or type(error).__name__)
            return "failed"
        except Exception:  # noqa: BLE001 - a bug in one output must not silence it, nor anything else
            _log.exception("output=%s outcome=bug", self.name)
            return "failed"
        self._report("")
        return "written"

    def _report(self, failing: str) -> None:
        """Once when it begins to fail or fails in another way, once when it works again."""
        if failing != self._failing:
            if failing:
                _log.warning("output=%s outcome=failed error=%r", self.name, failing)
            else:
                _log.info("output=%s outcome=written again", self.name)
        self._failing = failing

    def _count(self, outcome: Outcome) -> None:
        with self._guard:
            self._counts[outcome] += 1
