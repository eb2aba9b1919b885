r"""Chunks of bytes in any cut, blocks of whole lines out.

Law: the same bytes give the same lines whatever the chunks. A line ends at `\n`, `\r\n` or a bare `\r` (progress
bars draw over themselves with `\r`, and metric dicts follow one on the same physical line). NUL bytes are holes
that copytruncate or a parallel file system left: they are dropped. Lines are numbered by `\n` alone, as editors do.

A line longer than the bound is thrown away up to its end and reported once. The bound exists because a binary file
that matches a glob has no line ends at all; 1 MiB is four times the longest real line seen (248,444 bytes of bars).
"""

from typing import NamedTuple

MAX_LINE_BYTES = 1 << 20


class Block(NamedTuple):
    """Whole lines: `data` ends in a line end. `first_line` is the physical number of its first line."""

    data: bytes
    first_line: int


class Discarded(NamedTuple):
    """One line was longer than the bound. `bytes` counts it without its end and without NULs."""

    bytes: int
    line: int


def line_end(data: bytes, start: int) -> tuple[int, int]:
    r"""Where the line that starts at `start` ends, if only with the data, and where the next one begins: `\r\n` is one
    line end.
    """
    newline = data.find(b"\n", start)
    newline = newline if newline >= 0 else len(data)
    carriage = data.find(b"\r", start, newline)
    end = carriage if carriage >= 0 else newline
    return end, end + (2 if data.startswith(b"\r\n", end) else 1)


class LineSplitter:
    """Holds the part of the last line that has no end yet."""

    __slots__ = (
        "_discarding", "_line", "_pending", "_pending_bytes", "_uncounted", "after_return", "max_line_bytes",
        "raw_pending",
    )  # fmt: skip

    def __init__(self, line: int = 1, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._line = line
        self._uncounted = b""
        self.max_line_bytes = max_line_bytes
        self.raw_pending = 0
        """Bytes fed since the last line end, NULs and discarded ones counted: what a resume must read again."""
        self.after_return = False
        """The last line ended in a bare `\\r`: a `\\n` that comes next is the rest of its end."""
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._discarding = False

    @property
    def line(self) -> int:
        """The physical number of the unfinished last line."""
        if self._uncounted:
            self._line += self._uncounted.count(b"\n")
            self._uncounted = b""
        return self._line

    @property
    def pending(self) -> bytes:
        """The unfinished last line so far (empty while an over-long one is being thrown away)."""
        return b"".join(self._pending)

    def feed(self, chunk: bytes) -> list[Block | Discarded]:
        """Take the next bytes of the source; give what became whole."""
        last_end = _last_end(chunk)
        if last_end < 0:
            self.raw_pending += len(chunk)
            self._hold(_without_nuls(chunk))
            return []
        self.raw_pending = len(chunk) - last_end - 1
        data, start = _without_nuls(chunk), 0
        if data is not chunk:
            last_end = _last_end(data)
        if self.after_return and data.startswith(b"\n"):
            self._line = self.line + 1
            start = 1
        tail = data[last_end + 1 :]
        whole = memoryview(data)[start : last_end + 1]  # copied once, with what was pending
        self.after_return = data.endswith(b"\r", start, last_end + 1)
        head = b"".join(self._pending) + whole if self._pending and not self._discarding else bytes(whole)
        out: list[Block | Discarded] = []
        if self._discarding:
            end, begin = line_end(head, 0)
            out.append(Discarded(self._pending_bytes + end, self.line))
            self._line = self.line + head.count(b"\n", end, begin)
            head = head[begin:]
        self._pending, self._pending_bytes, self._discarding = [], 0, False
        out.extend(self._split_long(head))
        self._hold(tail)
        return out

    def flush(self) -> list[Block | Discarded]:
        """The source has ended: its unfinished last line counts as whole."""
        if self._discarding or self._pending_bytes:
            return self.feed(b"\n")
        return []

    def _hold(self, part: bytes) -> None:
        if not part:
            return
        self.after_return = False
        self._pending_bytes += len(part)
        if self._discarding or self._pending_bytes > self.max_line_bytes:
            self._discarding = True
            self._pending = []
        else:
            self._pending.append(part)

    def _split_long(self, data: bytes) -> list[Block | Discarded]:
        out: list[Block | Discarded] = []
        bound = self.max_line_bytes
        block_start = position = 0
        while len(data) - position > bound:  # only a rest longer than the bound can hold a line longer than it
            window_end = position + bound + 1
            last = max(data.rfind(b"\n", position, window_end), data.rfind(b"\r", position, window_end))
            if last >= 0:
                position = last + 1
                continue
            if position > block_start:
                out.append(self._block(data[block_start:position]))
            end, begin = line_end(data, position)
            out.append(Discarded(end - position, self.line))
            block_start = position = begin
            self._line = self.line + data.count(b"\n", end, position)
        if block_start < len(data):
            out.append(self._block(data[block_start:] if block_start else data))
        return out

    def _block(self, data: bytes) -> Block:
        block = Block(data, self.line)
        self._uncounted = data
        return block


def _last_end(data: bytes) -> int:
    """Index of the last line end; -1 if there is none. What lies before the last newline is not looked at again."""
    newline = data.rfind(b"\n")
    return max(newline, data.rfind(b"\r", newline + 1))


def _without_nuls(data: bytes) -> bytes:
    return data.replace(b"\0", b"") if b"\0" in data else data
