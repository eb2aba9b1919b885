"""State shared by followed files: claims on files over all mounts; calls, open files and counts of one mount."""

import errno
import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import TypeAlias

from msgspec import Struct, field

from megatron_monitor.follow.messages import Fingerprint, Message, Position, SourceId
from megatron_monitor.follow.os_layer import OpenFile, OsLayer
from megatron_monitor.follow.settings import FollowSettings

_MAX_LEFT_FILES = 65_536
_MAX_FINGERPRINTS_PER_FILE = 64
Identity: TypeAlias = tuple[int, int]
"""Device and inode."""


class DuplicateFileError(Exception):
    """Another source reads this file, or is about to resume it."""


class FileChangedError(Exception):
    """The path now names another file than at the last stat: look again."""


class Registry:
    """Which source reads which file. Holds claims (by device and inode), positions to be resumed (by inode), and
    fingerprints of files that were read and left. Any thread may call.
    """

    def __init__(self, resume: Mapping[SourceId, Position]) -> None:
        self._lock = threading.Lock()
        self._claims: dict[Identity, SourceId] = {}
        self._reserved: dict[int, tuple[SourceId, Position]] = {}
        self._left: OrderedDict[int, tuple[Fingerprint, ...]] = OrderedDict()
        for position in resume.values():
            for former in position.former:
                self.add_left_file(former)

    def claim(self, identity: Identity, source: SourceId) -> bool:
        """Claim the file. Returns True if the source may read it."""
        with self._lock:
            return self._claims.setdefault(identity, source) == source

    def release(self, identity: Identity, source: SourceId) -> None:
        """Give the source's claim on the file back."""
        with self._lock:
            if self._claims.get(identity) == source:
                del self._claims[identity]

    def reserve(self, position: Position, source: SourceId) -> None:
        """Keep the file of this position for the source, under whatever name it is found first."""
        with self._lock:
            self._reserved[position.inode] = source, position

    def reserved(self, inode: int, source: SourceId) -> Position | None:
        """Return the position that another source has yet to resume in a file with that inode; verify it."""
        with self._lock:
            owner, position = self._reserved.get(inode, (source, None))
            return position if owner != source else None

    def unreserve(self, position: Fingerprint | None, source: SourceId) -> None:
        """End the reservation: the source has resumed or given up."""
        with self._lock:
            if position is not None and self._reserved.get(position.inode, ("",))[0] == source:
                del self._reserved[position.inode]
                self._reserved = self._reserved or {}  # an emptied dict keeps its memory: some MB after 100,000 files

    def add_left_file(self, former: Fingerprint) -> None:
        """Remember how far a file that is left was read: under another name the rest of the file is read."""
        same = former.head_hash, former.offset, former.tail_hash
        with self._lock:
            kept = self._left.pop(former.inode, ())
            others = [mark for mark in kept if (mark.head_hash, mark.offset, mark.tail_hash) != same]
            self._left[former.inode] = (*others, former)[-_MAX_FINGERPRINTS_PER_FILE:]
            if len(self._left) > _MAX_LEFT_FILES:
                self._left.popitem(last=False)

    def left_files(self, inode: int) -> list[Fingerprint]:
        """Return fingerprints of left files with that inode, largest offset first; verify, as inodes are reused."""
        with self._lock:
            return sorted(self._left.get(inode, ()), key=lambda mark: -mark.offset)


class OpenFiles:
    """The open files of one mount, one per owner; the least recently used closes first. For one thread."""

    def __init__(self, os_layer: OsLayer, limit: int) -> None:
        self._os, self._limit = os_layer, limit
        self._open: OrderedDict[Hashable, OpenFile] = OrderedDict()

    def open(self, path: str) -> OpenFile:
        """Open the path. If the process has no descriptor left, half of the open files are closed first."""
        try:
            descriptor = self._os.open(path)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._open:
                raise
            for owner in list(self._open)[: (len(self._open) + 1) // 2]:
                del self._open[owner]
            descriptor = self._os.open(path)
        return OpenFile(self._os, descriptor)

    def get(self, owner: Hashable) -> OpenFile | None:
        """Return the owner's file; None if it is not open."""
        file = self._open.get(owner)
        if file is not None:
            self._open.move_to_end(owner)
        return file

    def put(self, owner: Hashable, file: OpenFile) -> None:
        """Keep this file open for the owner, in place of the one before."""
        self.drop(owner)
        while len(self._open) >= self._limit:
            self._open.popitem(last=False)
        self._open[owner] = file

    def drop(self, owner: Hashable) -> None:
        """Close the owner's file."""
        self._open.pop(owner, None)

    def drop_all(self) -> None:
        """Close every file."""
        self._open.clear()


class MountContext(Struct):
    """What the followed files of one mount share. Used by its thread only; the registry has a lock."""

    os_layer: OsLayer
    settings: FollowSettings
    files: OpenFiles
    registry: Registry
    is_local: Callable[[int], bool]  # returns True for an st_dev on a local file system, where one stat is reliable
    mount: str  # its mount point
    pending: list[Message] = field(default_factory=list)  # messages of the look at a file, for the loop
    spread_seconds: float = 0.0  # seconds in which every file of the mount can be looked at once within the budget
    stats: int = 0  # calls that asked for attributes since the last walk
    errors: Counter[str] = field(default_factory=Counter)  # I/O errors by name since the last walk
    _devices: dict[str, int] = field(default_factory=dict)

    def stat(self, path: str) -> os.stat_result:
        """Return the attributes of the path, and count the call for the budget."""
        self.stats += 1
        return self.os_layer.stat(path)

    def directory_device(self, path: str, file_device: int) -> int:
        """Return the st_dev of the directory that holds the file, links followed.

        It is mostly the device of the file; then one call per pass and directory is enough, because many files share
        few directories.
        """
        directory = path.rpartition("/")[0] or "/"
        if directory not in self._devices:
            self._devices[directory] = self.stat(self.os_layer.realpath(directory)).st_dev
        if file_device == self._devices[directory] or not self.os_layer.is_link(path):
            return self._devices[directory]
        return self.stat(os.path.dirname(self.os_layer.realpath(path))).st_dev

    def next_pass(self, files: int) -> None:
        """Begin a pass over that many files: forget devices of the pass before, spread the looks over the budget."""
        self._devices.clear()
        self.spread_seconds = files / self.settings.stats_per_second

    def open_as(self, path: str, identity: Identity) -> OpenFile:
        """Open the path. Raises FileChangedError if it no longer names that file."""
        file = self.files.open(path)
        self.stats += 1
        status = file.stat()
        if (status.st_dev, status.st_ino) != identity:
            raise FileChangedError
        return file

    def count_error(self, error: OSError) -> None:
        """Count the error for the metrics, by its name (ESTALE), or by its number if it has no name."""
        self.errors[errno.errorcode.get(error.errno or 0, str(error.errno))] += 1
