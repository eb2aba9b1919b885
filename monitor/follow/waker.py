"""Early end of a reader's wait: by a call of another thread, or by inotify (watchdog) on directories that change.

Polling decides everything. Without an observer, or without a free watch, the reader only polls.
"""

import contextlib
import os
import threading
from collections.abc import Mapping

from watchdog import events
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver, ObservedWatch
from watchdog.observers.polling import PollingObserver

_KINDS = [events.FileCreatedEvent, events.FileDeletedEvent, events.FileModifiedEvent, events.FileMovedEvent]
_CHANGED_SECONDS = 3600.0  # a directory with a change in this time is observed
_MAX_DIRECTORIES = 512  # of a user's 8,192 inotify watches, which other programs need, too; each takes a thread
_MAX_PATHS = 1024  # passed to the reader at once; other changes it finds by polling
_MAX_EVENTS_PER_SECOND = 5.0  # an event takes 0.4 ms: above this rate polling is cheaper
_PAUSE_SECONDS = 300.0  # without an observer after too many events, or after a failure


class Waker(events.FileSystemEventHandler):
    """Any thread may call `wake`; all else is for the reader's thread. `now` is monotonic seconds."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._paths, self._called = set[str](), False
        self._observer: BaseObserver | None = None
        self._watches: dict[str, ObservedWatch] = {}
        self._events, self._since, self._paused_until = 0, 0.0, 0.0

    def wake(self) -> None:
        """Make the reader look at every file now."""
        with self._condition:
            self._called = True
            self._condition.notify()

    def on_any_event(self, event: events.FileSystemEvent) -> None:
        """Note a path that may have changed."""
        with self._condition:
            self._events += 1
            if len(self._paths) < _MAX_PATHS:
                self._paths.update(os.fsdecode(path) for path in (event.src_path, event.dest_path) if path)
            self._condition.notify()

    def wait(self, seconds: float, idle_seconds: float = 0.0, settle_seconds: float = 0.0) -> None:
        """Wait for at most `seconds`. `wake` ends the wait at once; an event does so after `idle_seconds` at the
        earliest, and `settle_seconds` later.
        """
        with self._condition:
            self._condition.wait_for(lambda: self._called, min(idle_seconds, seconds))
            self._condition.wait_for(lambda: self._called or self._paths, max(0.0, seconds - idle_seconds))
            if self._paths:
                self._condition.wait_for(lambda: self._called, settle_seconds)

    def take_changes(self) -> tuple[set[str], bool]:
        """Return the paths that may have changed since the last call, and True if `wake` was called."""
        with self._condition:
            taken = self._paths, self._called
            self._paths, self._called = set(), False
            return taken

    def observe(self, changed: Mapping[str, float], now: float) -> bool:
        """Observe directories that changed lately; to be called every few seconds. False: there is no observer."""
        if self._events > _MAX_EVENTS_PER_SECOND * max(10.0, now - self._since):
            self._paused_until = now + _PAUSE_SECONDS
        self._events, self._since, paused = 0, now, now < self._paused_until
        lately = {path for path, at in changed.items() if now - at <= _CHANGED_SECONDS and not paused}
        try:
            if self._observer is not None or not paused:
                self._watch(lately, changed)
        except Exception:  # noqa: BLE001 - no inotify watch, instance or thread is left
            self.close()
            self._paused_until = now + _PAUSE_SECONDS
        return self._observer is not None

    def _watch(self, lately: set[str], changed: Mapping[str, float]) -> None:
        if (observer := self._observer) is None:
            observer = Observer()
            if isinstance(observer, PollingObserver):  # this system does not report changes
                return
            observer.start()
            self._observer = observer
        ended = {emitter.watch.path for emitter in observer.emitters if not emitter.is_alive()}
        for path in self._watches.keys() - (lately - ended):
            observer.unschedule(self._watches.pop(path))
        new = sorted(lately - self._watches.keys(), key=lambda path: -changed[path])
        for path in new[: _MAX_DIRECTORIES - len(self._watches)]:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                self._watches[path] = observer.schedule(self, path, event_filter=_KINDS, follow_symlink=True)

    def close(self) -> None:
        """Stop the observer."""
        observer, self._observer, self._watches = self._observer, None, {}
        if observer is not None:
            observer.stop()
