"""The table of a report: its columns, the order of its rows, and its formats Markdown and JSON. Pure.

To add a column, add a row to columns.csv. Its value is the field of Row with the same name, which rows.py sets, or
from `_READ`.
"""

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from megatron_monitor.model.tables import rows_of
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


def _tokens(row: Row, _base: Row | None) -> float | None:
    return row.samples_per_second * row.sequence_length if row.samples_per_second and row.sequence_length else None


def petaflops(row: Row, _base: Row | None = None) -> float | None:
    """Return TFLOP/s per unit x units / 1024, as seed 003 counts. A unit is a GPU or a CPU node."""
    return row.tflops * row.gpus / 1024 if row.tflops is not None and row.gpus else None


def difference(row: Row, base: Row | None) -> float | None:
    """Return seconds per iteration relative to the baseline's: -0.05 is 5 % faster. None: unknown."""
    if base is None or not (row.seconds_per_iteration and base.seconds_per_iteration):
        return None
    return float(row.seconds_per_iteration / base.seconds_per_iteration - 1)


def efficiency(row: Row, base: Row | None) -> float | None:
    """Return samples per second per GPU over the baseline's: 1 is linear scaling."""
    if base is None or not (row.samples_per_second and row.gpus and base.samples_per_second and base.gpus):
        return None
    return float((row.samples_per_second / row.gpus) / (base.samples_per_second / base.gpus))


_READ: dict[str, Callable[[Row, Row | None], Any]] = {
    "tokens_per_second": _tokens, "difference": difference, "scaling_efficiency": efficiency, "petaflops": petaflops,
}  # fmt: skip
"""Name of a column -> its value for (row, baseline). Other columns are the row's field of their name."""
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
    shown: Literal["always", "known"]
    """In Markdown: always, or if a row has it."""

    def value(self, row: Row, base: Row | None = None) -> Any:
        """Return the figure. None: unknown."""
        return _READ[self.name](row, base) if self.name in _READ else getattr(row, self.name)

    def shows(self, row: Row, base: Row | None) -> str:
        """Return the cell in Markdown, empty if unknown."""
        value, show = self.value(row, base), _SHOW.get(self.name, lambda value: format(value, self.form or ""))
        return "" if value is None else show(value)


COLUMNS = rows_of("megatron_monitor.reports", "columns.csv", Column)


@dataclass(slots=True)
class Benchmark:
    """Rows in the order to show, and the one with which they are compared."""

    rows: list[Row]
    baseline: Row | None


def benchmark(rows: Sequence[Row], baseline: str | None = None) -> Benchmark:
    """Sort the rows, the fastest first and unknown times last, and find the baseline by its run name.

    Raises LookupError if no run or several have this name.
    """
    ordered = sorted(rows, key=lambda row: (row.seconds_per_iteration or math.inf, row.run))
    return Benchmark(ordered, _find(ordered, baseline) if baseline is not None else None)


def _find(rows: Sequence[Row], name: str) -> Row:
    exact = [row for row in rows if row.run == name]
    found = exact or [row for row in rows if row.run.endswith("/" + name) or name in row.sources]
    if len(found) != 1:
        known = ", ".join(row.run for row in rows)
        raise LookupError(f"{name!r} names {len(found)} runs; there are {known}")
    return found[0]


def texts(found: Benchmark) -> dict[str, list[str]]:
    """Return heading -> the cells of that column, empty if unknown."""
    rows, base = found.rows, found.baseline
    return {
        column.title: [column.shows(row, base) for row in rows]
        for column in COLUMNS
        if column.title and (column.shown == "always" or any(column.value(row, base) is not None for row in rows))
    }


def are_figures(cells: Sequence[str]) -> bool:
    """Return True if the known cells of a column are figures."""
    known = [cell for cell in cells if cell]
    return bool(known) and all(map(_FIGURE.fullmatch, known))


def as_markdown(found: Benchmark) -> str:
    """Return a GitHub table, with pipes and line ends in cells escaped."""
    columns = []
    for heading, column in texts(found).items():
        cells = [_escaped(cell) for cell in (heading, *column)]
        width, right = max(3, *map(len, cells)), are_figures(column)
        cells.insert(1, "-" * (width - right) + ":" * right)
        columns.append([cell.rjust(width) if right else cell.ljust(width) for cell in cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in zip(*columns, strict=True))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\r", " ").replace("\n", " ")


def as_json(found: Benchmark) -> str:
    """Return `{"rows": [...], "baseline": RUN}`. A row has all known columns."""
    rows = [{column.name: column.value(row, found.baseline) for column in COLUMNS} for row in found.rows]
    known = [{name: value for name, value in row.items() if value not in (None, [], {})} for row in rows]
    document: dict[str, Any] = {"rows": known}
    if found.baseline is not None:
        document["baseline"] = found.baseline.run
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
