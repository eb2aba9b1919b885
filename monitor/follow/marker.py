"""The loop's side of a resume: messages of one source in, a `Position` for any committed offset out. Pure.

The loop commits the end of the last complete line, not what was read. The Marker keeps just enough bytes to prove such
an offset: the last 4 KiB, and the tails of the last line ends that lie before them. It never touches a file.
"""

from msgspec import structs

from megatron_monitor.follow.content import TAIL_BYTES, digest, grown_head, tail_of
from megatron_monitor.follow.messages import Data, Fingerprint, Opened, Position, Restarted

_WINDOW_BYTES = 4096  # covers every unfinished line but the very long ones, at 4 MiB for 1,000 sources
_LINE_ENDS = 4  # a line end stays the last one until the next: older ones serve callers that lag a few chunks behind
FORMER_FILES = 16_384
"""Files left behind that are remembered per source, by 152 bytes of state each: where a pattern finds them too, a
restart would read again those that are forgotten. A log that is rotated every hour is there after 682 days."""


class Marker:
    """Feed it every Opened, Data and Restarted of one source, in order."""

    def __init__(self, former: tuple[Fingerprint, ...] = ()) -> None:
        """`former`: what the source had left before its path named what it names now."""
        self.former = former
        """Files that the source has left behind: they are not to be read again, under whatever name."""
        self._device = self._inode = 0
        self._written = 0.0
        self._begin(0, b"", b"", None)

    def feed(self, message: Opened | Data | Restarted) -> None:
        """Take one message of the source."""
        if isinstance(message, Data):
            self._take(message.offset, message.data)
            self._written = message.mtime
            return
        self._device, self._inode = message.device, message.inode
        if isinstance(message, Opened):
            self._written = message.mtime
            if message.position is not None:
                self.former, self._written = message.position.former, message.position.written
            self._begin(message.offset, message.head, message.tail, message.position)
        else:
            if message.former is not None:
                self.former = (*self.former, message.former)[-FORMER_FILES:]
            self._begin(0, b"", b"", None)

    @property
    def inode(self) -> int:
        """Of the present content."""
        return self._inode

    def position(self, offset: int) -> Position:
        """Proof for `offset`: the end of a recent line, or any place in the last 4 KiB.

        Elsewhere the offset is given with an empty tail, which leaves the head, the inode and the size as proof.
        """
        known, head = self._known, self._head[:offset]
        if known is not None and offset == known.offset:  # as it was proved
            return structs.replace(known, device=self._device, inode=self._inode, former=self.former,
                                   written=self._written)  # fmt: skip
        tail, first = self._tail_at(offset), (len(head), digest(head))
        if known is not None and len(head) < known.head_bytes <= offset:
            first = known.head_bytes, known.head_hash
        return Position(self._device, self._inode, *first, offset, len(tail), digest(tail), self.former,
                        self._written)  # fmt: skip

    def _begin(self, offset: int, head: bytes, tail: bytes, known: Position | None) -> None:
        self._head, self._known = head, known
        self._window = tail
        self.fed_to = offset
        """The offset behind the last byte fed."""
        self._line_ends: tuple[tuple[int, bytes], ...] = ((offset, tail),)

    def _take(self, offset: int, data: bytes) -> None:
        if offset != self.fed_to:
            self._window = b""
        self._head = grown_head(self._head, offset, data)
        newline = data.rfind(b"\n")
        last = max(newline, data.rfind(b"\r", newline + 1)) + 1  # not through the whole block for a \r that no log has
        if last:
            before = data[max(0, last - TAIL_BYTES) : last]
            if last < TAIL_BYTES:
                before = self._window[-TAIL_BYTES:] + before
            self._line_ends = (*self._line_ends[1 - _LINE_ENDS :], (offset + last, tail_of(before)))
        self._window = (self._window + data[-_WINDOW_BYTES:])[-_WINDOW_BYTES:]
        self.fed_to = offset + len(data)

    def _tail_at(self, offset: int) -> bytes:
        for end, known in reversed(self._line_ends):
            if end == offset:
                return known
        start = self.fed_to - len(self._window)
        if start < offset <= self.fed_to:
            return tail_of(self._window[: offset - start])
        return b""
