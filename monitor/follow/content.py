"""Contents of one file: the proof that it is still the file that was read, and the read of its next bytes.

Device and inode are only a hint: inodes are reused, change on a remount, and copytruncate keeps them. The proof is the
head (the first bytes, up to 1024) and the tail (the last 256 before the offset). Two logs with the same banner share a
head, but rarely head and tail. Neither holds a NUL, because a hole may be filled later while text is not rewritten.

Trailing NULs are not read: they are blocks reserved by a file system or a writer and are overwritten later. NULs before
text are delivered; long runs and holes are skipped. One `pread` both compares the tail and reads the next bytes.
"""

from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from megatron_monitor.follow.messages import Fingerprint, Position
from megatron_monitor.follow.os_layer import OpenFile

HEAD_BYTES = 1024
TAIL_BYTES = 256
ENOUGH_BYTES = 64
"""Least bytes of proof that identify a file under another inode: fewer may agree by chance."""
_MAX_ZERO_BLOCKS = 8  # blocks of written zeros read per pass; a hole of any size costs one call


def digest(data: bytes) -> str:
    """Return a hash of 128 bits."""
    import hashlib  # loads OpenSSL, which a single reading does not need

    return hashlib.blake2b(data, digest_size=16).hexdigest()


def tail_of(data: bytes) -> bytes:
    """Return the tail of bytes that end in `data`."""
    return data[-TAIL_BYTES:].rpartition(b"\0")[2]


class Verification(NamedTuple):
    """The result of a proof. `problem` is empty if it holds; then head and tail are those of the file."""

    problem: str
    head: bytes
    tail: bytes


def verify(file: OpenFile, mark: Fingerprint) -> Verification:
    """Check that the bytes before the fingerprint's offset are the ones that were read."""
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
    return Verification(problem, head.partition(b"\0")[0], tail_of(tail))


def is_strong(mark: Fingerprint) -> bool:
    """Return True if the fingerprint covers enough bytes to identify a file with another inode."""
    return min(mark.offset, mark.head_bytes + mark.tail_bytes) >= ENOUGH_BYTES


class Content(Struct, frozen=True, gc=False):
    """How far a file was read, and the proof. The reader passes it on with the bytes, and the state is made of it."""

    device: int = 0
    inode: int = 0
    offset: int = 0
    """Offset of the next byte to read."""
    head: bytes = b""  # the first bytes, up to HEAD_BYTES; empty once `head_hash` replaces them
    tail: bytes = b""
    head_hash: str = ""
    proved: Fingerprint | None = None
    """The proof of an earlier process, which may cover more bytes, until something is read."""

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode."""
        return self.device, self.inode

    def advance(self, offset: int, data: bytes) -> "Content":
        """Return the content with `data`, read at `offset`, which is larger than the old one if a hole was skipped."""
        head = self.head
        if len(head) == offset < HEAD_BYTES:  # the head ends at the first NUL or hole
            head += data[: HEAD_BYTES - offset].partition(b"\0")[0]
        # a block as long as the tail replaces it, without a copy
        tail = tail_of(self.tail + data if offset == self.offset and len(data) < TAIL_BYTES else data)
        return Content(self.device, self.inode, offset + len(data), head, tail, self.head_hash)

    def fingerprint(self) -> Fingerprint:
        """Return the proof by which this content is recognized later."""
        size, head = (HEAD_BYTES, self.head_hash) if self.head_hash else (len(self.head), digest(self.head))
        return Fingerprint(self.device, self.inode, size, head, self.offset, len(self.tail), digest(self.tail))

    def position(self, start: int, former: tuple[Fingerprint, ...], written: float) -> Position:
        """Return the position from which the bytes after `start` are read again. All bytes that were read prove it."""
        mark = self.proved or self.fingerprint()
        return Position(
            self.device, self.inode, mark.head_bytes, mark.head_hash, mark.offset, mark.tail_bytes, mark.tail_hash,
            mark.offset - start, former, written,
        )  # fmt: skip

    def with_hashed_head(self) -> "Content":
        """Return the content with the hash of a complete head: 1 KiB for each of 100,000 files would be 100 MB."""
        return self if len(self.head) < HEAD_BYTES else replace(self, head=b"", head_hash=digest(self.head))


def content_from(file: OpenFile, identity: tuple[int, int], mark: Fingerprint, proved: Verification) -> Content:
    """Return the content of a file that was verified, from the start of the fingerprint."""
    start, tail = mark.start, proved.tail
    if mark.unread:
        tail = tail_of(file.pread(min(start, TAIL_BYTES), max(0, start - TAIL_BYTES)))
    return Content(*identity, start, proved.head[:start], tail, proved=mark)


class FileBlock(NamedTuple):
    """Bytes read at `offset`. `at_end`: there is nothing more to read now."""

    offset: int
    data: bytes
    at_end: bool
    changed: bool = False  # the bytes before the offset differ from those that were read: `data` is empty
    hole: bool = False  # a run of NULs before text may still be filled: wait
    zeros_until: int = 0  # offset behind written zeros that were skipped: the next pass continues there


def read_block(file: OpenFile, content: Content, count: int, zeros_until: int, *, wait_for_holes: bool) -> FileBlock:
    """Read at most `count` new bytes. `wait_for_holes`: stop before runs of NULs, which may still be filled."""
    tail, offset = content.tail, content.offset
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
    position = max(zeros_until, offset + count)  # a whole block was NULs: search for the next text
    for _ in range(_MAX_ZERO_BLOCKS):
        data_at = file.next_data(position)
        if data_at is None:
            return FileBlock(offset, b"", True)
        block = file.pread(count, data_at)
        text = block.lstrip(b"\0")
        if text:
            if wait_for_holes:
                return FileBlock(offset, b"", True, hole=True)
            return FileBlock(data_at + len(block) - len(text), text.rstrip(b"\0"), len(block) < count)
        if len(block) < count:
            return FileBlock(offset, b"", True)
        position = data_at + len(block)
    return FileBlock(offset, b"", False, zeros_until=position)
