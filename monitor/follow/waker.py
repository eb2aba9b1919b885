"""What ends a reader's wait early: a call of another thread, or watchdog's observer of the directories that change.

Polling decides everything. Where the system tells of no changes, or no watch is left, the reader polls as ever.
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
_CHANGED_SECONDS = 3600.0  # a directory that changed so lately is observed
_MOST_DIRECTORIES = 512  # of 8,192 inotify watches of the user, which other programs need, too; one is a thread
_MOST_PATHS = 1024  # named to the reader at once; what else changed it finds by itself
_EVENTS_PER_SECOND = 5.0  # an event takes 0.4 ms: where more come it is cheaper to poll
_PAUSE_SECONDS = 300.0  # in which nothing is observed after too many events, or after a failure


class Waker(events.FileSystemEventHandler):
    """`wake` and events come from any thread; the rest is for the reader's own. `now` is monotonic seconds."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._paths, self._called = set[str](), False
        self._observer: BaseObserver | None = None
        self._watches: dict[str, ObservedWatch] = {}
        self._events, self._since, self._paused_until = 0, 0.0, 0.0

    def wake(self) -> None:
        """The reader is to look at every file now."""
        with self._condition:
            self._called = True
            self._condition.notify()

    def on_any_event(self, event: events.FileSystemEvent) -> None:
        """A path may have changed."""
        with self._condition:
            self._events += 1
            if len(self._paths) < _MOST_PATHS:
                self._paths.update(os.fsdecode(path) for path in (event.src_path, event.dest_path) if path)
            self._condition.notify()

    def wait(self, seconds: float, idle_seconds: float = 0.0, settle_seconds: float = 0.0) -> None:
        """Until a call, or an event: one ends the wait after `quiet_seconds`, and `settle_seconds` later."""
        with self._condition:
            self._condition.wait_for(lambda: self._called, min(idle_seconds, seconds))
            self._condition.wait_for(lambda: self._called or self._paths, max(0.0, seconds - idle_seconds))
            if self._paths:
                self._condition.wait_for(lambda: self._called, settle_seconds)

    def take(self) -> tuple[set[str], bool]:
        """The paths that may have changed since the last call, and whether `wake` was called."""
        with self._condition:
            taken = self._paths, self._called
            self._paths, self._called = set(), False
            return taken

    def observe(self, changed: Mapping[str, float], now: float) -> bool:
        """Observe directories by when they changed last; called every few seconds. False: there is no observer."""
        if self._events > _EVENTS_PER_SECOND * max(10.0, now - self._since):
            self._paused_until = now + _PAUSE_SECONDS
        self._events, self._since, paused = 0, now, now < self._paused_until
        lately = {path for path, at in changed.items() if now - at <= _CHANGED_SECONDS and not paused}
        try:
            if self._observer is not None or not paused:
                self._watch(lately, changed)
        except Exception:  # noqa: BLE001 - the boundary of the observer: no watch, instance or thread is left
            self.close()
            self._paused_until = now + _PAUSE_SECONDS
        return self._observer is not None

    def _watch(self, lately: set[str], changed: Mapping[str, float]) -> None:
        if (observer := self._observer) is None:
            observer = Observer()
            if isinstance(observer, PollingObserver):  # this system tells of no changes
                return
            observer.start()
            self._observer = observer
        ended = {emitter.watch.path for emitter in observer.emitters if not emitter.is_alive()}
        for path in self._watches.keys() - (lately - ended):
            observer.unschedule(self._watches.pop(path))
        new = sorted(lately - self._watches.keys(), key=lambda path: -changed[path])
        for path in new[: _MOST_DIRECTORIES - len(self._watches)]:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                self._watches[path] = observer.schedule(self, path, event_filter=_KINDS, follow_symlink=True)

    def close(self) -> None:
        """Observe nothing."""
        observer, self._observer, self._watches = self._observer, None, {}
        if observer is not None:
            observer.stop()
