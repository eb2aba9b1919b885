"""The few system calls of the follower, in one place, so that tests can make them fail.

Nothing here decides anything. Paths are str with undecodable bytes escaped (os.fsdecode), as everywhere in Python.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

Stamp: TypeAlias = int
"""What changes when somebody writes: a hash of it, for it is kept of each file. Risk left: one change in 10^18."""


class Entry(NamedTuple):
    """A directory entry: kind as the directory itself gives it, without a look at the file."""

    name: str
    kind: str
    """file, directory, link or other."""
    inode: int


class OsLayer:
    """The real calls."""

    stat = staticmethod(os.stat)
    """Attributes of what the path names, links followed."""
    close = staticmethod(os.close)
    """Give the descriptor back."""
    fstat = staticmethod(os.fstat)
    """Attributes of the open file."""
    pread = staticmethod(os.pread)
    """At most so many bytes of a descriptor from an offset; less at the end of the file."""
    is_link = staticmethod(os.path.islink)
    """Is the path's last name a link?"""

    def open(self, path: str) -> int:
        """A descriptor to read from. Never waits: a FIFO that took the file's place would block for ever."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)

    def next_data(self, descriptor: int, offset: int) -> int | None:
        """Offset of the first byte at or after `offset` that is in no hole; None if only a hole is left.

        A file system that knows no holes answers `offset` itself.
        """
        try:
            return os.lseek(descriptor, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
                return offset
            raise

    def scandir(self, path: str) -> Iterator[Entry]:
        """The entries of a directory, as they come."""
        with os.scandir(path) as entries:
            for entry in entries:
                yield Entry(entry.name, _kind(entry), entry.inode())

    def realpath(self, path: str) -> str:
        """The path with every link resolved, as far as it exists."""
        return os.path.realpath(path)


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_file(follow_symlinks=False):
        return "file"
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "directory"
    return "other"


class OpenFile:
    """A file to read from. It is closed when nobody holds it any more."""

    __slots__ = ("_number", "_os")

    def __init__(self, os_layer: OsLayer, number: int) -> None:
        self._os, self._number = os_layer, number

    def stat(self) -> os.stat_result:
        """Its attributes."""
        return self._os.fstat(self._number)

    def pread(self, count: int, offset: int) -> bytes:
        """At most so many bytes from an offset; less at the end of the file."""
        return self._os.pread(self._number, count, offset)

    def next_data(self, offset: int) -> int | None:
        """As of OsLayer."""
        return self._os.next_data(self._number, offset)

    def __del__(self) -> None:
        with contextlib.suppress(OSError):  # a stale handle fails even here, and is closed all the same
            self._os.close(self._number)


def stamp(seen: os.stat_result) -> Stamp:
    """What changes when somebody writes, as far as the file system's clock tells."""
    return hash((seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns))
