"""Positions to resume from: messages of one source in, a `Position` for any committed offset out. Pure.

The loop commits the end of the last complete line, which is before the last byte read. The Marker keeps just enough
bytes to prove such an offset: the last 4 KiB, and the tails of the last line ends before them. It never reads a file.
"""

from msgspec import structs

from megatron_monitor.follow.content import TAIL_BYTES, digest, grown_head, tail_of
from megatron_monitor.follow.messages import Data, Fingerprint, Opened, Position, Restarted

_WINDOW_BYTES = 4096  # covers all unfinished lines but very long ones; 4 MiB for 1,000 sources
_MAX_LINE_ENDS = 4  # more than the last one, for callers that lag a few chunks behind
MAX_FORMER_FILES = 16_384
"""Rotated files remembered per source, 152 bytes of state each. If a pattern also finds a forgotten one, a restart
reads it again. A log that is rotated every hour reaches the bound after 682 days."""


class Marker:
    """Makes positions of one source. Feed it every Opened, Data and Restarted of the source, in order."""

    def __init__(self, former: tuple[Fingerprint, ...] = ()) -> None:
        self.former = former  # files that the source read and left (rotated): they are not read again under any name
        self._device = self.inode = 0
        self._written = 0.0
        self._begin(0, b"", b"", None)

    def feed(self, message: Opened | Data | Restarted) -> None:
        """Handle one message of the source."""
        if isinstance(message, Data):
            self._take(message.offset, message.data)
            self._written = message.mtime
            return
        self._device, self.inode = message.device, message.inode
        if isinstance(message, Opened):
            self._written = message.mtime
            if message.position is not None:
                self.former, self._written = message.position.former, message.position.written
            self._begin(message.offset, message.head, message.tail, message.position)
        else:
            if message.former is not None:
                self.former = (*self.former, message.former)[-MAX_FORMER_FILES:]
            self._begin(0, b"", b"", None)

    def position(self, offset: int) -> Position:
        """Return the position at `offset` with its proof: the end of a recent line, or any place in the last 4 KiB.

        At any other offset the tail is empty, so only the head, the inode and the size are proof.
        """
        known, head = self._resumed, self._head[:offset]
        if known is not None and offset == known.offset:  # as proved at the start
            return structs.replace(known, device=self._device, inode=self.inode, former=self.former,
                                   written=self._written)  # fmt: skip
        tail, first = self._tail_at(offset), (len(head), digest(head))
        if known is not None and len(head) < known.head_bytes <= offset:
            first = known.head_bytes, known.head_hash
        return Position(self._device, self.inode, *first, offset, len(tail), digest(tail), self.former,
                        self._written)  # fmt: skip

    def _begin(self, offset: int, head: bytes, tail: bytes, resumed: Position | None) -> None:
        self._head, self._resumed = head, resumed
        self._window = tail
        self.fed_to = offset  # the offset after the last byte fed
        self._line_ends: tuple[tuple[int, bytes], ...] = ((offset, tail),)

    def _take(self, offset: int, data: bytes) -> None:
        if offset != self.fed_to:
            self._window = b""
        self._head = grown_head(self._head, offset, data)
        newline = data.rfind(b"\n")
        last = max(newline, data.rfind(b"\r", newline + 1)) + 1  # logs rarely hold \r: search only the rest
        if last:
            before = data[max(0, last - TAIL_BYTES) : last]
            if last < TAIL_BYTES:
                before = self._window[-TAIL_BYTES:] + before
            self._line_ends = (*self._line_ends[1 - _MAX_LINE_ENDS :], (offset + last, tail_of(before)))
        self._window = (self._window + data[-_WINDOW_BYTES:])[-_WINDOW_BYTES:]
        self.fed_to = offset + len(data)

    def _tail_at(self, offset: int) -> bytes:
        for end, tail in reversed(self._line_ends):
            if end == offset:
                return tail
        start = self.fed_to - len(self._window)
        if start < offset <= self.fed_to:
            return tail_of(self._window[: offset - start])
        return b""
