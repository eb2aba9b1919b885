"""A table of texts, written out: aligned for a terminal, Markdown, CSV. Pure."""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# `12`, `1.30`, `-2.3 %`, `37 | 29`: figures stand to the right
_FIGURE = re.compile(r"[-+~]?[\d.,]+(?:e[-+]?\d+)?(?: ?[%×]| ?[KMGT]i?B?| ?[dsB])?")

_LONGEST = 32  # columns of a cell on a terminal
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclass(frozen=True, slots=True)
class Table:
    """Cells by row; every row has as many as there are headers. An empty cell is unknown."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @staticmethod
    def of(columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> "Table":
        """Figures by their names; a column is a header and how it is written, as format() takes it."""
        return Table(tuple(columns), tuple(tuple(form.format_map(row) for form in columns.values()) for row in rows))

    def numeric(self) -> list[bool]:
        """Which columns hold figures alone."""
        columns = [[row[place] for row in self.rows if row[place]] for place in range(len(self.headers))]
        return [bool(cells) and all(_FIGURE.fullmatch(cell) for cell in cells) for cells in columns]

    def filled(self) -> "Table":
        """Without the columns in which every cell is empty."""
        kept = [place for place in range(len(self.headers)) if any(row[place] for row in self.rows)]
        rows = tuple(tuple(row[place] for place in kept) for row in self.rows)
        return Table(tuple(self.headers[place] for place in kept), rows)

    def fitting(self, first: Sequence[str], room: int, without: str) -> "Table":
        """The columns that have room, but for the one named `without`; long names lose their beginning."""
        columns = {
            header: [cell if len(cell) <= _LONGEST else f"…{cell[1 - _LONGEST:]}" for cell in (header, *cells)]
            for header, cells in zip(self.headers, zip(*self.rows, strict=True), strict=True) if header != without
        }  # fmt: skip
        widths = {header: max(map(len, cells)) for header, cells in columns.items()}
        kept = fitting(widths, first, room, 2)
        return Table(tuple(kept), tuple(zip(*(columns[header][1:] for header in kept), strict=True)))


def places(cells: Sequence[str]) -> list[int]:
    """The place of each cell of a column in its order: figures by value, an empty one last."""
    numbers = [_NUMBER.match(cell.replace(",", "")) for cell in cells]
    keys = [(not cell, float(number[0]) if number else 0.0, cell) for cell, number in zip(cells, numbers, strict=True)]
    place = {key: at for at, key in reversed(list(enumerate(sorted(keys))))}
    return [place[key] for key in keys]


def fitting(widths: Mapping[str, int], first: Sequence[str], room: int, gap: int) -> list[str]:
    """The columns that have room beside each other, in their order; those named `first` go before others."""
    kept = set[str]()
    for name in sorted(widths, key=lambda one: (*first, one).index(one)):
        room -= widths[name] + gap
        if room + gap < 0:
            break
        kept.add(name)
    return [name for name in widths if name in kept]


def aligned(table: Table, indent: str = "") -> str:
    """Columns under their headers, two blanks between them."""
    numeric = table.numeric()
    lines = [table.headers, *table.rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(table.headers))]
    return "\n".join((indent + "  ".join(_padded(line, widths, numeric))).rstrip() for line in lines)


def _padded(line: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> list[str]:
    columns = zip(line, widths, numeric, strict=True)
    return [cell.rjust(width) if right else cell.ljust(width) for cell, width, right in columns]


def markdown(table: Table) -> str:
    """A GitHub table. Pipes and line ends in cells are made harmless."""
    clean = [[_cell(cell) for cell in line] for line in [table.headers, *table.rows]]
    widths = [max(3, *(len(line[place]) for line in clean)) for place in range(len(table.headers))]
    numeric = table.numeric()
    rule = ["-" * (width - right) + ":" * right for width, right in zip(widths, numeric, strict=True)]
    lines = (_padded(cells, widths, numeric) for cells in (clean[0], rule, *clean[1:]))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\r", " ").replace("\n", " ")


def as_csv(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """RFC 4180, line ends as CR LF. Texts that a spreadsheet would run as a formula get a leading apostrophe."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(headers)
    for row in rows:
        writer.writerow(["" if cell is None else _safe(cell) for cell in row])
    return out.getvalue()


def _safe(cell: object) -> object:
    unsafe = isinstance(cell, str) and cell[:1] in tuple("=+-@\t\r") and not _FIGURE.fullmatch(cell)
    return f"'{cell}" if unsafe else cell
