"""The lines of one spooled stream in the order in which they were written. Pure.

Agents send batches twice, late and past each other. A line waits until those that lie before it have had `HOLD` seconds
to come; one that comes later still is counted and left out: what is folded is not folded backwards. What waits is saved
with the offset, so that a line counts once, over a restart too.
"""

from math import inf
from typing import Any

from msgspec import Struct, field

from megatron_monitor.parsers.redaction import masked
from megatron_monitor.pushed import STAMP

HOLD = 2.0
"""Seconds that a line waits for those before it."""
_MOST = 8 << 20  # bytes that wait: a backlog is let go by halves


class Ordered(Struct):
    """What waits of a stream. Instants."""

    lines: list[tuple[bytes, bytes, int, float]] = field(default_factory=list)
    """(stamp, line with its end, bytes of it in the file, when it came)."""
    partial: bytes = b""
    """Behind the last line end."""
    size: int = 0
    """Bytes of the file that `lines` are."""
    last: bytes = b""
    """The stamp of the last line that was let go."""
    let_go: set[bytes] = field(default_factory=set)
    """and the lines of that stamp: one that comes again is no other."""
    late: int = 0
    """Lines that came too late, until somebody counts them."""
    again: int = 0
    """Lines that came twice, the same."""
    settles_at: float | None = None
    """When the lines that stood in the file at first have had their time."""

    def add(self, data: bytes, now: float) -> None:
        """The next bytes of the file."""
        whole, end, rest = (self.partial + data).rpartition(b"\n")
        self.partial = rest
        if end:
            for line in whole.split(b"\n"):
                self.lines.append((line[:STAMP], line + b"\n", len(line) + 1, now))
                self.size += len(line) + 1

    def begin_anew(self) -> None:
        """Another file goes on with the stream: what waits lies in none."""
        self.lines = [(stamp, line, 0, came) for stamp, line, _, came in self.lines]
        self.size, self.partial = 0, b""

    def due(self, now: float) -> tuple[list[tuple[bytes, bytes]], int]:
        """(stamp, line) of those that have waited, in order; and the bytes of those that are left out."""
        ready = self._ready(now)
        if ready is None:
            return [], 0
        found = sorted((line for line in self.lines if line[0] <= ready), key=lambda line: line[0])
        self.lines = [line for line in self.lines if line[0] > ready]
        taken = sum(line[2] for line in found)
        self.size -= taken
        due, left_out, known = list[tuple[bytes, bytes]](), 0, self.let_go
        for stamp, line, size, _ in found:
            if stamp < self.last or line in known:
                left_out += size
                self.again += stamp >= self.last
                self.late += stamp < self.last
            else:
                due.append((stamp, line))
                known.add(line)
        self.last = max(ready, self.last)
        self.let_go = {line for line in known if line.startswith(self.last)}
        return due, left_out

    def _ready(self, now: float) -> bytes | None:
        """The stamp up to which lines have waited for those before them; None: none have."""
        lines = self.lines
        if lines and lines[0][3] == inf:
            since = min(now, *(came for *_, came in lines))  # what was restored came before all that came since
            lines = self.lines = [(*line[:3], since if line[3] == inf else line[3]) for line in lines]
        if not lines or (now - lines[0][3] < HOLD and self.size < _MOST):
            return None
        return max(
            [line[0] for line in lines if now - line[3] >= HOLD] or [line[0] for line in lines[: len(lines) // 2 + 1]]
        )

    def save(self) -> dict[str, Any]:
        """Plain values; secrets are masked, as in all that is kept."""
        lines = [[masked(line.decode("utf-8", "replace")), size] for _, line, size, _ in self.lines]
        let_go = [masked(line.decode("utf-8", "replace")) for line in self.let_go]
        return {"lines": lines, "last": self.last.decode("ascii", "replace"), "let_go": let_go}

    def restore(self, saved: dict[str, Any]) -> None:
        """Go on where `save` was called: what waited waits anew, from the next call of `due` on."""
        texts = [(str(text).encode(), int(size)) for text, size in saved["lines"]]
        self.lines = [(text[:STAMP], text, size, inf) for text, size in texts]
        self.size, self.last = sum(size for _, size in texts), str(saved["last"]).encode()
        self.let_go = {str(text).encode() for text in saved.get("let_go", ())}
