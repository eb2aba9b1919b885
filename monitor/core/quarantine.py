"""Quarantine: a bug in the monitor's own code that one log triggers affects that log only.

Exceptions are caught at these boundaries and nowhere else: a message of a source (intake.py), a run's events and
evaluation (watched.py), the page of a run (view.py), the saved state of a log (here). A quarantined source is read
again when its path has new content, a quarantined run after a restart of the monitor. Its offsets are not saved, so a
fixed version reads it from the start.
"""

import logging
from typing import Any, Literal

import msgspec

from megatron_monitor.core.saved import Saved
from megatron_monitor.scalars import one_line
from megatron_monitor.snapshot import MonitorCounts

Component = Literal["source", "run", "page", "state"]

_MESSAGE = 200  # characters of an exception's message that are shown
_log = logging.getLogger(__name__)


class Quarantine:
    """Logs and counts failures of the monitor's own code."""

    def __init__(self, counts: MonitorCounts) -> None:
        self._counts = counts
        self._reported: set[tuple[Component, str]] = set()

    def note(self, component: Component, name: str, error: Exception) -> str:
        """Log the traceback once per component and name. Return a text for people."""
        if (component, name) not in self._reported:
            self._reported.add((component, name))
            self._counts.add("quarantined_total", component)
            _log.error("%s=%r quarantined: an error in the monitor's own code", component, name, exc_info=error)
        return f"an error in the monitor's own code ({type(error).__name__}: {one_line(str(error)[:_MESSAGE])})"

    def forget(self, component: Component, name: str) -> None:
        """Forget a failure, so that a later one is logged again."""
        self._reported.discard((component, name))

    def encoded(self, log: str, value: Any) -> bytes | None:
        """Return an encoded part of the state; None if it cannot be encoded."""
        try:
            data = msgspec.msgpack.encode(value)
        except Exception as error:  # noqa: BLE001 - a failure is confined to this part
            self.note("state", log, error)
            return None
        self.forget("state", log)
        return data

    def encoded_monitor(self, saved: Saved) -> bytes:
        """Return the encoded part of the monitor itself, without messages that cannot be encoded."""
        saved.pending = {
            name: [one for one in waiting if self.encoded(one.message.run, one) is not None]
            for name, waiting in saved.pending.items()
        }
        return self.encoded("", saved) or msgspec.msgpack.encode(Saved(wall_offset=saved.wall_offset))
