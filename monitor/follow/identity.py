"""What proves that a file still begins with the bytes that were read from it.

Device and inode are only a hint: inodes are reused, change on a remount, and copytruncate keeps them. The proof is the
head (the first bytes, up to 1024, growing with the file) and the tail (the last 256 before the offset). Two logs with
the same banner share a head, hardly ever both. Neither holds a NUL: a hole may be filled later, text is not rewritten.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from monitor.follow.messages import Former, Position
from monitor.follow.os_layer import OsLayer

HEAD_BYTES = 1024
TAIL_BYTES = 256
ENOUGH_BYTES = 64
"""Another inode is taken for the same content only if the proof covers so much: less agrees by chance."""


def digest(data: bytes) -> str:
    """A short hash that no two texts share by chance."""
    import hashlib  # it loads OpenSSL, and one reading to the end proves no position

    return hashlib.blake2b(data, digest_size=16).hexdigest()


def grown_head(head: bytes, offset: int, data: bytes) -> bytes:
    """The head after `data` was read at `offset`. It ends for good at the first NUL, hole or 1024 bytes."""
    if len(head) != offset or offset >= HEAD_BYTES:
        return head
    return head + data[: HEAD_BYTES - offset].partition(b"\0")[0]


def tail_of(data: bytes) -> bytes:
    """The tail of what ends in `data`."""
    return data[-TAIL_BYTES:].rpartition(b"\0")[2]


@dataclass(slots=True)
class Content:
    """One file as far as it was read: `offset` is the next byte to read."""

    device: int
    inode: int
    offset: int = 0
    head: bytes = b""
    tail: bytes = b""

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode."""
        return self.device, self.inode

    def take(self, offset: int, data: bytes) -> None:
        """`data` was read at `offset`, which lies behind the old offset if a hole was skipped."""
        self.head = grown_head(self.head, offset, data)
        # a block that holds the tail itself is not copied for it
        self.tail = tail_of(self.tail + data if offset == self.offset and len(data) < TAIL_BYTES else data)
        self.offset = offset + len(data)

    def former(self) -> Former:
        """The proof of this content, to know it again."""
        return Former(
            self.device,
            self.inode,
            len(self.head),
            digest(self.head),
            self.offset,
            len(self.tail),
            digest(self.tail),
        )


def former_of(position: Position) -> Former:
    """A saved position as the file that was read up to there."""
    return Former(
        position.device,
        position.inode,
        position.head_bytes,
        position.head_hash,
        position.offset,
        position.tail_bytes,
        position.tail_hash,
    )


class Verified(NamedTuple):
    """`problem` is empty if the proof holds; then head and tail are the file's."""

    problem: str
    head: bytes
    tail: bytes


def verify(os_layer: OsLayer, descriptor: int, mark: Former | Position) -> Verified:
    """Does the open file hold, up to the mark's offset, what the mark was made of?"""
    head = os_layer.pread(descriptor, min(HEAD_BYTES, mark.offset), 0)
    start = max(0, mark.offset - TAIL_BYTES)
    tail = os_layer.pread(descriptor, mark.offset - start, start) if mark.offset else b""
    problem = ""
    if len(tail) < mark.offset - start:
        problem = f"shorter than the {mark.offset} bytes that were read"
    elif len(head) < mark.head_bytes or digest(head[: mark.head_bytes]) != mark.head_hash:
        problem = f"the first {mark.head_bytes} bytes are not those that were read"
    elif digest(tail[len(tail) - mark.tail_bytes :]) != mark.tail_hash:
        problem = f"the {mark.tail_bytes} bytes before offset {mark.offset} are not those that were read"
    return Verified(problem, head.partition(b"\0")[0], tail_of(tail))


def is_strong(mark: Former | Position) -> bool:
    """Enough text agrees to believe it against another inode."""
    return min(mark.offset, mark.head_bytes + mark.tail_bytes) >= ENOUGH_BYTES
