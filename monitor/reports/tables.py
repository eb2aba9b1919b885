"""A table of texts, written as Markdown and CSV. Pure."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

# `12`, `1.30`, `-2.3 %`, `37 | 29`: figures stand to the right
_FIGURE = re.compile(r"[-+~]?[\d.,]+(?:e[-+]?\d+)?(?: ?[%×]| ?[KMGT]i?B?| ?[dsB])?")


@dataclass(frozen=True, slots=True)
class Table:
    """Cells by row; every row has as many as there are headers. An empty cell is unknown."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def columns(self) -> list[list[str]]:
        """The cells by column."""
        return [[row[place] for row in self.rows] for place in range(len(self.headers))]

    def numeric(self) -> list[bool]:
        """Which columns hold figures alone."""
        known = [[cell for cell in cells if cell] for cells in self.columns()]
        return [bool(cells) and all(map(_FIGURE.fullmatch, cells)) for cells in known]

    def only(self, places: Sequence[int]) -> "Table":
        """The columns at these places."""
        rows = tuple(tuple(row[place] for place in places) for row in self.rows)
        return Table(tuple(self.headers[place] for place in places), rows)

    def filled(self) -> "Table":
        """Without the columns in which every cell is empty."""
        return self.only([place for place, cells in enumerate(self.columns()) if any(cells)])


def markdown(table: Table) -> str:
    """A GitHub table. Pipes and line ends in cells are made harmless."""
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
