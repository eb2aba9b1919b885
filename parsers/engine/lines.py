r"""Cuts chunks of bytes into blocks of whole lines.

Guarantee: the same bytes give the same lines however they are cut into chunks. A line ends at `\n`, `\r\n` or a bare
`\r` (progress bars redraw themselves with `\r`, and metric dicts follow one on the same physical line). NUL bytes are
holes that copytruncate or a parallel file system left. They are dropped. Lines are numbered by `\n` alone, as in
editors.

A line longer than the bound is dropped up to its end and reported once. The bound exists because a binary file that
matches a glob has no line ends. It is 1 MiB, four times the longest real line seen (248,444 bytes of bars).
"""

import re
from typing import TypeAlias

MAX_LINE_BYTES = 1 << 20
_END = re.compile(rb"\r\n?|\n")

Part: TypeAlias = tuple[int, bytes | int]
"""The physical number of the first line, and whole lines, the last one with its end. Or the number of a dropped line,
and its length without its end and without NULs.
"""


class LineSplitter:
    """Holds the unfinished part of the last line."""

    __slots__ = ("_dropped", "after_return", "line", "max_line_bytes", "pending", "raw_pending")

    def __init__(self, line: int = 1, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self.line = line
        """The physical number of the unfinished last line."""
        self.max_line_bytes = max_line_bytes
        self.raw_pending = 0
        """Bytes fed since the last line end, with NULs and dropped bytes: a resume must read them again."""
        self.after_return = False
        r"""True if the last line ended in a bare `\r`: a `\n` that comes next belongs to the same line end."""
        self.pending = b""
        """The unfinished last line so far. Empty while a too long line is being dropped."""
        self._dropped = 0
        """Bytes dropped of the unfinished line, because it is too long."""

    def feed(self, chunk: bytes) -> list[Part]:
        """Take the next bytes of the stream and return the lines that became complete."""
        end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
        whole, tail = chunk[:end], chunk[end:]
        self.raw_pending = len(tail) + (0 if end else self.raw_pending)
        if b"\0" in chunk:
            whole, tail = whole.replace(b"\0", b""), tail.replace(b"\0", b"")
        found: list[Part] = []
        if whole:
            if self.after_return and whole.startswith(b"\n"):
                self.line, whole = self.line + 1, whole[1:]
            self.after_return = whole.endswith(b"\r")
            data, self.pending = self.pending + whole, b""
            if self._dropped or len(data) > self.max_line_bytes:
                found = self._without_long(data)
            elif data:
                found = [(self.line, data)]
                self.line += data.count(b"\n")
        if tail:
            self.after_return = False
            self.pending += tail
            if self._dropped or len(self.pending) > self.max_line_bytes:
                self._dropped, self.pending = self._dropped + len(self.pending), b""
        return found

    def flush(self) -> list[Part]:
        """Return the unfinished last line as a complete one: the stream has ended."""
        return self.feed(b"\n") if self.pending or self._dropped else []

    def _without_long(self, data: bytes) -> list[Part]:
        """Return the lines between those that are too long, and the lengths of the latter."""
        found: list[Part] = []
        begin = position = 0
        while self._dropped or len(data) - position > self.max_line_bytes:
            window = position, position + self.max_line_bytes + 1
            end = 0 if self._dropped else max(data.rfind(b"\n", *window), data.rfind(b"\r", *window)) + 1
            if end:
                position = end
                continue
            if position > begin:
                found.append((self.line, data[begin:position]))
                self.line += data.count(b"\n", begin, position)
            at = _END.search(data, position)
            assert at is not None  # the data ends in a line end
            found.append((self.line, at.start() - position + self._dropped))
            self.line += at[0].endswith(b"\n")
            self._dropped, begin = 0, at.end()
            position = begin
        if begin < len(data):
            found.append((self.line, data[begin:]))
            self.line += data.count(b"\n", begin)
        return found
