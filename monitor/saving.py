"""When the state is loaded and saved: at the start, from time to time while something changes, and last."""

import gc
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from megatron_monitor.core import Core
from megatron_monitor.core.extension import Extension
from megatron_monitor.core.saved import Saved, of_parts
from megatron_monitor.incidents import Transition
from megatron_monitor.notifiers.message import message_id
from megatron_monitor.store import Parts, StateNewerError, Store
from megatron_monitor.system.clock import Clock

_log = logging.getLogger(__name__)

_SOON = 1.0  # seconds to the save after a rotation: a crash later finds no more what the old file ended with
_SILENT = 120.0  # seconds between two saves while nothing comes: until when a silence was heard is news, too
_STUCK = 2.0  # seconds after which a disk hangs that has not taken a state
_LAST = 2.0  # seconds that a last save may take
_INTERVAL = 1.0  # seconds between two saves of a small state
_BYTES_PER_SECOND = 250e3  # to a disk that others use too
_SHARE = 4000  # seconds between two saves for each second that one takes the loop
_LONGEST = 60.0


def pause_after(size: int, seconds: float) -> float:
    """Seconds to the next save after one of `size` bytes that took the loop `seconds`.

    A small state is saved every second. What is large goes to the disk at 250 kB/s at most, and encoding it takes a
    part in 4,000 of the loop's time (20 s between two saves of 50 runs), down to a save a minute: what was read since
    is read again after a crash, from the saved offset on.
    """
    return max(_INTERVAL, min(_LONGEST, max(size / _BYTES_PER_SECOND, _SHARE * seconds)), 20 * seconds)


class Saving:
    """The state of one core in one directory; without a directory nothing is kept."""

    def __init__(self, core: Core, clock: Clock, wake: Callable[[], None]) -> None:
        """`wake` makes the loop turn, from any thread: messages go out when they are saved."""
        self._core = core
        self._clock = clock
        self._wake = wake
        self._store: Store | None = None
        self._saver: Saver | None = None
        self._due_at = self._silent_at = self._offered_at = float("-inf")
        self._stuck = self._owing = False
        self._failures = 0
        self._offered = 0  # the last owed message in what the saver was given
        self._begun: list[tuple[Extension, int]] = []  # and the stamp of each extension in it

    def load(self, directory: Path) -> Saved | None:
        """Take the directory and what is saved there. Raises StateInUseError and StateNewerError."""
        store, counts = Store(directory), self._core.counts
        try:
            store.lock()
        except OSError as error:
            _log.warning(
                "state=%s cannot be used: %s; watching without it: a restart will read the logs anew",
                directory, error.strerror or error,
            )  # fmt: skip
            counts.add("state_save_failures_total")
            return None
        try:
            parts, problems = store.load()
        except StateNewerError:
            store.release()
            raise
        self._store, self._saver = store, Saver(store, self._wake)
        gc.disable()  # to look through what was just read for what is of no use takes a tenth of a start on 10,000 logs
        saved = of_parts(parts, problems) if parts is not None else None
        gc.freeze()  # nor is it looked through later: it holds no cycles, what leaves of it leaves by itself
        gc.enable()
        for problem in problems:
            _log.warning("state %s; it is rebuilt from the logs", problem)
            counts.add("state_rebuilds_total")
        if saved is not None:
            accepted = store.notes()
            for name, waiting in saved.owed.items():
                saved.owed[name] = [one for one in waiting if _note(name, one.message) not in accepted]
        return saved

    def keep(self, saver: "Saver") -> None:
        """What is saved goes there: another one knows what was there."""
        self._saver = saver

    def accepted(self, receiver: str, message: Transition) -> None:
        """The receiver has it: killed before the next save, the daemon does not send it again. From any thread."""
        if self._store is not None and not self._stuck:
            self._store.note(_note(receiver, message))

    def at_once(self, *, whole: bool = False) -> None:
        """The next `turn` saves what is owed, with what it is owed for: what people were notified of is not sent again
        after a crash. `whole`: everything that has changed.
        """
        self._owing = True
        self._due_at = float("-inf") if whole else self._due_at

    def turn(self, now: float) -> None:
        """Save if something has changed and it is time. `now`: the core's instant."""
        outbox = self._core.outbox
        if self._saver is None:
            outbox.saved = outbox.last  # nothing will ever be
            for extension in self._core.extensions:
                extension.kept = False
            return
        busy = self._saver.busy
        self._note_written(self._saver.failures, busy=busy)
        if outbox.changed:
            outbox.changed = False  # else a crash would send it again
            self.at_once()
        began = self._clock.monotonic()
        self._stuck = busy and began - self._offered_at > _STUCK
        if began >= self._silent_at:
            self._silent_at = began + _SILENT
            for run in self._core.runs.values():
                if run.state.live:
                    self._core.touch(run.log)
        if self._core.save_soon:
            self._core.save_soon = False
            self._due_at = min(self._due_at, began + _SOON)
        due = self._core.changed and began >= self._due_at
        if busy or not (due or self._owing):  # a slow disk is not given more
            return
        whole = due or began >= self._due_at - _SOON or self._core.place is not None
        parts = self._core.parts(now, whole=whole)
        self._offered = outbox.last
        self._begun = [(extension, extension.stamp) for extension in self._core.extensions]
        self._saver.offer(parts)
        self._offered_at, self._owing = began, False
        if not whole:
            return
        self._core.changed = False
        ended = self._clock.monotonic()
        self._due_at = ended + pause_after(sum(len(part or b"") for part in parts.values()), ended - began)
        self._silent_at = ended + _SILENT

    def _note_written(self, failures: int, *, busy: bool) -> None:
        """What the disk has taken of what was offered, or has failed to take."""
        outbox = self._core.outbox
        if failures > self._failures:
            self._core.counts.add("state_save_failures_total", by=failures - self._failures)
            self._failures = failures
            self._core.changed = True  # what was not written is tried again
            if self._store is not None and self._store.wants_all:
                self._core.touch_all()
            self._offered, self._begun = outbox.saved, []
        elif not busy:
            outbox.saved = max(outbox.saved, self._offered)
            for extension, stamp in self._begun:
                extension.saved = max(extension.saved, stamp)

    def save_last(self, now: float) -> None:
        """Before the end; again if something is still changed then."""
        if self._saver is None:
            return
        self._core.outbox.changed = False
        self._saver.offer(self._core.parts(now))
        if not self._saver.wait(_LAST):
            _log.warning("state not saved: the disk did not take it within %.0f s", _LAST)

    def release(self) -> None:
        """Let the directory go."""
        if self._saver is not None:
            self._saver.end()
        if self._store is not None:
            self._store.release()


def _note(receiver: str, message: Transition) -> str:
    return f"{message_id(message)} {receiver}"


class Keeps(Protocol):
    """Where a state is kept: the disk, or a topic."""

    def save(self, parts: Parts) -> bool:
        """These with what is kept. False: they are not there."""
        ...


class Saver:
    """Writes in a thread of its own, so that a disk that hangs does not stop the loop."""

    def __init__(self, store: Keeps, written: Callable[[], None] = lambda: None) -> None:
        """`written` is called in the saver's thread after each try."""
        self._store = store
        self._written = written
        self._parts: Parts = {}
        self._refused: Parts = {}  # by the disk: kept with what comes next
        self._changed = threading.Condition()
        self._busy = self._ended = False
        self.failures = 0
        """Saves that the disk would not have, so far."""
        self._thread = threading.Thread(target=self._run, name="state", daemon=True)
        self._thread.start()

    def offer(self, parts: Parts) -> None:
        """To be written next, with what waits."""
        with self._changed:
            self._parts.update(parts)
            self._changed.notify_all()

    @property
    def busy(self) -> bool:
        """Is something written, or does it wait?"""
        with self._changed:
            return self._busy or bool(self._parts)

    def wait(self, timeout: float) -> bool:
        """Until nothing waits to be written, for so long at most."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._busy and not self._parts, timeout)

    def end(self) -> None:
        """Take nothing more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._parts or self._ended)
                if not self._parts:
                    return
                parts, self._parts, self._busy = self._refused | self._parts, {}, True
            good = self._store.save(parts)
            with self._changed:
                self._refused, parts = {} if good else parts, {}
                self._busy = False
                self.failures += not good
                self._changed.notify_all()
            self._written()
