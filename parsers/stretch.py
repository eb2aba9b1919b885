"""Iteration lines in a row as columns: a backlog holds a million of them, and one object a line is what costs.

Lines whose plans (shapes.py) cut the same fields out stand in one stretch, whatever the widths of their numbers. A
column is read with one JSON call, as the plans read one line; a field that all lines print alike is read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, islice, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from parsers.events import IterationLogged, LogEvent

if TYPE_CHECKING:
    from parsers.shapes import Gathered

LEAST = 8
"""Lines below which a stretch is not worth its columns."""
MAX_TEXT = 2000
"""Characters of a line that are kept as evidence."""

_INTEGERS = frozenset(
    {
        "iteration", "train_iterations", "consumed_samples", "consumed_tokens", "global_batch_size",
        "skipped_iterations", "nan_iterations", "sequence_length", "rank",
    }
)  # fmt: skip
_integers = msgspec.json.Decoder(list[int]).decode
_floats = msgspec.json.Decoder(list[float]).decode


class Field(NamedTuple):
    """One field of a line as JSON: its pieces of the line with literal text before, between and after them."""

    home: str
    name: str
    literals: tuple[bytes, ...]
    first: int
    """Place of its first piece among those of the line."""


class Layout(NamedTuple):
    """The fields of a line in their order: lines of the same layout can stand in one stretch."""

    rule: str
    dialect: str
    fields: tuple[Field, ...]


class Stretch:
    """Iteration lines of one source, no other event between them. Row i is the i-th line."""

    __slots__ = ("_data", "_known", "_lines", "_numbers", "_plans", "_starts", "_times", "columns", "layout", "shared")

    def __init__(self, number: int, data: bytes, gathered: Gathered) -> None:
        """`number` is the physical number of the first line, `data` the block in which the lines stand. Raises
        msgspec.DecodeError where one of them must be read with care.
        """
        self._starts, lines, self._plans = gathered
        self._lines: Sequence[bytes] = lines
        layout = self._plans[0].layout
        assert layout is not None
        self.layout = layout
        self._data, self._known = data, (0, number)
        self._numbers: Sequence[int] | None = None
        self.columns: dict[str, list[Any]] = {}
        """Field of IterationLogged -> a value for each row; of those that differ from row to row."""
        self.shared: dict[str, Any] = {"dialect": layout.dialect}
        """Field -> the value that all rows print."""
        self._times: tuple[Field, Sequence[Sequence[bytes]]] | None = None
        rows = [plan.unpack(line) for plan, line in zip(self._plans, self._lines, strict=True)]
        count, cut = len(rows), list(zip(*rows, strict=True))
        for field in layout.fields:
            home, name, literals, first = field
            if len(literals) > 2 or literals[0]:
                self._keep_text(field, cut[first : first + len(literals) - 1], count)
                continue
            column, after = cut[first], literals[1]
            decode = _integers if home == "values" and name in _INTEGERS else _floats
            values: list[Any]
            if column[0] == column[-1] and column.count(column[0]) == count:
                values = decode(b"[%b%b]" % (column[0], after))
                if home == "values":
                    self.shared[name] = values[0]
            else:
                values = decode(b"[%b%b]" % ((after + b",").join(column), after))
                if home == "values":
                    self.columns[name] = values

    def _keep_text(self, field: Field, columns: list[tuple[bytes, ...]], count: int) -> None:
        """Texts are never wrong. Times are written out when somebody asks; others hardly ever differ."""
        if field.home != "values":
            return
        if all(column.count(column[0]) == count for column in columns):
            self.shared[field.name] = _text(field.literals, [column[0] for column in columns])
        elif field.name == "logged_at":
            self._times = field, columns
        else:
            self.columns[field.name] = [_text(field.literals, pieces) for pieces in zip(*columns, strict=True)]

    @property
    def timed(self) -> bool:
        """Whether the lines print their time."""
        return self._times is not None or "logged_at" in self.shared

    def date_and_time(self) -> tuple[str, Sequence[bytes]] | None:
        """The date that all rows print, and the time of day of each; None where they are not printed so."""
        if self._times is None or self._times[0].literals != (b'"', b"T", b'"'):
            return None
        dates, times = self._times[1]
        return (dates[0].decode(), times) if dates.count(dates[0]) == len(dates) else None

    def times(self) -> list[str] | None:
        """`logged_at` of each row; None if the lines print no time."""
        if self._times is None:
            shared = self.shared.get("logged_at")
            return None if shared is None else [shared] * len(self)
        if "logged_at" not in self.columns:
            (_, _, literals, _), columns = self._times
            self.columns["logged_at"] = [_text(literals, pieces) for pieces in zip(*columns, strict=True)]
        return self.columns["logged_at"]

    def __len__(self) -> int:
        """Rows."""
        return len(self._lines)

    def values(self, name: str, start: int = 0, stop: int | None = None) -> list[Any] | None:
        """What these rows print of a field of IterationLogged; None if they do not print it."""
        column = self.columns.get(name)
        if column is not None:
            return column[start:stop]
        return [self.shared[name]] * len(range(len(self))[start:stop]) if name in self.shared else None

    def number(self, row: int) -> int:
        """Physical number of the line; quick where it is asked in order."""
        known, number = self._known if self._known[0] <= row else (0, self._known[1])
        if self._known[0] > row:
            number -= self._data.count(b"\n", self._starts[0], self._starts[self._known[0]])
        number += self._data.count(b"\n", self._starts[known], self._starts[row])
        self._known = row, number
        return number

    def numbers(self) -> Sequence[int]:
        """Of all rows at once."""
        if self._numbers is None:
            between = map(self._data.count, repeat(b"\n"), self._starts, islice(self._starts, 1, None))
            self._numbers = list(accumulate(between, initial=self.number(0)))
        return self._numbers

    def texts(self) -> tuple[Sequence[bytes], tuple[Field, Sequence[Sequence[bytes]]] | None]:
        """(the lines, the field `logged_at` and its pieces): what `columns` and `shared` do not hold."""
        return self._lines, self._times

    def event(self, row: int) -> IterationLogged:
        """What the line says, as the reader gives it of a line by itself."""
        event: IterationLogged | None = self._plans[row].read(self._lines[row])
        assert event is not None  # all its columns could be read
        return event

    def text(self, row: int) -> str:
        """The line as evidence."""
        return self._lines[row].decode().strip()[:MAX_TEXT]

    def entry(self, row: int) -> LogEvent:
        """The line as the reader gives it by itself."""
        return LogEvent(self.number(row), self.layout.rule, self.event(row), self.text(row))


def _text(literals: tuple[bytes, ...], pieces: Sequence[bytes]) -> str:
    """A JSON string without its quotes: `shapes.py` lets only texts come here that stand in JSON as they are."""
    parts = [literals[0]]
    for piece, literal in zip(pieces, literals[1:], strict=True):
        parts += [piece, literal]
    return b"".join(parts)[1:-1].decode()
