"""watchdog as an alarm clock: it names paths that may have changed, and nobody believes it further than that.

inotify sees only this host's writes, loses events, coalesces them and runs out of watches; so it is used on local
mounts, on directories, and a reader that is never woken still polls. Its handler only notes the path.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable

from watchdog.events import (
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver, ObservedWatch

_EVENTS: list[type[FileSystemEvent]] = [FileModifiedEvent, FileCreatedEvent, FileDeletedEvent, FileMovedEvent]
_MOST_DIRECTORIES = 512  # of the user's 8,192 or more inotify watches, which an IDE or a sync client needs too
_MOST_HINTS = 1024  # named paths; beyond that looking at every file is as cheap


class Alarm:
    """What readers wait on. Any thread may ring."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rung = threading.Event()
        self._hints: set[str] = set()
        self._all = False

    def ring(self, path: str | None = None) -> None:
        """Something may have changed at `path`, or anywhere."""
        with self._lock:
            if path is None or len(self._hints) >= _MOST_HINTS:
                self._all = True
            else:
                self._hints.add(path)
        self._rung.set()

    def wait(self, seconds: float) -> bool:
        """True if it rang before."""
        return self._rung.wait(seconds)

    def take(self) -> tuple[set[str], bool]:
        """The paths named since the last call, and whether every file is to be looked at."""
        with self._lock:
            self._rung.clear()
            hints, self._hints = self._hints, set()
            everything, self._all = self._all, False
        return hints, everything


class Waker:
    """Watches directories for one reader. Every failure ends in `note` and in polling, never in an exception."""

    def __init__(self, alarm: Alarm) -> None:
        self._handler = _Handler(alarm)
        self._observer: BaseObserver | None = None
        self._watches: dict[str, tuple[ObservedWatch, int]] = {}  # with the directory's inode
        self._failed: set[str] = set()
        self.note = ""
        """Why some or all directories are only polled."""

    @property
    def alive(self) -> bool:
        """Do its threads run and watch something?"""
        observer = self._observer
        return (
            observer is not None
            and observer.is_alive()
            and bool(self._watches)
            and all(emitter.is_alive() for emitter in observer.emitters)
        )

    def watch(self, directories: Iterable[str]) -> None:
        """From now on these, and no others. Called after each walk: a dead observer is replaced."""
        wanted = set(directories)
        if self._observer is not None and self._watches and not self.alive:
            self.stop()
            self.note = "the watching thread died"
        observer = self._observer or self._started()
        if observer is None:
            return
        for directory, (_, inode) in list(self._watches.items()):
            if directory not in wanted or _inode(directory) != inode:  # made anew: the kernel's watch went with the old
                self._unwatch(observer, directory)
        self._failed &= wanted
        for directory in sorted(wanted - set(self._watches)):
            if len(self._watches) >= _MOST_DIRECTORIES:
                self.note = f"only {_MOST_DIRECTORIES} directories are watched"
                return
            self._watch(observer, directory)

    def stop(self) -> None:
        """End its threads."""
        observer, self._observer = self._observer, None
        self._watches = {}
        if observer is not None and observer.is_alive():
            observer.stop()
            observer.join(1.0)

    def _started(self) -> BaseObserver | None:
        observer = Observer()
        observer.daemon = True
        try:
            observer.start()
        except (OSError, RuntimeError) as error:  # no inotify instance left, no thread left
            self.note = f"watching cannot start: {error}"
            return None
        self._observer = observer
        return observer

    def _watch(self, observer: BaseObserver, directory: str) -> None:
        inode = _inode(directory)
        if inode is None:
            return  # appears later; the next walk asks again
        try:
            watch = observer.schedule(self._handler, directory, event_filter=_EVENTS)
            self._watches[directory] = watch, inode
        except (OSError, RuntimeError) as error:  # the limit of watches, or the directory went away
            if directory not in self._failed:
                self._failed.add(directory)
                self.note = f"{directory} cannot be watched: {error}"

    def _unwatch(self, observer: BaseObserver, directory: str) -> None:
        watch, _ = self._watches.pop(directory)
        try:
            observer.unschedule(watch)
        except (KeyError, OSError):
            return  # it ended by itself when its directory was removed


class _Handler(FileSystemEventHandler):
    """Called in watchdog's thread, whose queue has no bound: it must be done at once."""

    def __init__(self, alarm: Alarm) -> None:
        self._alarm = alarm

    def on_any_event(self, event: FileSystemEvent) -> None:
        for path in (event.src_path, event.dest_path):
            if path:
                self._alarm.ring(os.fsdecode(path))


def _inode(directory: str) -> int | None:
    try:
        return os.stat(directory).st_ino
    except OSError:
        return None
