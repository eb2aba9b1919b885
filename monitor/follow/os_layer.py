"""The few system calls of the follower, in one place, so that tests can make them fail.

Nothing here decides anything. Paths are str with undecodable bytes escaped (os.fsdecode), as everywhere in Python.
"""

import errno
import os
from collections.abc import Iterator
from typing import NamedTuple


class Entry(NamedTuple):
    """A directory entry: kind as the directory itself gives it, without a look at the file."""

    name: str
    kind: str
    """file, directory, link or other."""
    inode: int


class OsLayer:
    """The real calls."""

    def stat(self, path: str) -> os.stat_result:
        """Attributes of what the path names, links followed."""
        return os.stat(path)

    def open(self, path: str) -> int:
        """A descriptor to read from. Never waits: a FIFO that took the file's place would block for ever."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)

    def close(self, descriptor: int) -> None:
        """Give the descriptor back."""
        os.close(descriptor)

    def fstat(self, descriptor: int) -> os.stat_result:
        """Attributes of the open file."""
        return os.fstat(descriptor)

    def pread(self, descriptor: int, count: int, offset: int) -> bytes:
        """At most `count` bytes from `offset`; less at the end of the file."""
        return os.pread(descriptor, count, offset)

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

    def is_link(self, path: str) -> bool:
        """Is the path's last name a link?"""
        return os.path.islink(path)

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
