"""inotify as an alarm clock: it names paths that may have changed, and nobody believes it further than that.

inotify sees only this host's writes, loses events, coalesces them and runs out of watches; so it is used on local
mounts, on directories, and a reader that is never woken still polls.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
from collections.abc import Callable, Iterable

from monitor.follow.inotify import Inotify

_MOST_DIRECTORIES = 512  # of the user's 8,192 or more inotify watches, which an IDE or a sync client needs too
_MOST_HINTS = 1024  # named paths; beyond that looking at every file is as cheap


class Alarm:
    """What a reader waits on. Any thread may ring; one descriptor may be listened to. Close it when done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hints: set[str] = set()
        self._all = self._rung = False
        self._ear, self._mouth = os.pipe()
        self._poll = select.poll()
        self._poll.register(self._ear, select.POLLIN)
        self._quiet = select.poll()  # all but the descriptor that is listened to
        self._quiet.register(self._ear, select.POLLIN)
        self._heard: dict[int, Callable[[], None]] = {}

    def ring(self, *paths: str) -> None:
        """Something may have changed at these paths; without any: anywhere."""
        with self._lock:
            if not paths or len(self._hints) + len(paths) > _MOST_HINTS:
                self._all = True
            else:
                self._hints.update(paths)
            rung, self._rung = self._rung, True  # before the write: it wakes the waiting thread, which asks
            if not rung and self._mouth >= 0:
                os.write(self._mouth, b"!")

    def rouse(self) -> None:
        """End the wait. Nothing is known to have changed: `hear` tells what was not heard yet."""
        with self._lock:
            rung, self._rung = self._rung, True
            if not rung and self._mouth >= 0:
                os.write(self._mouth, b"!")

    def hear(self) -> None:
        """Without waiting, what the descriptor has to say. In the waiting thread."""
        self._heed(self._poll.poll(0))

    def listen(self, descriptor: int, hear: Callable[[], None]) -> None:
        """Call `hear` in the waiting thread when the descriptor can be read. Only the waiting thread may say so."""
        self._poll.register(descriptor, select.POLLIN)
        self._heard[descriptor] = hear

    def ignore(self, descriptor: int) -> None:
        """The end of `listen`, before the descriptor is closed."""
        if self._heard.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    def wait(self, seconds: float, deaf: float = 0.0, patience: float = 0.0) -> bool:
        """True if it rang, which is heard at once. What the descriptor has to say is left to add up, so that many
        events are one waking: for `deaf` seconds, and if it said nothing meanwhile for `patience` from its first word.
        """
        deaf = min(deaf, seconds)
        if self._heard and deaf > 0.0 and (self._rung or self._quiet.poll(_milliseconds(deaf))):
            return True
        if self._rung:
            return True
        ready = self._poll.poll(0) if deaf > 0.0 else []
        if not ready:
            ready = self._poll.poll(_milliseconds(seconds - deaf))
            if ready and patience > 0.0 and self._ear not in dict(ready):
                self._quiet.poll(_milliseconds(patience))
        self._heed(ready)
        return self._rung

    def _heed(self, ready: Iterable[tuple[int, int]]) -> None:
        for descriptor, _ in ready:
            if descriptor in self._heard:
                self._heard[descriptor]()

    def take(self) -> tuple[set[str], bool]:
        """The paths named since the last call, and whether every file is to be looked at."""
        with self._lock:
            if self._rung and self._ear >= 0:
                os.read(self._ear, 1)
            self._rung = False
            hints, self._hints = self._hints, set()
            everything, self._all = self._all, False
        return hints, everything

    def close(self) -> None:
        """Nobody waits any more; it may be rung all the same."""
        with self._lock:
            for descriptor in (self._ear, self._mouth):
                if descriptor >= 0:
                    os.close(descriptor)
            self._ear = self._mouth = -1


class Waker:
    """Watches directories for one reader, in its thread. Every failure ends in `note` and in polling."""

    def __init__(self, alarm: Alarm) -> None:
        self._alarm = alarm
        self._inotify: Inotify | None = None
        self._watches: dict[str, tuple[int, int]] = {}  # the kernel's number and the directory's inode
        self._names: dict[int, list[str]] = {}  # one directory may have two
        self._failed: set[str] = set()
        self.note = ""
        """Why some or all directories are only polled."""

    @property
    def alive(self) -> bool:
        """Does it watch something?"""
        return self._inotify is not None and bool(self._watches)

    def watch(self, directories: Iterable[str]) -> None:
        """From now on these, and no others. Called after each walk: what failed is tried again."""
        wanted = set(directories)
        inotify = self._inotify or self._started()
        if inotify is None:
            return
        for directory, (_, inode) in list(self._watches.items()):
            if directory not in wanted or _inode(directory) != inode:  # made anew: the kernel's watch went with the old
                self._unwatch(inotify, directory)
        self._failed &= wanted
        for directory in sorted(wanted - set(self._watches)):
            if len(self._watches) >= _MOST_DIRECTORIES:
                self.note = f"only {_MOST_DIRECTORIES} directories are watched"
                return
            self._watch(inotify, directory)

    def hear(self) -> None:
        """Something has happened: ring for each path."""
        if self._inotify is None:
            return
        events: set[tuple[int, bytes]] = set()
        try:
            for happened in self._inotify.read():
                if happened.lost:
                    self._alarm.ring()
                if happened.ended:
                    for directory in self._names.pop(happened.watch, ()):
                        del self._watches[directory]
                elif happened.name:
                    events.add((happened.watch, happened.name))
        except OSError as error:
            self.note = f"watching failed: {error}"
            self.stop()
        paths = [
            f"{directory.rstrip('/')}/{os.fsdecode(name)}"
            for watch, name in events
            for directory in self._names.get(watch, ())
        ]
        if paths:
            self._alarm.ring(*paths)

    def stop(self) -> None:
        """Watch nothing any more."""
        inotify, self._inotify = self._inotify, None
        self._watches, self._names = {}, {}
        if inotify is not None:
            self._alarm.ignore(inotify.descriptor)
            with contextlib.suppress(OSError):
                inotify.close()

    def _started(self) -> Inotify | None:
        try:
            self._inotify = Inotify()
        except OSError as error:  # no instance left, or none on this system
            self.note = f"watching cannot start: {error}"
            return None
        self._alarm.listen(self._inotify.descriptor, self.hear)
        return self._inotify

    def _watch(self, inotify: Inotify, directory: str) -> None:
        inode = _inode(directory)
        if inode is None:
            return  # appears later; the next walk asks again
        try:
            watch = inotify.add(directory)
            self._watches[directory] = watch, inode
            self._names.setdefault(watch, []).append(directory)
        except OSError as error:  # the limit of watches, or the directory went away
            if directory not in self._failed:
                self._failed.add(directory)
                self.note = f"{directory} cannot be watched: {error}"

    def _unwatch(self, inotify: Inotify, directory: str) -> None:
        watch, _ = self._watches.pop(directory)
        names = self._names[watch]
        names.remove(directory)
        if not names:
            del self._names[watch]
            inotify.remove(watch)


def _inode(directory: str) -> int | None:
    try:
        return os.stat(directory).st_ino
    except OSError:
        return None


def _milliseconds(seconds: float) -> int:
    return math.ceil(1000 * max(0.0, seconds))
