"""The table of a report: its columns, the order of its rows, and its formats Markdown and JSON. Pure.

To add a column, add a row to columns.csv. Its value is the field of Row with the same name, which rows.py sets, or
from `_READ`.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from megatron_monitor.parsers.tables import rows_of
from megatron_monitor.reports.rows import Row

GIB = 2**30
# `12`, `1.30`, `-2.3 %`, `37 | 29`: figures are right-aligned
_FIGURE = re.compile(r"[-+~]?[\d.,]+(?:e[-+]?\d+)?(?: ?[%×]| ?[KMGT]i?B?| ?[dsB])?")


def size(count: int) -> str:
    """Return a number of parameters as people write it: 1.3B, 104B, 350M."""
    for unit, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if count >= scale:
            value = count / scale
            return f"{value:.1f}{unit}" if value < 10 else f"{value:.0f}{unit}"
    return str(count or "")


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value >= 10 else f"{value:.4g}"


def _tokens(row: Row) -> float | None:
    return row.samples_per_second * row.sequence_length if row.samples_per_second and row.sequence_length else None


def petaflops(row: Row) -> float | None:
    """Return TFLOP/s per unit x units / 1024, as seed 003 counts. A unit is a GPU or a CPU node."""
    return row.tflops * row.gpus / 1024 if row.tflops is not None and row.gpus else None


_READ: dict[str, Callable[[Row], Any]] = {"tokens_per_second": _tokens, "petaflops": petaflops}
"""Name of a column -> its value. Other columns are the row's field of their name."""
_SHOW: dict[str, Callable[[Any], str]] = {
    "parameters": size, "seconds_per_iteration": _seconds, "memory_bytes": lambda size: f"{size / GIB:.0f}GB",
    "iterations": lambda count: str(count or ""),
    "notes": "; ".join,
}  # fmt: skip
"""Name of a column -> its value as a cell of Markdown, if format() cannot express it."""


class Column(NamedTuple):
    """One figure of a run and its form in each format."""

    name: str
    """The key in JSON, which has the value in base units."""
    title: str | None
    """The heading in Markdown. None: not shown there."""
    form: str | None
    """The format of the value in Markdown, as for format()."""

    def value(self, row: Row) -> Any:
        """Return the figure. None: unknown."""
        return _READ[self.name](row) if self.name in _READ else getattr(row, self.name)

    def shows(self, row: Row) -> str:
        """Return the cell in Markdown, empty if unknown."""
        value, show = self.value(row), _SHOW.get(self.name, lambda value: format(value, self.form or ""))
        return "" if value is None else show(value)


COLUMNS = rows_of("megatron_monitor.reports", "columns.csv", Column)


def fastest_first(rows: Iterable[Row]) -> list[Row]:
    """Return the rows by their seconds per iteration, unknown ones last."""
    return sorted(rows, key=lambda row: (row.seconds_per_iteration or math.inf, row.run))


def texts(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return heading -> the cells of that column, empty if unknown."""
    return {column.title: [column.shows(row) for row in rows] for column in COLUMNS if column.title}


def are_figures(cells: Sequence[str]) -> bool:
    """Return True if the known cells of a column are figures."""
    known = [cell for cell in cells if cell]
    return bool(known) and all(map(_FIGURE.fullmatch, known))


def as_markdown(rows: Sequence[Row]) -> str:
    """Return a GitHub table, with pipes and line ends in cells escaped."""
    columns = []
    for heading, column in texts(rows).items():
        cells = [_escaped(cell) for cell in (heading, *column)]
        width, right = max(3, *map(len, cells)), are_figures(column)
        cells.insert(1, "-" * (width - right) + ":" * right)
        columns.append([cell.rjust(width) if right else cell.ljust(width) for cell in cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in zip(*columns, strict=True))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\r", " ").replace("\n", " ")


def as_json(rows: Sequence[Row]) -> str:
    """Return `{"rows": [...]}`. A row has all known columns."""
    figures = [{column.name: column.value(row) for column in COLUMNS} for row in rows]
    known = [{name: value for name, value in row.items() if value not in (None, [], {})} for row in figures]
    return json.dumps({"rows": known}, indent=2, ensure_ascii=False) + "\n"
