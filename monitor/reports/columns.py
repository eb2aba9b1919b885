"""Every column of a report, in the order in which all formats show them. Pure.

To add one: a row in COLUMNS. Its figure comes from a field of Row of the same name, or from `read`; what needs more of
the run's state gets a field in rows.py first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from monitor.reports import formulas
from monitor.reports.rows import Row

GIB = 2**30


def text(value: Any) -> str:
    """A count or a name."""
    return str(value)


def number(form: str) -> Callable[[Any], str]:
    """As format() writes it by `form`."""
    return lambda value: format(value, form)


def size(count: int) -> str:
    """Parameters as people write them: 1.3B, 104B, 350M."""
    for unit, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if count >= scale:
            value = count / scale
            return f"{value:.1f}{unit}" if value < 10 else f"{value:.0f}{unit}"
    return str(count or "")


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value >= 10 else f"{value:.4g}"


def _memory(row: Row) -> str:
    """GiB, as people write GB; the ends first where the middle stages need another amount."""
    if row.memory_ends_bytes is not None and row.memory_others_bytes is not None:
        return f"{row.memory_ends_bytes / GIB:.0f}/{row.memory_others_bytes / GIB:.0f}GB"
    return "" if row.memory_bytes is None else f"{row.memory_bytes / GIB:.0f}GB"


def _tokens(row: Row, _base: Row | None) -> float | None:
    return row.samples_per_second * row.sequence_length if row.samples_per_second and row.sequence_length else None


def _petaflops(row: Row, _base: Row | None) -> float | None:
    return formulas.aggregate_petaflops(row.tflops, row.gpus) if row.tflops is not None and row.gpus else None


def bubble(row: Row, _base: Row | None = None) -> float | None:
    """Share of an iteration in which a pipeline stage waits; None where the batch does not divide."""
    number = formulas.micro_batches(row.global_batch_size, row.micro_batch_size, row.data_parallel_size)
    return formulas.bubble(row.pipeline_parallel_size, number) if row.pipeline_parallel_size and number else None


def difference(row: Row, base: Row | None) -> float | None:
    """Seconds per iteration against the baseline's: -0.05 is 5 % faster. None if either is unknown."""
    mine, other = row.seconds_per_iteration, base.seconds_per_iteration if base is not None else None
    return mine / other - 1 if mine and other else None


def efficiency(row: Row, base: Row | None) -> float | None:
    """Samples per second per GPU against the baseline's: 1 is linear scaling."""
    if base is None or not (row.samples_per_second and row.gpus and base.samples_per_second and base.gpus):
        return None
    return formulas.scaling_efficiency(row.samples_per_second, row.gpus, base.samples_per_second, base.gpus)


def _share(category: str) -> Callable[[Row, Row | None], float | None]:
    """A part of the iteration, by the log's timers, over the sum of all."""

    def read(row: Row, _base: Row | None) -> float | None:
        parts = {name: seconds for name, seconds in row.breakdown.items() if name not in ("checkpoint", "evaluation")}
        whole = sum(parts.values())
        return parts[category] / whole if category in parts and whole > 0 else None

    return read


@dataclass(frozen=True, slots=True)
class Column:
    """One figure of a run, what it is in each format, and whether `compare` looks at it."""

    name: str
    """Public: the key in JSON, the heading in CSV; both hold the value itself, in base units."""
    title: str = ""
    """The heading in Markdown and HTML; none: not shown there."""
    show: Callable[[Any], str] = text
    """The value as a cell of Markdown and HTML."""
    read: Callable[[Row, Row | None], Any] | None = None
    """(row, baseline) -> the value; None: the row's field of this name."""
    cell: Callable[[Row], str] | None = None
    """The whole cell of Markdown and HTML, where it needs more than the value."""
    shown: Literal["always", "known", "extra"] = "always"
    """In Markdown: always, where any row has it, or with --extra. HTML has room for all."""
    compare: Literal["", "configuration", "figure", "count"] = ""
    """What `compare` does with it: must be equal in repeats, a ratio of two figures, or two counts side by side."""
    csv: bool = True

    def value(self, row: Row, base: Row | None = None) -> Any:
        """The figure, None where it is unknown."""
        return self.read(row, base) if self.read is not None else getattr(row, self.name)

    def shows(self, row: Row, base: Row | None) -> str:
        """The cell in Markdown and HTML, empty where nothing is known."""
        if self.cell is not None:
            return self.cell(row)
        value = self.value(row, base)
        return "" if value is None else self.show(value)


COLUMNS: tuple[Column, ...] = (
    Column("run", "Run"),
    Column("outcome"),
    Column("nodes", "Nodes", compare="configuration"),
    Column("gpus", "GPUs", compare="configuration"),
    Column("parameters", "Size", size, compare="configuration"),
    Column("data_parallel_size", "DP", compare="configuration"),
    Column("tensor_parallel_size", "TP", compare="configuration"),
    Column("pipeline_parallel_size", "PP", compare="configuration"),
    Column("context_parallel_size", compare="configuration"),
    Column("micro_batch_size", "MBS", compare="configuration"),
    Column("gradient_accumulation_steps", compare="configuration"),
    Column("global_batch_size", "GBS", compare="configuration"),
    Column("sequence_length", compare="configuration"),
    Column("memory_bytes", "Mem", cell=_memory, compare="figure"),
    Column("memory_ends_bytes"),
    Column("memory_others_bytes"),
    Column("seconds_per_iteration", "Sec/it", _seconds, compare="figure"),
    Column("seconds_low"),
    Column("seconds_high"),
    Column("steady_iterations"),
    Column("tflops", "TFLOPs", number(".2f"), compare="figure"),
    Column("tflops_source"),
    Column("tflops_computed"),
    Column("samples_per_second", "Samples/s", number(".3f"), compare="figure"),
    Column("tokens_per_second", read=_tokens, compare="figure"),
    Column("iterations", "Iterations", lambda count: str(count or ""), compare="count"),
    Column("last_iteration"),
    Column("train_iterations"),
    Column("restarts", compare="count"),
    Column("difference", "Diff", number("+.1%"), difference, shown="known"),
    Column("scaling_efficiency", "Scaling", number(".1%"), efficiency, shown="known"),
    Column("days", "Days", number(".2f"), shown="known"),
    Column("mfu", "MFU", number(".1%"), shown="extra", compare="figure"),
    Column("hfu"),
    Column("petaflops", "PFLOPs", number(".3g"), _petaflops, shown="extra"),
    Column("pipeline_bubble", "Bubble", number(".1%"), bubble, shown="extra", compare="figure"),
    Column("idle_gpus", "Idle", shown="extra"),
    Column("tflops_formula", "Formula", shown="extra"),
    Column("compute_share", "Compute", number(".1%"), _share("compute"), shown="extra"),
    Column("communication_share", "Comm", number(".1%"), _share("communication"), shown="extra"),
    Column("data_share", "Data", number(".1%"), _share("data"), shown="extra"),
    Column("breakdown", csv=False),
    Column("layers", compare="configuration"),
    Column("hidden_size", compare="configuration"),
    Column("attention_heads", compare="configuration"),
    Column("dtype", compare="configuration"),
    Column("zero_stage", compare="configuration"),
    Column("activation_checkpointing", compare="configuration"),
    Column("gpu", compare="configuration"),
    Column("dialect", compare="configuration"),
    Column("notes", "Notes", "; ".join),
    Column("environment", csv=False),
    Column("software", csv=False),
    Column("findings", csv=False),
    Column("sources", csv=False),
)


def shown(rows: Sequence[Row], base: Row | None, extra: bool) -> list[Column]:
    """The columns of a Markdown or HTML table of these rows."""
    return [
        column
        for column in COLUMNS
        if column.title
        and (
            column.shown == "always"
            or (column.shown == "extra" and extra)
            or (column.shown == "known" and any(column.value(row, base) is not None for row in rows))
        )
    ]


def as_json(row: Row, base: Row | None) -> dict[str, Any]:
    """Every column by its name, plain data; what is unknown is left out."""
    values = {column.name: column.value(row, base) for column in COLUMNS}
    return {name: value for name, value in values.items() if value is not None and value not in ([], {})}
