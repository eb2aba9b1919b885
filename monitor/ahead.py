"""What the core gets where another process reads and parses for it (reader_process.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from monitor.follow.messages import SourceId
from parsers.events import LogEvent
from parsers.reader import SourceReader
from parsers.stretch import Stretch


class ReadingError(RuntimeError):
    """The process that reads the logs has ended before their end."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """In the place of Data: what it said. `reader` is the source's own from now on, `size` counts the bytes."""

    source: SourceId
    size: int
    mtime: float
    at: float
    behind_bytes: int
    entries: Sequence[LogEvent | Stretch]
    reader: SourceReader


class Absent(SourceReader):
    """Stands for a reader in the other process: what it has counted, and at the end what it held back."""

    def __init__(self) -> None:
        super().__init__()
        self.left: list[LogEvent] = []
        self._told_lines = 0

    @property
    def lines(self) -> int:
        """Physical lines read to their end."""
        return self._told_lines

    def told(self, counted: tuple[int, int, int]) -> None:
        """(bytes, lines, matched lines) so far."""
        self.fed_bytes, self._told_lines, self.matched_lines = counted

    def flush(self) -> list[LogEvent]:
        """What the other one's gave."""
        left, self.left = self.left, []
        return left
