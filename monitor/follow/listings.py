"""What directories held when they were last listed: one whose time stamp still stands is not listed again.

For local file systems only: stamps and `wall` come from one clock, and a change of names moves the directory's stamp.
"""

from __future__ import annotations

import os
from typing import NamedTuple, TypeAlias

from monitor.follow.os_layer import Entry
from monitor.follow.patterns import States

Key: TypeAlias = tuple[object, str]
"""A job and a directory that it walks."""
_Stamp: TypeAlias = tuple[int, int, int, int]


class Listing(NamedTuple):
    """What of a directory is looked at on each walk: its plain files are followed since they were first found."""

    entries: tuple[tuple[Entry, States], ...]
    """Directories, links and oddities, each with the state of the pattern below it."""
    stamp: _Stamp
    listed_at: float
    """Monotonic seconds."""


class Listings:
    """By job and directory. One thread only."""

    def __init__(self, settle_seconds: float, most_seconds: float) -> None:
        """A stamp younger than `settle_seconds` may hide a change in its tick; a listing is good for `most_seconds`."""
        self._settle_seconds = settle_seconds
        self._most_seconds = most_seconds
        self._known: dict[Key, Listing] = {}

    def unchanged(self, key: Key, status: os.stat_result, now: float) -> Listing | None:
        """The listing, if it still holds."""
        known = self._known.get(key)
        if known is None or known.stamp != _stamp(status) or now - known.listed_at > self._most_seconds:
            return None
        return known

    def keep(
        self, key: Key, status: os.stat_result, now: float, wall: float, entries: list[tuple[Entry, States]]
    ) -> None:
        """Listed after `status` was asked for at `now` (monotonic) and `wall` (Unix seconds)."""
        if wall - status.st_mtime > self._settle_seconds:
            self._known[key] = Listing(tuple(entries), _stamp(status), now)
        else:
            self._known.pop(key, None)

    def forget(self, key: Key) -> None:
        """The directory is not there, or cannot be read."""
        self._known.pop(key, None)


def _stamp(status: os.stat_result) -> _Stamp:
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns
