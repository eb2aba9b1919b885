"""The files that were read to their ends and left: what is found of them again, under whatever name, is not read again.

A file that was renamed is known by its inode. A copy (copytruncate) has another: it is known by its contents, among
those of the log whose name its own was made from. The same words under a name of their own are another job that said
the same, such as one more launch that fails by the same error.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from monitor.follow.content import is_strong
from monitor.follow.messages import Fingerprint, Position, SourceId

_MOST = 65_536  # of all sources: bounds the memory, to some 30 MB
_CANDIDATES = 64  # proofs that are tried at one file
_Key: TypeAlias = tuple[int, str, int, str]  # inode, head, offset, tail


class FinishedFiles:
    """By inode and by source. Any thread may ask."""

    def __init__(self, resume: Mapping[SourceId, Position]) -> None:
        self._lock = threading.Lock()
        self._source: OrderedDict[_Key, tuple[SourceId, Fingerprint]] = OrderedDict()
        self._of_inode: dict[int, dict[_Key, Fingerprint]] = {}
        self._of_source: dict[SourceId, dict[_Key, Fingerprint]] = {}
        for source, position in resume.items():
            for one in position.former:
                self.remember(one, source)

    def remember(self, former: Fingerprint, source: SourceId) -> None:
        """The source has read the file up to there and left it."""
        key = former.inode, former.head_hash, former.offset, former.tail_hash
        with self._lock:
            self._forget(key)
            self._source[key] = source, former
            self._of_inode.setdefault(former.inode, {})[key] = former
            self._of_source.setdefault(source, {})[key] = former
            while len(self._source) > _MOST:
                self._forget(next(iter(self._source)))

    def renamed(self, inode: int, size: int) -> list[Fingerprint]:
        """What was read of files with that inode. To be verified: inodes are used again."""
        with self._lock:
            return _likeliest(self._of_inode.get(inode, {}).values(), size)

    def copied(self, sources: Iterable[SourceId], size: int) -> list[Fingerprint]:
        """What these sources have left, where it proves a file with another inode. To be verified."""
        with self._lock:
            found = [one for source in sources for one in self._of_source.get(source, {}).values()]
        return _likeliest((one for one in found if is_strong(one)), size)

    def _forget(self, key: _Key) -> None:
        known = self._source.pop(key, None)
        if known is None:
            return
        source, former = known
        of_inode, of_source = self._of_inode[former.inode], self._of_source[source]
        del of_inode[key], of_source[key]
        if not of_inode:
            del self._of_inode[former.inode]
        if not of_source:
            del self._of_source[source]


def _likeliest(found: Iterable[Fingerprint], size: int) -> list[Fingerprint]:
    """First that which was left at this size: most were read to their ends. The size may be old, as clients see it."""
    return sorted(found, key=lambda one: abs(one.offset - size))[:_CANDIDATES]
