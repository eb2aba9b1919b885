"""The few system calls of the follower, in one place, so that tests can make them fail.

Nothing here decides anything. Paths are str with undecodable bytes escaped (os.fsdecode).
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import NamedTuple


class Entry(NamedTuple):
    """A directory entry; `kind` (file, directory, link or other) is what the directory states, without a stat."""

    name: str
    kind: str
    inode: int


class OsLayer:
    """The real calls; paths are followed through links."""

    stat = staticmethod(os.stat)
    close = staticmethod(os.close)
    fstat = staticmethod(os.fstat)
    pread = staticmethod(os.pread)
    is_link = staticmethod(os.path.islink)

    def realpath(self, path: str) -> str:
        """Return the path with every link resolved, as far as it exists."""
        return os.path.realpath(path)

    def open(self, path: str) -> int:
        """Return a descriptor to read from. Never waits: a FIFO in place of the file would block for ever."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)

    def scandir(self, path: str) -> Iterator[Entry]:
        """Yield the entries of a directory in its own order."""
        with os.scandir(path) as entries:
            for entry in entries:
                yield Entry(entry.name, _kind(entry), entry.inode())


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_file(follow_symlinks=False):
        return "file"
    if entry.is_symlink():
        return "link"
    return "directory" if entry.is_dir(follow_symlinks=False) else "other"


class OpenFile:
    """An open file. It closes when no object refers to it any more."""

    __slots__ = ("_descriptor", "_os")

    def __init__(self, os_layer: OsLayer, descriptor: int) -> None:
        self._os, self._descriptor = os_layer, descriptor

    def stat(self) -> os.stat_result:
        """Return the file's attributes."""
        return self._os.fstat(self._descriptor)

    def pread(self, count: int, offset: int) -> bytes:
        """Return at most `count` bytes from `offset` on; fewer at the end of the file."""
        return self._os.pread(self._descriptor, count, offset)

    def next_data(self, offset: int) -> int | None:
        """Return the offset of the first byte at or after `offset` outside a hole; None if only a hole is left."""
        try:
            return os.lseek(self._descriptor, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):  # a file system without support for holes
                return offset
            raise

    def __del__(self) -> None:
        with contextlib.suppress(OSError):  # close fails with ESTALE on a stale handle, and still closes it
            self._os.close(self._descriptor)


def stat_stamp(status: os.stat_result) -> int:
    """Return a number that changes with each write, as far as the time stamps are fine enough.

    A hash, because one is kept for each file. Two states of a file share a number with a probability of 10^-18.
    """
    return hash((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
