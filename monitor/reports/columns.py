"""All columns of a report, in the order of all formats. Pure.

To add a column, add a row to columns.csv. Its value is the field of Row with the same name, or from `_READ`. If it
needs more of the run's state, add a field in rows.py first.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from megatron_monitor.model.tables import rows_of
from megatron_monitor.reports import formulas
from megatron_monitor.reports.rows import Row

GIB = 2**30


def size(count: int) -> str:
    """Return a number of parameters as people write it: 1.3B, 104B, 350M."""
    for unit, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if count >= scale:
            value = count / scale
            return f"{value:.1f}{unit}" if value < 10 else f"{value:.0f}{unit}"
    return str(count or "")


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value >= 10 else f"{value:.4g}"


def _memory(row: Row) -> str:
    """Return GiB, written as GB. The end stages come first if the middle stages need another amount."""
    if row.memory_ends_bytes is not None and row.memory_others_bytes is not None:
        return f"{row.memory_ends_bytes / GIB:.0f}/{row.memory_others_bytes / GIB:.0f}GB"
    return "" if row.memory_bytes is None else f"{row.memory_bytes / GIB:.0f}GB"


def _tokens(row: Row, _base: Row | None) -> float | None:
    return row.samples_per_second * row.sequence_length if row.samples_per_second and row.sequence_length else None


def petaflops(row: Row, _base: Row | None = None) -> float | None:
    """Return TFLOP/s per unit x units / 1024, as seed 003 counts. A unit is a GPU or a CPU node."""
    return row.tflops * row.gpus / 1024 if row.tflops is not None and row.gpus else None


def bubble(row: Row, _base: Row | None = None) -> float | None:
    """Return the share of an iteration in which a pipeline stage waits. None: the batch is not divisible."""
    number = formulas.micro_batches(row.global_batch_size, row.micro_batch_size, row.data_parallel_size)
    return formulas.bubble(row.pipeline_parallel_size, number) if row.pipeline_parallel_size and number else None


def difference(row: Row, base: Row | None) -> float | None:
    """Return seconds per iteration relative to the baseline's: -0.05 is 5 % faster. None: unknown."""
    mine, other = row.seconds_per_iteration, base.seconds_per_iteration if base is not None else None
    return mine / other - 1 if mine and other else None


def efficiency(row: Row, base: Row | None) -> float | None:
    """Return samples per second per GPU over the baseline's: 1 is linear scaling."""
    if base is None or not (row.samples_per_second and row.gpus and base.samples_per_second and base.gpus):
        return None
    return (row.samples_per_second / row.gpus) / (base.samples_per_second / base.gpus)


def _share(category: str) -> Callable[[Row, Row | None], float | None]:
    """Return a part of the iteration over the sum of all parts, by the log's timers."""

    def read(row: Row, _base: Row | None) -> float | None:
        parts = {name: seconds for name, seconds in row.breakdown.items() if name not in ("checkpoint", "evaluation")}
        whole = sum(parts.values())
        return parts[category] / whole if category in parts and whole > 0 else None

    return read


_READ: dict[str, Callable[[Row, Row | None], Any]] = {
    "tokens_per_second": _tokens, "difference": difference, "scaling_efficiency": efficiency, "petaflops": petaflops,
    "pipeline_bubble": bubble, "compute_share": _share("compute"), "communication_share": _share("communication"),
    "data_share": _share("data"),
}  # fmt: skip
"""Name of a column -> its value for (row, baseline). Other columns are the row's field of their name."""
_SHOW: dict[str, Callable[[Any], str]] = {
    "parameters": size, "seconds_per_iteration": _seconds, "iterations": lambda count: str(count or ""),
    "notes": "; ".join,
}  # fmt: skip
"""Name of a column -> its value as a cell of Markdown, if format() cannot express it."""


class Column(NamedTuple):
    """One figure of a run, its form in each format, and whether repeats of a configuration share it."""

    name: str
    """The key in JSON and the heading in CSV, which both have the value in base units."""
    title: str | None
    """The heading in Markdown. None: not shown there."""
    form: str | None
    """The format of the value in Markdown, as for format()."""
    shown: Literal["always", "known"]
    """In Markdown: always, or if a row has it."""
    repeat: Literal["yes"] | None
    """`yes` if two runs of one configuration have the same value."""
    csv: Literal["yes", "no"]

    def value(self, row: Row, base: Row | None = None) -> Any:
        """Return the figure. None: unknown."""
        return _READ[self.name](row, base) if self.name in _READ else getattr(row, self.name)

    def shows(self, row: Row, base: Row | None) -> str:
        """Return the cell in Markdown, empty if unknown."""
        if self.name == "memory_bytes":
            return _memory(row)
        value, show = self.value(row, base), _SHOW.get(self.name, lambda value: format(value, self.form or ""))
        return "" if value is None else show(value)


COLUMNS = rows_of("megatron_monitor.reports", "columns.csv", Column)


def shown(rows: Sequence[Row], base: Row | None) -> list[Column]:
    """Return the columns of a Markdown table of these rows."""
    return [
        column
        for column in COLUMNS
        if column.title and (column.shown == "always" or any(column.value(row, base) is not None for row in rows))
    ]


def as_json(row: Row, base: Row | None) -> dict[str, Any]:
    """Return all columns by name as plain data, without unknown ones."""
    values = {column.name: column.value(row, base) for column in COLUMNS}
    return {name: value for name, value in values.items() if value is not None and value not in ([], {})}
