"""One open file: what proves that it is still the file that was read, and what may be read of it now.

Device and inode are only a hint: inodes are reused, change on a remount, and copytruncate keeps them. The proof is the
head (the first bytes, up to 1024, growing with the file) and the tail (the last 256 before the offset). Two logs with
the same banner share a head, hardly ever both. Neither holds a NUL: a hole may be filled later, text is not rewritten.

Trailing NULs are not read: blocks that a file system or a writer reserved are overwritten in place later. NULs with
text behind them are passed on; long runs and holes are skipped. One `pread` both checks the tail and reads on.
"""

from typing import NamedTuple

from msgspec import Struct

from megatron_monitor.follow.messages import Fingerprint
from megatron_monitor.follow.os_layer import OpenFile

HEAD_BYTES = 1024
TAIL_BYTES = 256
ENOUGH_BYTES = 64
"""Another inode is taken for the same content only if the proof covers so much: less agrees by chance."""
_HOLE_BLOCKS = 8  # blocks of real zeros looked through per pass; holes cost one call whatever their size


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


class Verified(NamedTuple):
    """`problem` is empty if the proof holds; then head and tail are the file's."""

    problem: str
    head: bytes
    tail: bytes


def verify(file: OpenFile, mark: Fingerprint) -> Verified:
    """Does the open file hold, up to the mark's offset, what the mark was made of?"""
    head = file.pread(min(HEAD_BYTES, mark.offset), 0)
    start = max(0, mark.offset - TAIL_BYTES)
    tail = file.pread(mark.offset - start, start) if start else head
    problem = ""
    if len(tail) < mark.offset - start:
        problem = f"shorter than the {mark.offset} bytes that were read"
    elif len(head) < mark.head_bytes or digest(head[: mark.head_bytes]) != mark.head_hash:
        problem = f"the first {mark.head_bytes} bytes are not those that were read"
    elif digest(tail[len(tail) - mark.tail_bytes :]) != mark.tail_hash:
        problem = f"the {mark.tail_bytes} bytes before offset {mark.offset} are not those that were read"
    return Verified(problem, head.partition(b"\0")[0], tail_of(tail))


def is_strong(mark: Fingerprint) -> bool:
    """Enough text agrees to believe it against another inode."""
    return min(mark.offset, mark.head_bytes + mark.tail_bytes) >= ENOUGH_BYTES


class Content(Struct, gc=False):
    """One file as far as it was read: `offset` is the next byte to read."""

    device: int
    inode: int
    offset: int = 0
    head: bytes = b""
    """The first bytes, up to HEAD_BYTES; none once `head_hash` is kept instead."""
    tail: bytes = b""
    head_hash: str = ""
    hole_since: float | None = None
    """Since when a run of NULs is waited for that another host may still fill. Monotonic seconds."""
    scanned: int = 0
    """How far real zeros were looked through: where the next pass goes on."""

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode."""
        return self.device, self.inode

    def take(self, offset: int, data: bytes) -> None:
        """`data` was read at `offset`, which lies behind the old offset if a hole was skipped."""
        if not self.head_hash:
            self.head = grown_head(self.head, offset, data)
        # a block that holds the tail itself is not copied for it
        self.tail = tail_of(self.tail + data if offset == self.offset and len(data) < TAIL_BYTES else data)
        self.offset = offset + len(data)

    def fingerprint(self) -> Fingerprint:
        """The proof of this content, to recognise it later."""
        size, head = (HEAD_BYTES, self.head_hash) if self.head_hash else (len(self.head), digest(self.head))
        return Fingerprint(self.device, self.inode, size, head, self.offset, len(self.tail), digest(self.tail))

    def hash_head(self) -> None:
        """Keep of a head that is whole its hash alone: 1 KiB of each of a hundred thousand files would be 100 MB."""
        if len(self.head) == HEAD_BYTES:
            self.head, self.head_hash = b"", digest(self.head)


class FileBlock(NamedTuple):
    """`data` lies at `offset`; `at_end`: nothing more to take now."""

    offset: int
    data: bytes
    at_end: bool
    changed: bool = False
    """The bytes before the offset are not those that were read: data is empty."""
    hole: bool = False
    """A run of NULs with text behind it is waited for."""


def read_block(file: OpenFile, content: Content, count: int, *, wait_for_holes: bool) -> FileBlock:
    """At most `count` new bytes. `wait_for_holes`: runs of NULs may still be filled, stop before them."""
    tail, offset = content.tail, content.offset
    scanned, content.scanned = content.scanned, 0
    block = file.pread(len(tail) + count, offset - len(tail))
    truncated = not tail and offset and not block and file.stat().st_size < offset
    if truncated or not block.startswith(tail):
        return FileBlock(offset, b"", True, changed=True)
    fresh = block[len(tail) :] if tail else block
    text, short = fresh.rstrip(b"\0"), len(fresh) < count
    if text:
        filled = text.partition(b"\0")[0] if wait_for_holes else text
        hole = len(filled) < len(text)
        return FileBlock(offset, filled, short or hole, hole=hole)
    if short:
        return FileBlock(offset, b"", True)
    position = max(scanned, offset + count)  # a whole block was NULs: the next text, wherever it is
    for _ in range(_HOLE_BLOCKS):
        found = file.next_data(position)
        if found is None:
            return FileBlock(offset, b"", True)
        block = file.pread(count, found)
        text = block.lstrip(b"\0")
        if text:
            if wait_for_holes:
                return FileBlock(offset, b"", True, hole=True)
            return FileBlock(found + len(block) - len(text), text.rstrip(b"\0"), len(block) < count)
        if len(block) < count:
            return FileBlock(offset, b"", True)
        position = found + len(block)
    content.scanned = position
    return FileBlock(offset, b"", False)
