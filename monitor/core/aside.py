"""What the monitor's own code fails at is put aside, and all else goes on: a bug that one line of one log wakes costs
that log alone.

There is one boundary for each kind of thing: a message of a source and a run's events and judgement (core/__init__.py),
what is shown of a run (view.py), what is saved of it (`Aside.saved`). Behind a boundary nothing is caught. A source
that was put aside is read again when other content stands under its path, a run when the monitor is restarted: its
offsets are not saved, so that a version without the bug reads it from the beginning.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from monitor.core.runs import Run
from monitor.core.saved import Saved
from monitor.core.sources import Source
from monitor.snapshot import MonitorCounts

Room = Literal["source", "run", "page", "state"]

_MESSAGE = 200  # characters of an exception's message that people are shown
_log = logging.getLogger(__name__)


class Aside:
    """Logs and counts what failed."""

    def __init__(self, counts: MonitorCounts) -> None:
        self._counts = counts
        self._told: set[tuple[Room, str]] = set()

    def note(self, room: Room, name: str, error: Exception) -> str:
        """The traceback goes to the log, once a room and name; gives the words for people."""
        if (room, name) not in self._told:
            self._told.add((room, name))
            self._counts.add("put_aside_total", room)
            _log.error("%s=%r put aside: the monitor's own code failed at it", room, name, exc_info=error)
        text = "".join(char if char.isprintable() else "�" for char in str(error)[:_MESSAGE])
        return f"the monitor's own code failed at it ({type(error).__name__}: {text})"

    def forget(self, room: Room, name: str) -> None:
        """It works again: a later failure is news."""
        self._told.discard((room, name))

    @contextmanager
    def saving(self, log: str, failed: set[str]) -> Iterator[None]:
        """What of a log cannot be gathered to be saved: it goes to `failed`."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the boundary of what is saved
            self.note("state", log, error)
            failed.add(log)

    def saved(self, saved: Saved, encode: Callable[[Saved], bytes]) -> bytes:
        """The state as bytes, without the logs and the messages that cannot be written."""
        try:
            data = encode(saved)
        except Exception as error:  # noqa: BLE001 - the boundary of what is saved
            first = error
        else:
            return data
        counts, owed = saved.counts, saved.owed
        saved.counts, saved.owed = {}, {}
        for log in saved.logs():
            try:
                encode(saved.only({log}))
            except Exception as error:  # noqa: BLE001 - the boundary of what is saved
                self.note("state", log, error)
                saved = saved.without({log})
            else:
                self.forget("state", log)
        saved.counts = counts
        for name, waiting in owed.items():
            for message in waiting:
                try:
                    encode(Saved(owed={name: [message]}))
                except Exception as error:  # noqa: BLE001 - the boundary of what is saved
                    self.note("state", message.message.run, error)
                else:
                    saved.owed.setdefault(name, []).append(message)
        try:
            return encode(saved)
        except Exception:  # noqa: BLE001 - what is not of any log
            self.note("state", "", first)
            return encode(Saved(wall_offset=saved.wall_offset))


def failed_logs(runs: dict[str, Run], sources: dict[str, Source]) -> set[str]:
    """The logs of which a run or a source was put aside."""
    return {run.log for run in runs.values() if run.failed} | {one.run for one in sources.values() if one.failed}
