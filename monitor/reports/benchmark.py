"""The benchmark table: rows sorted and grouped, what forbids comparing them; as Markdown, CSV and JSON. Pure."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from monitor.reports import columns, tables
from monitor.reports.columns import COLUMNS, size
from monitor.reports.comparability import warnings
from monitor.reports.rows import Row
from monitor.reports.tables import Table

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
    "size": lambda row: size(row.parameters or 0),
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
    return Benchmark(ordered, named, base, warnings(measured))


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


def table(found: Benchmark, rows: Sequence[Row], extra: bool = False) -> Table:
    """Rows of the benchmark as texts; `extra` columns too where asked for."""
    base = found.baseline
    shown = columns.shown(found.rows, base, extra)
    cells = (tuple(column.shows(row, base) for column in shown) for row in rows)
    return Table(tuple(column.title for column in shown), tuple(cells))


def as_markdown(found: Benchmark, extra: bool = False) -> str:
    """A table a group, then what keeps rows from being compared."""
    parts = []
    for name, rows in found.groups:
        if name:
            parts += [f"## {name}", ""]
        parts += [tables.markdown(table(found, rows, extra)), ""]
    if found.warnings:
        parts += ["Before comparing:", "", *(f"- {text}" for text in found.warnings), ""]
    return "\n".join(parts)


def as_csv(found: Benchmark, _extra: bool = False) -> str:
    """Every figure at full precision, in base units; the group first where there is one."""
    grouped = any(name for name, _ in found.groups)
    kept = [column for column in COLUMNS if column.csv]
    rows = []
    for name, members in found.groups:
        for row in members:
            values = [column.value(row, found.baseline) for column in kept]
            cells = ["; ".join(value) if isinstance(value, list) else value for value in values]
            rows.append([name, *cells] if grouped else cells)
    return tables.as_csv([*(["group"] if grouped else []), *(column.name for column in kept)], rows)


def as_json(found: Benchmark, _extra: bool = False) -> str:
    """`{"rows": [...], "baseline": RUN, "warnings": [...]}`; rows hold every column that is known."""
    rows = [columns.as_json(row, found.baseline) for row in found.rows]
    document: dict[str, Any] = {"rows": rows, "warnings": found.warnings}
    if found.baseline is not None:
        document["baseline"] = found.baseline.run
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
