"""The benchmark table: rows sorted and grouped, differences to a baseline, what forbids comparing them. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from monitor.reports import horizon
from monitor.reports.comparability import warnings
from monitor.reports.rows import Row
from monitor.reports.tables import Table

GIB = 2**30

SORTS: dict[str, Callable[[Row], float | str | None]] = {
    "seconds": lambda row: row.seconds_per_iteration,
    "samples": lambda row: -row.samples_per_second if row.samples_per_second is not None else None,
    "tflops": lambda row: -row.tflops if row.tflops is not None else None,
    "memory": lambda row: row.memory_bytes,
    "gpus": lambda row: row.gpus,
    "run": lambda row: row.run,
}
"""Fastest first for pace; what is unknown stands last."""

GROUPS: dict[str, Callable[[Row], Any]] = {
    "size": lambda row: _size(row.parameters),
    "gpus": lambda row: row.gpus,
    "gbs": lambda row: row.global_batch_size,
    "nodes": lambda row: row.nodes,
    "dtype": lambda row: row.dtype,
    "dialect": lambda row: row.dialect,
    "outcome": lambda row: row.outcome,
    "directory": lambda row: row.run.rpartition("/")[0],
}


@dataclass(slots=True)
class Benchmark:
    """Rows in the order to show, by group; what a reader should know before comparing them."""

    rows: list[Row]
    groups: list[tuple[str, list[Row]]]
    baseline: Row | None
    warnings: list[str] = field(default_factory=list)
    show_days: bool = False


def benchmark(
    rows: Sequence[Row], sort: str = "seconds", group: str | None = None, baseline: str | None = None
) -> Benchmark:
    """Sort, group, and find the baseline by its run name; LookupError where it names no run, or several."""
    ordered = sorted(rows, key=lambda row: (_last(SORTS[sort](row)), row.run))
    base = _find(ordered, baseline) if baseline is not None else None
    groups: dict[Any, list[Row]] = {}
    for row in ordered:
        groups.setdefault(GROUPS[group](row) if group else "", []).append(row)
    named = [(str(value), groups[value]) for value in sorted(value for value in groups if value is not None)]
    if None in groups:
        named.append(("unknown", groups[None]))
    measured = [row for row in ordered if row.seconds_per_iteration is not None]
    days = any(row.days is not None for row in rows)
    return Benchmark(ordered, named, base, warnings(measured), days)


def _last(value: float | str | None) -> tuple[bool, float | str]:
    unknown = value is None or (isinstance(value, float) and math.isnan(value))
    return unknown, 0.0 if unknown or value is None else value


def _find(rows: Sequence[Row], name: str) -> Row:
    exact = [row for row in rows if row.run == name]
    found = exact or [row for row in rows if row.run.endswith("/" + name) or name in row.sources]
    if len(found) != 1:
        known = ", ".join(row.run for row in rows)
        raise LookupError(f"{name!r} names {len(found)} runs; there are {known}")
    return found[0]


def difference(row: Row, base: Row | None) -> float | None:
    """Seconds per iteration against the baseline's: -0.05 is 5 % faster. None if either is unknown."""
    mine, other = row.seconds_per_iteration, base.seconds_per_iteration if base is not None else None
    return mine / other - 1 if mine and other else None


def efficiency(row: Row, base: Row | None) -> float | None:
    """Samples per second per GPU against the baseline's: 1 is linear scaling."""
    if base is None or not (row.samples_per_second and row.gpus and base.samples_per_second and base.gpus):
        return None
    return horizon.scaling_efficiency(row.samples_per_second, row.gpus, base.samples_per_second, base.gpus)


_COLUMNS = (
    "Run", "Nodes", "GPUs", "Size", "DP", "TP", "PP", "MBS", "GBS", "Mem", "Sec/it", "TFLOPs", "Samples/s",
    "Iterations",
)  # fmt: skip


def table(found: Benchmark, rows: Sequence[Row], extra: bool = False) -> Table:
    """The columns of docs/interface.md; Diff and Scaling with a baseline, Days with a goal, and `extra` ones."""
    more: list[tuple[str, Callable[[Row], str]]] = []
    if found.baseline is not None:
        more.append(("Diff", lambda row: _percent(difference(row, found.baseline), "+.1%")))
        more.append(("Scaling", lambda row: _percent(efficiency(row, found.baseline), ".1%")))
    if found.show_days:
        more.append(("Days", lambda row: "" if row.days is None else f"{row.days:.2f}"))
    if extra:
        more.append(("MFU", lambda row: _percent(row.mfu, ".1%")))
        more.append(("PFLOPs", lambda row: "" if row.petaflops is None else f"{row.petaflops:.3g}"))
        more.append(("Bubble", lambda row: _percent(row.pipeline_bubble, ".1%")))
        more.append(("Idle", lambda row: _text(row.idle_gpus)))
        more.append(("Formula", lambda row: row.tflops_formula or ""))
    cells = [(*_cells(row), *(read(row) for _, read in more), "; ".join(row.notes)) for row in rows]
    return Table((*_COLUMNS, *(name for name, _ in more), "Notes"), tuple(cells))


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.run, _text(row.nodes), _text(row.gpus), _size(row.parameters), _text(row.data_parallel_size),
        _text(row.tensor_parallel_size), _text(row.pipeline_parallel_size), _text(row.micro_batch_size),
        _text(row.global_batch_size), _memory(row), _seconds(row.seconds_per_iteration),
        "" if row.tflops is None else f"{row.tflops:.2f}",
        "" if row.samples_per_second is None else f"{row.samples_per_second:.3f}", _text(row.iterations or None),
    )  # fmt: skip


def _text(value: int | None) -> str:
    return "" if value is None else str(value)


def _percent(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if value >= 10 else f"{value:.4g}"


def _size(count: int | None) -> str:
    if not count:
        return ""
    for unit, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if count >= scale:
            value = count / scale
            return f"{value:.1f}{unit}" if value < 10 else f"{value:.0f}{unit}"
    return str(count)


def _memory(row: Row) -> str:
    """GiB, as people write GB; the ends first where the middle stages need another amount."""
    if row.memory_ends_bytes is not None and row.memory_others_bytes is not None:
        return f"{row.memory_ends_bytes / GIB:.0f}/{row.memory_others_bytes / GIB:.0f}GB"
    return "" if row.memory_bytes is None else f"{row.memory_bytes / GIB:.0f}GB"
