"""The open files of one mount: a bounded pool, least recently used first out."""

from __future__ import annotations

import contextlib
import errno
from collections import OrderedDict
from collections.abc import Hashable

from monitor.follow.os_layer import OsLayer


class Descriptors:
    """At most `limit` descriptors, one an owner. One thread only."""

    def __init__(self, os_layer: OsLayer, limit: int) -> None:
        self._os = os_layer
        self._limit = limit
        self._open: OrderedDict[Hashable, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def open(self, path: str) -> int:
        """A fresh descriptor, the caller's. When the process has none left, half of the pool is given up."""
        try:
            return self._os.open(path)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._open:
                raise
            for owner in list(self._open)[: (len(self._open) + 1) // 2]:
                self.close(owner)
            return self._os.open(path)

    def get(self, owner: Hashable) -> int | None:
        """The owner's descriptor, if it is still held."""
        descriptor = self._open.get(owner)
        if descriptor is not None:
            self._open.move_to_end(owner)
        return descriptor

    def put(self, owner: Hashable, descriptor: int) -> None:
        """The owner reads on from this one; its old one is closed."""
        self.close(owner)
        while len(self._open) >= self._limit:
            self.close(next(iter(self._open)))
        self._open[owner] = descriptor

    def close(self, owner: Hashable) -> None:
        """Give the owner's descriptor back."""
        descriptor = self._open.pop(owner, None)
        if descriptor is not None:
            self.discard(descriptor)

    def discard(self, descriptor: int) -> None:
        """Close a descriptor that is in no pool. A stale handle fails even here, and is closed all the same."""
        with contextlib.suppress(OSError):
            self._os.close(descriptor)

    def close_all(self) -> None:
        """Give everything back."""
        for owner in list(self._open):
            self.close(owner)
