"""A table of texts, written as Markdown and CSV. Pure."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

# `12`, `1.30`, `-2.3 %`, `37 | 29`: figures are right-aligned
_FIGURE = re.compile(r"[-+~]?[\d.,]+(?:e[-+]?\d+)?(?: ?[%×]| ?[KMGT]i?B?| ?[dsB])?")


@dataclass(frozen=True, slots=True)
class Table:
    """Cells by row. Each row has as many as there are headers. An empty cell is unknown."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def columns(self) -> list[list[str]]:
        """Return the cells by column."""
        return [[row[place] for row in self.rows] for place in range(len(self.headers))]

    def numeric(self) -> list[bool]:
        """Return the columns that have only figures."""
        known = [[cell for cell in cells if cell] for cells in self.columns()]
        return [bool(cells) and all(map(_FIGURE.fullmatch, cells)) for cells in known]

    def only(self, places: Sequence[int]) -> "Table":
        """Return the table with only the columns at these positions."""
        rows = tuple(tuple(row[place] for place in places) for row in self.rows)
        return Table(tuple(self.headers[place] for place in places), rows)

    def filled(self) -> "Table":
        """Return the table without empty columns."""
        return self.only([place for place, cells in enumerate(self.columns()) if any(cells)])


def markdown(table: Table) -> str:
    """Return a GitHub table, with pipes and line ends in cells escaped."""
    lines = [[_cell(cell) for cell in line] for line in (table.headers, *table.rows)]
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    numeric = table.numeric()
    lines.insert(1, ["-" * (width - right) + ":" * right for width, right in zip(widths, numeric, strict=True)])
    return "\n".join(
        f"| {' | '.join(f'{cell:>{width}}' if right else f'{cell:{width}}' for cell, width, right in columns)} |"
        for columns in (zip(line, widths, numeric, strict=True) for line in lines)
    )


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\r", " ").replace("\n", " ")


def as_csv(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return CSV by RFC 4180 with CR LF. Texts that a spreadsheet would run as a formula get a leading apostrophe."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(headers)
    for row in rows:
        writer.writerow(["" if cell is None else _safe(cell) for cell in row])
    return out.getvalue()


def _safe(cell: object) -> object:
    unsafe = isinstance(cell, str) and cell[:1] in tuple("=+-@\t\r") and not _FIGURE.fullmatch(cell)
    return f"'{cell}" if unsafe else cell
