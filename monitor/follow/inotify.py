"""inotify(7) by ctypes: one descriptor for all directories of a reader, read in the reader's own thread.

watchdog spends three threads and three wakings on each line that somebody writes, which was a fifth of the daemon's
time beside 50 runs. Only Linux has these calls; elsewhere starting fails and the reader polls.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

_MODIFY, _ATTRIB, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x4, 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF = 0x400, 0x800
_OVERFLOW, _IGNORED, _IS_DIRECTORY = 0x4000, 0x8000, 0x40000000
_ONLY_DIRECTORY = 0x01000000
_MASK = _MODIFY | _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF | _ONLY_DIRECTORY
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
        self._calls: Any = ctypes.CDLL(None, use_errno=True)
        try:
            made = self._calls.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        except AttributeError as error:
            raise OSError(errno.ENOSYS, "this system has no inotify") from error
        self.descriptor: int = self._checked(made)
        """To be waited for: readable when something has happened."""

    def add(self, directory: str) -> int:
        """Watch a directory; the number is the one it had if it is watched already, under whatever name."""
        return self._checked(self._calls.inotify_add_watch(self.descriptor, os.fsencode(directory), _MASK))

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
        place = 0
        while place + _HEAD.size <= len(block):
            watch, mask, _, length = _HEAD.unpack_from(block, place)
            place += _HEAD.size + length
            if mask & _OVERFLOW:
                yield Happened(watch, b"", lost=True)
            elif mask & _IGNORED:
                yield Happened(watch, b"", ended=True)
            elif not mask & _IS_DIRECTORY:
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
