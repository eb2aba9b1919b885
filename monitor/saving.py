"""Loads the state at the start, and saves it while something changes and at the end."""

import gc
import logging
from collections.abc import Callable
from pathlib import Path

from megatron_monitor.core import Core
from megatron_monitor.core.saved import Saved, of_parts
from megatron_monitor.incidents import Transition
from megatron_monitor.notifiers.message import message_id
from megatron_monitor.store import Parts, StateNewerError, Store
from megatron_monitor.system.asking import Asking
from megatron_monitor.system.clock import Clock

_log = logging.getLogger(__name__)

_MAX_SAVE_INTERVAL = 120.0  # seconds between two saves without news: the observed time is saved too
_STUCK = 2.0  # seconds of writing after which the disk counts as hanging
_LAST = 2.0  # maximum seconds of the last save
_INTERVAL = 1.0  # seconds between two saves of a small state
_BYTES_PER_SECOND = 250e3  # average load on a shared disk
_MIN_INTERVAL_FACTOR = 4000  # seconds between two saves per second of the loop's time that a save takes
_LONGEST = 60.0


def pause_after(size: int, seconds: float) -> float:
    """Return the seconds until the next save after one of `size` bytes that took `seconds` of the loop's time.

    A small state is saved every second. A large state causes at most 250 kB/s, and its encoding takes at most 1/4,000
    of the loop's time (20 s between two saves of 50 runs), but it is saved at least once a minute. After a crash, lines
    after the saved offset are read again.
    """
    return max(_INTERVAL, min(_LONGEST, max(size / _BYTES_PER_SECOND, _MIN_INTERVAL_FACTOR * seconds)), 20 * seconds)


class Saving:
    """The state of one core in one directory. Without a directory nothing is saved."""

    def __init__(self, core: Core, clock: Clock, wake: Callable[[], None]) -> None:
        """`wake` wakes the loop from any thread: messages are sent after they are saved."""
        self._core = core
        self._clock = clock
        self._wake = wake
        self._store: Store | None = None
        self._asking: Asking[Parts, bool] | None = None
        self._kept: Parts = {}  # parts being written, waiting, or failed: written with the next parts
        self._unanswered = 0
        self._due_at = self._offered_at = float("-inf")
        self._stuck = False
        self._offered: int | None = None  # number of the last message in the offered state, until that is saved

    def load(self, directory: Path) -> Saved | None:
        """Lock the directory and load its state. Raises StateInUseError and StateNewerError."""
        store, counts = Store(directory), self._core.counts
        try:
            store.lock()
        except OSError as error:
            _log.warning(
                "state=%s cannot be used: %s; the monitor runs without it, and a restart will read the logs again",
                directory, error.strerror or error,
            )  # fmt: skip
            counts.add("state_save_failures_total")
            return None
        try:
            parts, problems = store.load()
        except StateNewerError:
            store.release()
            raise
        self._store = store
        self.keep(store.save)
        gc.disable()  # collection during the load takes a tenth of a start with 10,000 logs
        saved = of_parts(parts, problems) if parts is not None else None
        gc.freeze()  # the loaded state has no cycles, so it is never collected
        gc.enable()
        for problem in problems:
            _log.warning("state %s; it is rebuilt from the logs", problem)
            counts.add("state_rebuilds_total")
        if saved is not None:
            accepted = store.notes()
            for name, waiting in saved.pending.items():
                saved.pending[name] = [one for one in waiting if _note(name, one.message) not in accepted]
        return saved

    def keep(self, save: Callable[[Parts], bool]) -> None:
        """Save by this function from now on, in a thread that a hanging disk may block. It returns True if the parts
        are stored.
        """
        self._asking = Asking("state", save, lambda _parts, _error: False, 0, self._wake)

    def accepted(self, receiver: str, message: Transition) -> None:
        """Note that the receiver has the message, so that it is not repeated after a crash. For any thread."""
        if self._store is not None and not self._stuck:
            self._store.note(_note(receiver, message))

    def soon(self) -> None:
        """Save at the next `turn`, unless a save was within the last second."""
        self._core.changed = self._core.save_soon = True

    def turn(self, now: float) -> None:
        """Save if something has changed and it is time. `now`: the core's instant."""
        outbox, began = self._core.outbox, self._clock.monotonic()
        waited = began - self._offered_at
        if self._asking is None:
            outbox.saved = outbox.last  # nothing will be saved
            if waited >= _INTERVAL:
                self._offered_at = began
                self._offer()
                self._note_saved()
            return
        self._note_written(self._asking.answers())
        self._core.changed |= outbox.changed
        outbox.changed = False
        self._stuck = self._unanswered > 0 and waited > _STUCK
        if waited >= _MAX_SAVE_INTERVAL and any(run.state.live for run in self._core.runs.values()):
            self._core.changed = True
        due = waited >= _INTERVAL if self._core.save_soon else began >= self._due_at
        if self._unanswered or not (due and self._core.changed):  # a slow disk gets no further save
            return
        parts = self._core.parts(now)
        self._core.changed = self._core.save_soon = False
        self._offer()
        self.write(parts)
        self._offered_at = ended = self._clock.monotonic()
        self._due_at = ended + pause_after(sum(len(part or b"") for part in parts.values()), ended - began)

    def write(self, parts: Parts) -> None:
        """Write these parts next, with failed ones."""
        assert self._asking is not None
        self._kept |= parts
        self._unanswered += 1
        self._asking.ask(dict(self._kept))

    def _note_written(self, written: list[bool]) -> None:
        """Note which of the last writes have succeeded."""
        self._unanswered -= len(written)
        if written and written[-1] and not self._unanswered:
            self._kept = {}
        if failed := written.count(False):
            self._core.counts.add("state_save_failures_total", by=failed)
            self._core.changed = True  # a failed save is retried
            if self._store is not None and self._store.wants_all:
                self._core.touch_all()
            self._offered = None
        elif not self._unanswered:
            self._note_saved()

    def _offer(self) -> None:
        """Note what the offered state includes."""
        self._offered = self._core.outbox.last
        for extension in self._core.extensions:
            extension.offered()

    def _note_saved(self) -> None:
        """The offered state is on disk."""
        if self._offered is not None:
            self._core.outbox.saved, self._offered = self._offered, None
            for extension in self._core.extensions:
                extension.saved()

    def save_last(self, now: float) -> None:
        """Save before the end of the process."""
        if self._asking is not None:
            self._core.outbox.changed = False
            self.write(self._core.parts(now))
            if not self.wait(_LAST):
                _log.warning("state not saved: the write took longer than %.0f s", _LAST)

    def wait(self, timeout: float) -> bool:
        """Wait until everything is written. Return False if one write takes longer than the time-out."""
        while self._unanswered and self._asking is not None:
            if (written := self._asking.wait(timeout)) is None:
                return False
            self._note_written([written])
        return True

    def release(self) -> None:
        """Release the directory."""
        if self._asking is not None:
            self._asking.stop()
        if self._store is not None:
            self._store.release()


def _note(receiver: str, message: Transition) -> str:
    return f"{message_id(message)} {receiver}"
