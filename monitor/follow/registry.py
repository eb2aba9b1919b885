"""Which source reads which file, over all mounts: each file once, whatever its names."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable

from monitor.follow.messages import Former, Position, SourceId

_FORMER_FILES = 4096  # bounds the memory; a file rotated that long ago has long been compressed or deleted


class Registry:
    """Claims on files (device and inode); files left behind and to be resumed (by inode). Any thread may ask."""

    def __init__(self, former: Iterable[Former] = ()) -> None:
        self._lock = threading.Lock()
        self._claims: dict[tuple[int, int], SourceId] = {}
        self._former: OrderedDict[int, Former] = OrderedDict()
        self._reserved: dict[int, tuple[SourceId, Position]] = {}
        for one in former:
            self.remember(one)

    def claim(self, identity: tuple[int, int], source: SourceId) -> bool:
        """True if the file is this source's to read."""
        with self._lock:
            return self._claims.setdefault(identity, source) == source

    def release(self, identity: tuple[int, int], source: SourceId) -> None:
        """The source reads this file no more."""
        with self._lock:
            if self._claims.get(identity) == source:
                del self._claims[identity]

    def reserve(self, position: Position, source: SourceId) -> None:
        """The file of this position is the source's to resume, under whatever name it is found first."""
        with self._lock:
            self._reserved[position.inode] = source, position

    def settle(self, source: SourceId) -> None:
        """The source has begun: what it did not resume is free."""
        with self._lock:
            self._reserved = {inode: one for inode, one in self._reserved.items() if one[0] != source}

    def reserved(self, inode: int, source: SourceId) -> Position | None:
        """The position that another source has yet to resume in a file with that inode. To be verified."""
        with self._lock:
            owner, position = self._reserved.get(inode, (source, None))
            return position if owner != source else None

    def remember(self, former: Former) -> None:
        """The file was read up to there and left."""
        with self._lock:
            self._former.pop(former.inode, None)
            self._former[former.inode] = former
            while len(self._former) > _FORMER_FILES:
                self._former.popitem(last=False)

    def former(self, inode: int) -> Former | None:
        """What was read of a file with that inode, if it was left. To be verified: inodes are used again."""
        with self._lock:
            return self._former.get(inode)
