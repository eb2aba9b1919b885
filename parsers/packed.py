"""What a reader gives as plain values that pickle quickly: one process reads, another one folds.

Law: what `unpack` gives says the same as what `pack` was given. Columns cross as machine numbers, lines as one text. A
plan (shapes.py) does not cross: the few events that somebody asks for are read again, each from its line.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias, overload

from parsers.events import IterationLogged, LogEvent
from parsers.reader import SourceReader
from parsers.shapes import Shapes
from parsers.stretch import Field, Layout, Stretch

_SHAPES = Shapes()
_READER = SourceReader(shapes=_SHAPES)
"""It reads single iteration lines: none of them leaves anything open in it."""


class PackedStretch(NamedTuple):
    """A stretch. Row i is the i-th line."""

    rule: str
    numbers: array[int]
    """Physical line numbers."""
    lines: bytes
    """One after the other."""
    ends: array[int]
    """Where each ends in `lines`."""
    columns: dict[str, array[Any] | list[str]]
    shared: dict[str, Any]
    times: tuple[Field, list[bytes]] | None
    """The field `logged_at`; each of its pieces for all rows, joined by newlines, or one for all if they are alike."""


Packed: TypeAlias = list[LogEvent | PackedStretch]
"""What a reader gave for some bytes."""


def pack(entries: Sequence[LogEvent | Stretch]) -> Packed:
    """For the way. Quickest where the reader was told that lines are `numbered`."""
    return [_packed(entry) if isinstance(entry, Stretch) else entry for entry in entries]


def unpack(packed: Packed) -> list[LogEvent | Stretch]:
    """What `pack` was given."""
    return [Unpacked(entry) if isinstance(entry, PackedStretch) else entry for entry in packed]


class Unpacked(Stretch):
    """A stretch that another process has read."""

    __slots__ = ()

    def __init__(self, packed: PackedStretch) -> None:
        rule, self._numbers, lines, ends, columns, self.shared, times = packed
        self._lines = _Cut(lines, ends)
        self.layout = Layout(rule, self.shared["dialect"], ())
        self.columns = {
            name: column.tolist() if isinstance(column, array) else column for name, column in columns.items()
        }
        self._times = None if times is None else (times[0], [self._pieces(piece) for piece in times[1]])

    def number(self, row: int) -> int:
        """Physical number of the line."""
        return self.numbers()[row]

    def event(self, row: int) -> IterationLogged:
        """What the line says, as the reader gives it of a line by itself."""
        line = self._lines[row]
        plan = _SHAPES.plan(line)
        event = None if plan is None else plan.read(line)
        if event is None:
            [entry] = _READER.feed(line + b"\n")
            assert isinstance(entry.event, IterationLogged)  # the other process has read this line
            event = entry.event
        return event

    def _pieces(self, joined: bytes) -> Sequence[bytes]:
        pieces = tuple(joined.split(b"\n"))
        return pieces if len(pieces) == len(self) else pieces * len(self)


class _Cut(Sequence[bytes]):
    """Texts, cut out when they are asked for: mostly one of a hundred is."""

    __slots__ = ("_ends", "_joined")

    def __init__(self, joined: bytes, ends: array[int]) -> None:
        self._joined, self._ends = joined, ends

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, row: int) -> bytes: ...
    @overload
    def __getitem__(self, row: slice) -> list[bytes]: ...
    def __getitem__(self, row: int | slice) -> bytes | list[bytes]:
        if isinstance(row, slice):
            return [self[index] for index in range(len(self))[row]]
        row = range(len(self))[row]
        return self._joined[self._ends[row - 1] if row else 0 : self._ends[row]]


def _packed(stretch: Stretch) -> PackedStretch:
    lines, times = stretch.texts()
    return PackedStretch(
        stretch.layout.rule,
        array("q", stretch.numbers()),
        b"".join(lines),
        array("l", accumulate(map(len, lines))),
        {name: _machine(column) for name, column in stretch.columns.items()},
        stretch.shared,
        None if times is None else (times[0], [_joined(pieces) for pieces in times[1]]),
    )


def _machine(column: list[Any]) -> array[Any] | list[str]:
    first = column[0]
    if isinstance(first, str):
        return column
    return array("d" if isinstance(first, float) else "q", column)


def _joined(pieces: Sequence[bytes]) -> bytes:
    first = pieces[0]
    alike = first == pieces[-1] and pieces.count(first) == len(pieces)
    return first if alike else b"\n".join(pieces)
