"""inotify(7) by watchdog's bindings: one descriptor for all directories of a reader, read in the reader's own thread.

Its Observer spends three threads and three wakings on each line that somebody writes, which was a fifth of the daemon's
time beside 50 runs: what it is built on serves us without it. Elsewhere than on Linux starting fails, the reader polls.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

_WATCHED = (
    "MODIFY", "ATTRIB", "MOVED_FROM", "MOVED_TO", "CREATE", "DELETE", "DELETE_SELF", "MOVE_SELF", "ONLYDIR",
)  # fmt: skip
_HEAD = struct.Struct("iIII")  # watch, mask, cookie, length of the name that follows
_BUFFER = 64 * 1024
_LIMITS = {errno.ENOSPC: "inotify watch limit reached", errno.EMFILE: "inotify instance limit reached"}


class Happened(NamedTuple):
    """`name` is that of a file in the directory, empty where the directory itself changed."""

    watch: int
    name: bytes
    lost: bool = False
    """The kernel's queue overflowed: anything may have happened."""
    ended: bool = False
    """The kernel has ended this watch: its directory is gone."""


class Inotify:
    """One instance. Every method may raise OSError, with a text for people."""

    def __init__(self) -> None:
        try:
            from watchdog.observers import inotify_c  # a single reading wakes nobody
        except (ImportError, AttributeError, RuntimeError, OSError) as error:
            raise OSError(errno.ENOSYS, "this system has no inotify") from error
        self._calls: Any = inotify_c
        self._flags: Any = inotify_c.InotifyConstants
        self._mask = reduce(or_, (getattr(self._flags, f"IN_{name}") for name in _WATCHED))
        self.descriptor: int = self._checked(inotify_c.inotify_init())
        """To be waited for: readable when something has happened."""
        os.set_blocking(self.descriptor, False)
        os.set_inheritable(self.descriptor, False)

    def add(self, directory: str) -> int:
        """Watch a directory; the number is the one it had if it is watched already, under whatever name."""
        return self._checked(self._calls.inotify_add_watch(self.descriptor, os.fsencode(directory), self._mask))

    def remove(self, watch: int) -> None:
        """No more of this directory."""
        with contextlib.suppress(OSError):  # it ended by itself when the directory was removed
            self._checked(self._calls.inotify_rm_watch(self.descriptor, watch))

    def read(self) -> Iterator[Happened]:
        """What has happened to files since the last call, and to the watches."""
        try:
            block = os.read(self.descriptor, _BUFFER)
        except BlockingIOError:
            return
        flags, place = self._flags, 0
        while place + _HEAD.size <= len(block):
            watch, mask, _, length = _HEAD.unpack_from(block, place)
            place += _HEAD.size + length
            if mask & flags.IN_Q_OVERFLOW:
                yield Happened(watch, b"", lost=True)
            elif mask & flags.IN_IGNORED:
                yield Happened(watch, b"", ended=True)
            elif not mask & flags.IN_ISDIR:
                yield Happened(watch, block[place - length : place].rstrip(b"\0"))

    def close(self) -> None:
        """End all watches."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    @staticmethod
    def _checked(result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, _LIMITS.get(number) or os.strerror(number))
        return result
