"""The table of a report: its columns, the order of its rows, and its formats Markdown and JSON. Pure.

To add a column, add a row to columns.csv. Its value is the field of Row with the same name, which rows.py sets.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec.structs import asdict

from megatron_monitor.parsers.tables import rows_of
from megatron_monitor.reports.rows import Row

GIB = 2**30
TEXTS = ("Run", "Notes")
"""Headings of the columns of text. Figures, which the others have, are right-aligned."""


def size(count: int) -> str:
    """Return a number of parameters as people write it: 1.3B, 104B, 350M."""
    for unit, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if count >= scale:
            value = count / scale
            return f"{value:.1f}{unit}" if value < 10 else f"{value:.0f}{unit}"
    return str(count or "")


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value >= 10 else f"{value:.4g}"


_SHOW: dict[str, Callable[[Any], str]] = {
    "parameters": size, "seconds_per_iteration": _seconds, "memory_bytes": lambda size: f"{size / GIB:.0f}GB",
    "iterations": lambda count: str(count or ""),
    "notes": "; ".join,
}  # fmt: skip
"""Name of a column -> its value as a cell of Markdown, if format() cannot express it."""
_COLUMNS = rows_of("megatron_monitor.reports", "columns.csv", tuple[str, str | None, str | None])
"""Field of Row and key in JSON; heading in Markdown, None: not shown there; format of the value, as for format()."""


def fastest_first(rows: Iterable[Row]) -> list[Row]:
    """Return the rows by their seconds per iteration, unknown ones last."""
    return sorted(rows, key=lambda row: (row.seconds_per_iteration or math.inf, row.run))


def texts(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return heading -> the cells of that column, empty if unknown."""
    return {
        title: [_cell(name, form or "", getattr(row, name)) for row in rows] for name, title, form in _COLUMNS if title
    }


def _cell(name: str, form: str, value: Any) -> str:
    if value is None:
        return ""
    return _SHOW[name](value) if name in _SHOW else format(value, form)


def as_markdown(rows: Sequence[Row]) -> str:
    """Return a GitHub table, with pipes and line ends in cells escaped."""
    columns = []
    for heading, column in texts(rows).items():
        cells = [_escaped(cell) for cell in (heading, *column)]
        width, right = max(3, *map(len, cells)), heading not in TEXTS
        cells.insert(1, "-" * (width - right) + ":" * right)
        columns.append([cell.rjust(width) if right else cell.ljust(width) for cell in cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in zip(*columns, strict=True))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\r", " ").replace("\n", " ")


def as_json(rows: Sequence[Row]) -> str:
    """Return `{"rows": [...]}`. A row has all known columns."""
    known = [{name: value for name, value in asdict(row).items() if value not in (None, [], {})} for row in rows]
    return json.dumps({"rows": known}, indent=2, ensure_ascii=False) + "\n"
