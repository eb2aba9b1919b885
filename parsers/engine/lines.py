r"""Cuts chunks of bytes into blocks of whole lines.

Guarantee: the same bytes give the same lines however they are cut into chunks. A line ends at `\n`, `\r\n` or a bare
`\r` (progress bars redraw themselves with `\r`, and metric dicts follow one on the same physical line). NUL bytes are
holes that copytruncate or a parallel file system left. They are dropped. Lines are numbered by `\n` alone, as in
editors.

A line longer than the bound is dropped up to its end and reported once. The bound exists because a binary file that
matches a glob has no line ends. It is 1 MiB, four times the longest real line seen (248,444 bytes of bars).
"""

from typing import NamedTuple

MAX_LINE_BYTES = 1 << 20


class Block(NamedTuple):
    """Whole lines. `data` ends in a line end. `first_line` is the physical number of its first line."""

    data: bytes
    first_line: int


class Discarded(NamedTuple):
    """A dropped line. `bytes` is its length without its end and without NULs."""

    bytes: int
    line: int


def line_end(data: bytes, start: int) -> tuple[int, int]:
    r"""Return where the line that starts at `start` ends and where the next one starts. `\r\n` is one line end. The
    last line may end with the data.
    """
    newline = data.find(b"\n", start)
    newline = newline if newline >= 0 else len(data)
    carriage = data.find(b"\r", start, newline)
    end = carriage if carriage >= 0 else newline
    return end, end + (2 if data.startswith(b"\r\n", end) else 1)


class LineSplitter:
    """Holds the unfinished part of the last line."""

    __slots__ = ("_left_out", "_line", "_pending", "_uncounted", "after_return", "max_line_bytes", "raw_pending")

    def __init__(self, line: int = 1, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._line = line
        self._uncounted = b""
        self.max_line_bytes = max_line_bytes
        self.raw_pending = 0
        """Bytes fed since the last line end, with NULs and dropped bytes: a resume must read them again."""
        self.after_return = False
        r"""True if the last line ended in a bare `\r`: a `\n` that comes next belongs to the same line end."""
        self._pending = bytearray()
        self._left_out = 0
        """Bytes of the unfinished line behind its first `max_line_bytes + 1`, which show that it is too long."""

    @property
    def line(self) -> int:
        """The physical number of the unfinished last line."""
        if self._uncounted:
            self._line += self._uncounted.count(b"\n")
            self._uncounted = b""
        return self._line

    @property
    def pending(self) -> bytes:
        """The unfinished last line so far. Empty while a too long line is being dropped."""
        return bytes(self._pending) if len(self._pending) <= self.max_line_bytes else b""

    def feed(self, chunk: bytes) -> list[Block | Discarded]:
        """Take the next bytes of the stream and return the lines that became complete."""
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
        whole = memoryview(data)[start : last_end + 1]  # copied once, together with the pending part
        self.after_return = data.endswith(b"\r", start, last_end + 1)
        out = self._split_long(b"".join((self._pending, whole)))
        self._pending.clear()
        self._hold(tail)
        return out

    def flush(self) -> list[Block | Discarded]:
        """Return the unfinished last line as a complete one: the stream has ended."""
        return self.feed(b"\n") if self._pending else []

    def _hold(self, part: bytes) -> None:
        if not part:
            return
        self.after_return = False
        kept = part[: self.max_line_bytes + 1 - len(self._pending)]
        self._pending += kept
        self._left_out += len(part) - len(kept)

    def _split_long(self, data: bytes) -> list[Block | Discarded]:
        out: list[Block | Discarded] = []
        bound = self.max_line_bytes
        block_start = position = 0
        while (
            len(data) - position > bound
        ):  # only a remainder longer than the bound can hold a line longer than the bound
            window_end = position + bound + 1
            last = max(data.rfind(b"\n", position, window_end), data.rfind(b"\r", position, window_end))
            if last >= 0:
                position = last + 1
                continue
            if position > block_start:
                out.append(self._block(data[block_start:position]))
            end, begin = line_end(data, position)
            out.append(Discarded(end - position + self._left_out, self.line))
            self._left_out = 0
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
    """Return the index of the last line end, or -1. Bytes before the last newline were searched before."""
    newline = data.rfind(b"\n")
    return max(newline, data.rfind(b"\r", newline + 1))


def _without_nuls(data: bytes) -> bytes:
    return data.replace(b"\0", b"") if b"\0" in data else data
