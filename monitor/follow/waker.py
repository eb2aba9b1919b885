"""What a reader waits on: calls from other threads, and on local mounts inotify(7) on the directories of its files.

inotify sees only this host's writes, loses events, coalesces them and runs out of watches; so it only names paths that
may have changed, and a reader that is never woken still polls. Every failure ends in `note` and in polling.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import select
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inotify_simple import INotify

_MOST_DIRECTORIES = 512  # of the user's 8,192 or more inotify watches, which an IDE or a sync client needs too
_MOST_PATHS = 1024  # named paths; beyond that looking at every file is as cheap
_WATCHED = ("MODIFY", "ATTRIB", "MOVED_FROM", "MOVED_TO", "CREATE", "DELETE", "ONLYDIR")  # not what our reads cause
_LIMITS = {errno.ENOSPC: "inotify watch limit reached", errno.EMFILE: "inotify instance limit reached"}


class Waker:
    """`wake` and `interrupt` are for any thread, the rest for the reader's own. Close it when done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._paths: set[str] = set()
        self._everything = self._woken = False
        self._read_fd, self._write_fd = os.pipe()
        self._calls = select.poll()
        self._calls.register(self._read_fd, select.POLLIN)
        self._calls_and_events = select.poll()
        self._calls_and_events.register(self._read_fd, select.POLLIN)
        self._inotify: INotify | None = None
        self._watches: dict[int, list[str]] = {}  # the directory's names by the kernel's number: it may have two
        self.note = ""
        """Why some or all directories are only polled."""

    @property
    def watching(self) -> bool:
        """Is any directory watched?"""
        return self._inotify is not None and bool(self._watches)

    def wake(self) -> None:
        """Every file is to be looked at now."""
        with self._lock:
            self._everything = True
            self._interrupt()

    def interrupt(self) -> None:
        """End the wait. Nothing is known to have changed: `take` finds the events that came meanwhile."""
        with self._lock:
            self._interrupt()

    def wait(self, seconds: float, coalesce_seconds: float = 0.0, debounce_seconds: float = 0.0) -> None:
        """Until a call, which ends it at once, or an event. To be woken costs as much as to read ten lines, so events
        are left to add up: for `coalesce_seconds`, and for `debounce_seconds` after the first one that comes then.
        """
        coalesce_seconds = min(coalesce_seconds, seconds)
        events_wait = False
        if self._inotify is not None and coalesce_seconds > 0.0:
            if self._calls.poll(_milliseconds(coalesce_seconds)):
                return
            seconds -= coalesce_seconds
            events_wait = bool(self._calls_and_events.poll(0))
        if not events_wait:
            ready = self._calls_and_events.poll(_milliseconds(seconds))
            if ready and debounce_seconds > 0.0 and self._read_fd not in dict(ready):
                self._calls.poll(_milliseconds(debounce_seconds))

    def take(self) -> tuple[set[str], bool]:
        """The paths that may have changed since the last call, and whether every file is to be looked at."""
        self._read_events()
        with self._lock:
            if self._woken and self._read_fd >= 0:
                os.read(self._read_fd, 1)
            self._woken = False
            paths, self._paths = self._paths, set()
            everything, self._everything = self._everything, False
        return paths, everything

    def watch(self, directories: Iterable[str]) -> None:
        """From now on these, and no others. Called after each walk: what failed is tried again, and a directory that
        was made anew, or a link that names another, is watched as what it is now.
        """
        self.note = ""
        inotify = self._inotify or self._start_inotify()
        if inotify is None:
            return
        from inotify_simple import flags

        mask = sum(flags[name] for name in _WATCHED)
        watches: dict[int, list[str]] = {}
        for directory in sorted(set(directories)):
            if len(watches) >= _MOST_DIRECTORIES:
                self.note = f"only {_MOST_DIRECTORIES} directories are watched"
                break
            try:
                watches.setdefault(inotify.add_watch(directory, mask), []).append(directory)  # the number that it had
            except (FileNotFoundError, NotADirectoryError):
                continue  # appears later
            except OSError as error:
                self.note = f"{directory} cannot be watched: {_reason(error)}"
        for watch in self._watches.keys() - watches.keys():
            with contextlib.suppress(OSError):  # it ended by itself when the directory was removed
                inotify.rm_watch(watch)
        self._watches = watches

    def close(self) -> None:
        """Nobody waits any more; it may be woken all the same."""
        self._stop_inotify()
        with self._lock:
            for descriptor in (self._read_fd, self._write_fd):
                if descriptor >= 0:
                    os.close(descriptor)
            self._read_fd = self._write_fd = -1

    def _read_events(self) -> None:
        if self._inotify is None:
            return
        from inotify_simple import flags

        changed: set[tuple[int, str]] = set()
        try:
            for event in self._inotify.read(timeout=0):
                if event.mask & flags.Q_OVERFLOW:
                    self.wake()
                elif event.mask & flags.IGNORED:  # the kernel has ended this watch: its directory is gone
                    self._watches.pop(event.wd, None)
                elif event.name and not event.mask & flags.ISDIR:
                    changed.add((event.wd, event.name))
        except OSError as error:
            self.note = f"watching failed: {error}"
            self._stop_inotify()
        with self._lock:
            self._paths.update(
                f"{directory.rstrip('/')}/{name}"
                for watch, name in changed
                for directory in self._watches.get(watch, ())
            )
            if len(self._paths) > _MOST_PATHS:
                self._everything, self._paths = True, set()

    def _interrupt(self) -> None:
        woken, self._woken = self._woken, True
        if not woken and self._write_fd >= 0:
            os.write(self._write_fd, b"!")

    def _start_inotify(self) -> INotify | None:
        try:
            from inotify_simple import INotify  # it looks for the C library, which a single reading does not need

            self._inotify = INotify()
        except (ImportError, AttributeError, OSError) as error:  # no instance left, or another system than Linux
            self.note = f"watching cannot start: {_reason(error)}"
            return None
        self._calls_and_events.register(self._inotify, select.POLLIN)
        return self._inotify

    def _stop_inotify(self) -> None:
        inotify, self._inotify = self._inotify, None
        self._watches = {}
        if inotify is not None:
            self._calls_and_events.unregister(inotify)
            with contextlib.suppress(OSError):
                inotify.close()


def _reason(error: Exception) -> str:
    return _LIMITS.get(getattr(error, "errno", None) or 0, str(error))


def _milliseconds(seconds: float) -> int:
    return math.ceil(1000 * max(0.0, seconds))
