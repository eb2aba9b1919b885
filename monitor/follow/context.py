"""What the sources of one mount share: calls, settings, descriptors, claims, counts."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from monitor.follow.descriptors import Descriptors
from monitor.follow.identity import Verified, verify
from monitor.follow.messages import Former, Position
from monitor.follow.os_layer import OsLayer
from monitor.follow.registry import Registry
from monitor.follow.settings import FollowSettings

_GOLDEN = 0.6180339887498949  # multiples of it, modulo 1, fill the interval evenly however many there are


@dataclass
class Context:
    """One a mount, used by its thread only (the registry is shared and locks itself)."""

    os_layer: OsLayer
    settings: FollowSettings
    descriptors: Descriptors
    registry: Registry
    is_local: Callable[[int], bool]
    """By st_dev: may one look at the size be believed?"""
    spread_seconds: float = 0.0
    """Time in which every file of the mount can be looked at once within the budget of looks."""
    stats: int = 0
    phases: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def phase(self) -> float:
        """0 to 1: the next file's, far from those of the files before."""
        self.phases += 1
        return self.phases * _GOLDEN % 1.0

    def stat(self, path: str) -> os.stat_result:
        """Counted: the budget is in calls like this one."""
        self.stats += 1
        return self.os_layer.stat(path)

    def open_as(self, path: str, identity: tuple[int, int]) -> int | None:
        """A fresh descriptor of the path, if it still names that file."""
        descriptor = self.descriptors.open(path)
        try:
            self.stats += 1
            status = self.os_layer.fstat(descriptor)
        except OSError:
            self.descriptors.discard(descriptor)
            raise
        if (status.st_dev, status.st_ino) == identity:
            return descriptor
        self.descriptors.discard(descriptor)
        return None

    def pread(self, descriptor: int, count: int, offset: int) -> bytes:
        """Of a descriptor in no pool yet, so it is closed if the file cannot be read."""
        try:
            return self.os_layer.pread(descriptor, count, offset)
        except OSError:
            self.descriptors.discard(descriptor)
            raise

    def verify(self, descriptor: int, mark: Former | Position) -> Verified:
        """As `identity.verify`; the descriptor is closed if the file cannot be read."""
        try:
            return verify(self.os_layer, descriptor, mark)
        except OSError:
            self.descriptors.discard(descriptor)
            raise

    def find_renamed(self, path: str, mark: Former | Position) -> tuple[int, os.stat_result, Verified] | None:
        """The file of the mark under another name beside `path`: what a rename while nobody looked left unread."""
        directory, _, name = self.os_layer.realpath(path).rpartition("/")
        try:
            entries = list(self.os_layer.scandir(directory or "/"))
        except FileNotFoundError:
            return None
        for entry in entries:
            if entry.inode != mark.inode or entry.name == name or entry.kind != "file":
                continue
            descriptor = self.descriptors.open(f"{directory}/{entry.name}")
            verified = self.verify(descriptor, mark)
            if not verified.problem:
                return descriptor, self.os_layer.fstat(descriptor), verified
            self.descriptors.discard(descriptor)
        return None

    def count_error(self, error: OSError) -> None:
        """For the metrics, by name."""
        self.errors[error_name(error)] += 1


def error_name(error: OSError) -> str:
    """ESTALE and its like; the number if it has no name here."""
    return errno.errorcode.get(error.errno or 0, str(error.errno))
