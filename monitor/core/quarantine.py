"""What the monitor's own code fails at is put aside, and all else goes on: a bug that one line of one log wakes costs
that log alone.

There is one boundary for each kind of thing: a message of a source and a run's events and judgement (core/__init__.py),
what is shown of a run (view.py), what is saved of it (`Aside.saved`). Behind a boundary nothing is caught. A source
that was put aside is read again when other content stands under its path, a run when the monitor is restarted: its
offsets are not saved, so that a version without the bug reads it from the beginning.
"""

import logging
from typing import Any, Literal

import msgspec

from megatron_monitor.core.saved import Saved
from megatron_monitor.scalars import one_line
from megatron_monitor.snapshot import MonitorCounts

Room = Literal["source", "run", "page", "state"]

_MESSAGE = 200  # characters of an exception's message that people are shown
_log = logging.getLogger(__name__)


class Quarantine:
    """Logs and counts what failed."""

    def __init__(self, counts: MonitorCounts) -> None:
        self._counts = counts
        self._reported: set[tuple[Room, str]] = set()

    def note(self, room: Room, name: str, error: Exception) -> str:
        """The traceback goes to the log, once a room and name; gives the words for people."""
        if (room, name) not in self._reported:
            self._reported.add((room, name))
            self._counts.add("quarantined_total", room)
            _log.error("%s=%r put aside: the monitor's own code failed at it", room, name, exc_info=error)
        return f"the monitor's own code failed at it ({type(error).__name__}: {one_line(str(error)[:_MESSAGE])})"

    def forget(self, room: Room, name: str) -> None:
        """It works again: a later failure is news."""
        self._reported.discard((room, name))

    def encoded(self, log: str, value: Any) -> bytes | None:
        """A part of the state; None if it cannot be written."""
        try:
            data = msgspec.msgpack.encode(value)
        except Exception as error:  # noqa: BLE001 - the boundary of what is saved
            self.note("state", log, error)
            return None
        self.forget("state", log)
        return data

    def encoded_monitor(self, saved: Saved) -> bytes:
        """The part of the monitor itself, without the messages that cannot be written."""
        saved.pending = {
            name: [one for one in waiting if self.encoded(one.message.run, one) is not None]
            for name, waiting in saved.pending.items()
        }
        return self.encoded("", saved) or msgspec.msgpack.encode(Saved(wall_offset=saved.wall_offset))
