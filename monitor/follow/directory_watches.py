"""watchdog's observer on the directories where files moved lately: it names paths that may have changed, no more.

Never relied on: events are lost, seen late, or not sent at all, and watches and threads run out. So every failure ends
in `note` and in polling, and the reader's thread never waits for the observer: another one speaks to it.

watchdog 7.1 has on Linux one inotify instance, one thread that reads it, one that dispatches, and one for each watched
directory (watchdog 6: two, and an instance, of which a user has 128). Measured on a shared core, Python 3.11: 512
directories take 11.5 MiB and, while nothing happens, no time; to begin one takes 0.29 ms, to end one 0.2 ms; an event
that crosses the four threads takes 0.37 ms. So it is events that cost, not directories: where more than five come
a second, the busiest directories are left to polling, which looks at their files twice a second anyway.
"""

import contextlib
import errno
import os
import stat
import threading
from collections import Counter
from collections.abc import Callable, Mapping

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
from watchdog.observers.polling import PollingObserver

_MOST_DIRECTORIES = 512  # of the user's 8,192 or more inotify watches, which an IDE or a sync client needs too
_MOVED_SECONDS = 3600.0  # where nothing moved for an hour nobody waits for a line
_STEP_SECONDS = 600.0  # of two directories that moved so close together the one that is watched stays
_EVENTS_PER_SECOND = 5.0  # of all directories together, on average: 0.2 % of a core
_COUNT_SECONDS = 10.0  # at least, over which events are counted: a program's start is a burst
_BUSY_SECONDS = 300.0  # for which a busy directory is left to polling, and after which a failure is forgotten
_ANSWER_SECONDS = 0.2  # a reader waits for its observer, at most: 512 directories are begun in that time
_KINDS: list[type[FileSystemEvent]] = [FileCreatedEvent, FileDeletedEvent, FileModifiedEvent, FileMovedEvent]
"""Not what our own reads cause."""
_LIMITS = (errno.ENOSPC, errno.EMFILE, errno.ENFILE)


class _Handler(FileSystemEventHandler):
    """Of one directory, which may be a link: the system may name the files by another path."""

    def __init__(self, directory: str, changed: Callable[[str, str], None]) -> None:
        self._directory = directory
        self._changed = changed

    def on_any_event(self, event: FileSystemEvent) -> None:
        """Tell the names."""
        for path in (event.src_path, event.dest_path):
            name = os.path.basename(os.fsdecode(path))
            if name and not event.is_directory:
                self._changed(self._directory, name)


class DirectoryWatches:
    """`watch` and `close` are for the reader's thread. Times are monotonic seconds."""

    def __init__(self, changed: Callable[[str], None]) -> None:
        """`changed` is told each path, in a thread of the observer."""
        self.note = ""
        """Why some or all directories are only polled."""
        self._tell = changed
        self._observer: BaseObserver | None = None
        self._watched: dict[str, tuple[ObservedWatch, tuple[int, int]]] = {}
        self._most = _MOST_DIRECTORIES
        self._events: Counter[str] = Counter()
        self._counted_since = float("-inf")
        self._busy_until: dict[str, float] = {}
        self._failed_until = float("-inf")
        self._worker: threading.Thread | None = None

    @property
    def working(self) -> bool:
        """Does it name what changes, but where that is too much?"""
        return self._observer is not None and bool(self._watched or self._busy_until) and not self._stuck

    def watch(self, moved: Mapping[str, float], now: float) -> None:
        """From now on those of the directories where something `moved` in the last hour, the newest first. Called after
        each walk: what failed is tried again, and a directory that was made anew is watched as what it is now.
        """
        self._leave_busy(now)
        if now >= self._failed_until:
            lately = [one for one, at in moved.items() if now - at <= _MOVED_SECONDS]
            wanted = [one for one in lately if self._busy_until.get(one, now) <= now]
            wanted.sort(key=lambda one: (-int(moved[one] // _STEP_SECONDS), one not in self._watched, one))
            self._ask(lambda: self._watch(wanted, now))

    def close(self) -> None:
        """Nobody is told any more."""
        if self._observer is not None:
            self._ask(self._stop)

    @property
    def _stuck(self) -> bool:
        return self._worker is not None and self._worker.is_alive()

    def _leave_busy(self, now: float) -> None:
        """Quiet directories first, as many as the events allow."""
        seconds = now - self._counted_since
        if seconds < _COUNT_SECONDS:
            return
        events, self._events, self._counted_since = self._events, Counter(), now
        self._busy_until = {one: until for one, until in self._busy_until.items() if until > now}
        total = 0
        for directory, count in reversed(events.most_common()):
            total += count
            if total > _EVENTS_PER_SECOND * seconds:
                self._busy_until[directory] = now + _BUSY_SECONDS

    def _ask(self, what: Callable[[], None]) -> None:
        """In another thread: to end a watch is to wait for watchdog's threads."""
        if self._stuck:
            self.note = "the observer does not answer"
            return
        self._worker = threading.Thread(target=what, name="follow directories", daemon=True)
        try:
            self._worker.start()
        except RuntimeError as error:  # no thread left
            self._worker, self.note = None, f"watching failed: {error}"
            return
        self._worker.join(_ANSWER_SECONDS)

    def _watch(self, wanted: list[str], now: float) -> None:
        self.note = ""
        try:
            if self._observer is not None and not self._observer.is_alive():
                self._stop()
            observer = self._observer or self._start()
            known = {one: _identity(one) for one in wanted[: self._most]}
            ended = {emitter.watch for emitter in observer.emitters if not emitter.is_alive()}  # it was removed
            for directory, (watch, identity) in list(self._watched.items()):
                if known.get(directory) != identity or watch in ended:
                    del self._watched[directory]
                    observer.unschedule(watch)
            for directory, seen in known.items():
                if seen is not None and directory not in self._watched and not self._add(observer, directory, seen):
                    break
            if len(wanted) > self._most:
                self.note = f"only {self._most} directories are watched"
        except Exception as error:  # noqa: BLE001 - the boundary of the observer: no instance or thread left, or a bug
            self.note = f"watching failed: {error}"
            self._failed_until = now + _BUSY_SECONDS
            if isinstance(error, RuntimeError):  # no thread left, and others need some
                self._most = max(1, len(self._watched) // 2)
            self._stop()

    def _add(self, observer: BaseObserver, directory: str, identity: tuple[int, int]) -> bool:
        """False: nor can any other be watched."""
        handler = _Handler(directory, self._changed)
        try:
            watch = observer.schedule(handler, directory, event_filter=_KINDS, follow_symlink=True)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                self.note = f"{directory} cannot be watched: {error}"
            return error.errno not in _LIMITS
        self._watched[directory] = watch, identity
        return True

    def _changed(self, directory: str, name: str) -> None:
        self._events[directory] += 1
        self._tell(f"{directory.rstrip('/')}/{name}")

    def _start(self) -> BaseObserver:
        observer = Observer()
        if isinstance(observer, PollingObserver):
            raise OSError("this system names no changes")
        self._observer = observer
        observer.start()
        return observer

    def _stop(self) -> None:
        observer, self._observer = self._observer, None
        self._watched = {}
        if observer is not None:
            with contextlib.suppress(Exception):
                observer.stop()


def _identity(directory: str) -> tuple[int, int] | None:
    """Device and inode of what is there now; None of what may not be listed, and so not watched."""
    try:
        status = os.stat(directory)
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISDIR(status.st_mode) and os.access(directory, os.R_OK) else None
