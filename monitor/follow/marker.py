"""Positions to resume from: messages of one source in, a `Position` for any offset out. Pure; it never reads a file."""

from msgspec.structs import replace

from megatron_monitor.follow.content import Content
from megatron_monitor.follow.messages import Data, Fingerprint, Opened, Position, Restarted

MAX_FORMER_FILES = 16_384
"""Rotated files remembered per source, 152 bytes of state each. If a pattern also finds a forgotten one, a restart
reads it again. A log that is rotated every hour reaches the bound after 682 days."""


class Marker:
    """Makes positions of one source. Feed it every Opened, Data and Restarted of the source, in order."""

    def __init__(self, former: tuple[Fingerprint, ...] = ()) -> None:
        self.former = former  # files that the source read and left (rotated): they are not read again under any name
        self.content = Content(0, 0)
        self._resumed: Position | None = None
        self._written = 0.0

    def feed(self, message: Opened | Data | Restarted) -> None:
        """Handle one message of the source."""
        if isinstance(message, Data):
            self.content.advance(message.offset, message.data)
            self._written = message.mtime
        elif isinstance(message, Opened):
            self.content = Content(message.device, message.inode, message.offset, message.head, message.tail)
            self._resumed, self._written = message.position, message.mtime
            if message.position is not None:
                self.former, self._written = message.position.former, message.position.written
        else:
            self.content, self._resumed = Content(message.device, message.inode), None
            if message.former is not None:
                self.former = (*self.former, message.former)[-MAX_FORMER_FILES:]

    def position(self, start: int) -> Position:
        """Return the position from which the bytes after `start` are read again. All bytes that were read prove it."""
        content, resumed, mark = self.content, self._resumed, self.content.fingerprint()
        if resumed is not None and content.offset == resumed.start:  # nothing was read since
            mark = replace(resumed, device=mark.device, inode=mark.inode)
        elif resumed is not None and mark.head_bytes < resumed.head_bytes:  # of which only the hash is known
            mark = replace(mark, head_bytes=resumed.head_bytes, head_hash=resumed.head_hash)
        return Position(
            mark.device, mark.inode, mark.head_bytes, mark.head_hash, mark.offset, mark.tail_bytes, mark.tail_hash,
            mark.offset - start, self.former, self._written,
        )  # fmt: skip
