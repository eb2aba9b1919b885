"""What sources share: the claims on files over all mounts; calls, open files and counts of one mount."""

import errno
import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct, field

from megatron_monitor.follow.messages import Fingerprint, Message, Position, SourceId
from megatron_monitor.follow.os_layer import OpenFile, OsLayer
from megatron_monitor.follow.settings import FollowSettings

_MOST = 65_536  # inodes of files that were left: bounds the memory
_CANDIDATES = 64  # proofs that are tried at one file
Identity: TypeAlias = tuple[int, int]
"""Device and inode."""


class Duplicate(Exception):  # noqa: N818 - a finding
    """Another source reads this file, or is about to resume it."""


class Changed(Exception):  # noqa: N818 - a finding
    """The path names another file than it did a moment ago: look again."""


class Registry:
    """Claims on files (device and inode); files to be resumed, and files that were read to their ends and left, by
    inode. Any thread may ask.
    """

    def __init__(self, resume: Mapping[SourceId, Position]) -> None:
        self._lock = threading.Lock()
        self._claims: dict[Identity, SourceId] = {}
        self._reserved: dict[int, tuple[SourceId, Position]] = {}
        self._left: OrderedDict[int | str, tuple[Fingerprint, ...]] = OrderedDict()
        for source, position in resume.items():
            for one in position.former:
                self.remember(one, source)

    def claim(self, identity: Identity, source: SourceId) -> bool:
        """True if the file is this source's to read."""
        with self._lock:
            return self._claims.setdefault(identity, source) == source

    def release(self, identity: Identity, source: SourceId) -> None:
        """The source reads this file no more."""
        with self._lock:
            if self._claims.get(identity) == source:
                del self._claims[identity]

    def reserve(self, position: Position, source: SourceId) -> None:
        """The file of this position is the source's to resume, under whatever name it is found first."""
        with self._lock:
            self._reserved[position.inode] = source, position

    def reserved(self, inode: int, source: SourceId) -> Position | None:
        """The position that another source has yet to resume in a file with that inode. To be verified."""
        with self._lock:
            owner, position = self._reserved.get(inode, (source, None))
            return position if owner != source else None

    def unreserve(self, position: Position | None, source: SourceId) -> None:
        """The source has begun, or has given up: what it did not resume is free."""
        with self._lock:
            if position is not None and self._reserved.get(position.inode, ("",))[0] == source:
                del self._reserved[position.inode]
                self._reserved = self._reserved or {}  # an emptied table keeps its memory, some MB of 100,000

    def remember(self, former: Fingerprint, source: SourceId) -> None:
        """The source has read the file up to there and left it: under another name it is read on, not again. What was
        cut has no inode any more (0): a copy of it is known by its directory and its first bytes.
        """
        key, same = former.inode or _key(source, former.head_hash), (former.head_hash, former.offset, former.tail_hash)
        with self._lock:
            kept = self._left.pop(key, ())
            others = [one for one in kept if (one.head_hash, one.offset, one.tail_hash) != same]
            self._left[key] = (*others, former)[-_CANDIDATES:]
            if len(self._left) > _MOST:
                self._left.popitem(last=False)

    def left(self, inode: int) -> list[Fingerprint]:
        """What was read of files with that inode, the longest first. To be verified: inodes are used again."""
        with self._lock:
            return sorted(self._left.get(inode, ()), key=lambda one: -one.offset)

    def truncated(self, source: SourceId, head_hash: str) -> Sequence[Fingerprint]:
        """What was read of logs beside the source that began with these bytes, and were cut."""
        with self._lock:
            return self._left.get(_key(source, head_hash), ())


def _key(source: SourceId, head_hash: str) -> str:
    return f"{source.rpartition('/')[0]}/{head_hash}"


class OpenFiles:
    """Of one mount, one an owner: at most `limit`, least recently used first out. One thread only."""

    def __init__(self, os_layer: OsLayer, limit: int) -> None:
        self._os = os_layer
        self._limit = limit
        self._open: OrderedDict[Hashable, OpenFile] = OrderedDict()

    def open(self, path: str) -> OpenFile:
        """A fresh one, the caller's. When the process has no descriptor left, half of the pool is given up."""
        try:
            number = self._os.open(path)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._open:
                raise
            for owner in list(self._open)[: (len(self._open) + 1) // 2]:
                del self._open[owner]
            number = self._os.open(path)
        return OpenFile(self._os, number)

    def get(self, owner: Hashable) -> OpenFile | None:
        """The owner's, if it is still held."""
        file = self._open.get(owner)
        if file is not None:
            self._open.move_to_end(owner)
        return file

    def put(self, owner: Hashable, file: OpenFile) -> None:
        """The owner reads on from this one."""
        self.drop(owner)
        while len(self._open) >= self._limit:
            self._open.popitem(last=False)
        self._open[owner] = file

    def drop(self, owner: Hashable) -> None:
        """The owner's is held no more."""
        self._open.pop(owner, None)

    def drop_all(self) -> None:
        """Nor anybody's."""
        self._open.clear()


class Context(Struct):
    """One a mount, used by its thread only (the registry is shared and locks itself)."""

    os_layer: OsLayer
    settings: FollowSettings
    files: OpenFiles
    registry: Registry
    is_local: Callable[[int], bool]
    """By st_dev: may one look at the size be believed?"""
    mount: str
    """Its mount point."""
    pending: list[Message] = field(default_factory=list)
    """What the look that is under way has found, for the loop."""
    spread_seconds: float = 0.0
    """Time in which every file of the mount can be looked at once within the budget of looks."""
    stats: int = 0
    """Calls that ask for attributes, since the last walk."""
    errors: Counter[str] = field(default_factory=Counter)
    """I/O errors by name, since the last walk."""
    _devices: dict[str, int] = field(default_factory=dict)

    def emit(self, message: Message) -> None:
        """The loop is to have it when the look is over."""
        self.pending.append(message)

    def take_pending(self) -> Sequence[Message]:
        """What was told since this was asked last."""
        pending = self.pending
        if pending:
            self.pending = []
        return pending

    def stat(self, path: str) -> os.stat_result:
        """Counted: the budget is in calls like this one."""
        self.stats += 1
        return self.os_layer.stat(path)

    def directory_device(self, path: str, known: int) -> int:
        """st_dev of the directory that holds the file itself, links followed. It mostly is that of the file, `known`;
        then it is asked for once a pass and directory: a hundred thousand files lie in few.
        """
        directory = path.rpartition("/")[0] or "/"
        if directory not in self._devices:
            self._devices[directory] = self.stat(self.os_layer.realpath(directory)).st_dev
        if known == self._devices[directory] or not self.os_layer.is_link(path):
            return self._devices[directory]
        return self.stat(os.path.dirname(self.os_layer.realpath(path))).st_dev

    def next_pass(self, sources: int) -> None:
        """What was asked before is old; every one of so many files can be looked at once within the budget."""
        self._devices.clear()
        self.spread_seconds = sources / self.settings.stats_per_second

    def open_as(self, path: str, identity: Identity) -> OpenFile:
        """The path, opened. Raises Changed if it no longer names that file."""
        file = self.files.open(path)
        self.stats += 1
        status = file.stat()
        if (status.st_dev, status.st_ino) != identity:
            raise Changed
        return file

    def count_error(self, error: OSError) -> None:
        """For the metrics, by name: ESTALE and its like; the number if it has no name here."""
        self.errors[errno.errorcode.get(error.errno or 0, str(error.errno))] += 1
