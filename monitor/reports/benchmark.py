"""The benchmark table: rows sorted and grouped, what forbids comparing them; as Markdown, CSV and JSON. Pure."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import Any, TypeVar

from megatron_monitor.reports import columns, tables
from megatron_monitor.reports.columns import COLUMNS, size
from megatron_monitor.reports.rows import Row
from megatron_monitor.reports.tables import Table

T = TypeVar("T")

# What keeps rows of one table from being compared, and repeats of one configuration that contradict each other.

_REPEATS = 0.05  # same configuration, more than 5 % apart (K14): network or clocks made such runs differ by up to 74 %
_SWAPPED = 2e-4  # at 0.5 % sound rows of the tables look swapped too

_FACTS: tuple[tuple[str, Callable[[Row], Any]], ...] = (
    ("TFLOPs are by different formulas", lambda row: row.tflops_formula if row.tflops is not None else None),
    ("number formats differ", lambda row: row.dtype),
    ("activation checkpointing differs", lambda row: row.activation_checkpointing),
    ("CUDA_LAUNCH_BLOCKING differs", lambda row: row.environment.get("CUDA_LAUNCH_BLOCKING")),
    ("GPUs differ", lambda row: row.gpu),
    ("sequence lengths differ", lambda row: row.sequence_length),
    ("nodes differ", lambda row: row.environment.get("SLURM_JOB_NODELIST")),
)
_SHOWN = 4


def _grouped(rows: Iterable[T], key: Callable[[T], Any]) -> dict[Any, list[T]]:
    """The rows of each value, in their order; those of which it is not known are in none."""
    groups: dict[Any, list[T]] = {}
    for row in rows:
        if (value := key(row)) is not None:
            groups.setdefault(value, []).append(row)
    return groups


def warnings(rows: Sequence[Row]) -> list[str]:
    """Sentences for the rows that were measured; facts that are not in a log are unknown, not equal."""
    software = sorted({name for row in rows for name in row.software})
    facts = [*_FACTS, *((f"{name} differs", lambda row, name=name: row.software.get(name)) for name in software)]
    out = []
    for text, read in facts:
        found = {value: _names([row.run for row in group]) for value, group in _grouped(rows, read).items()}
        if len(found) > 1:
            out.append(f"{text}: " + "; ".join(f"{value} ({names})" for value, names in found.items()))
    return [*out, *_contradictions(rows), *_fuller(rows)]


def _names(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def configuration(row: Row) -> tuple[Any, ...] | None:
    """What must be equal for two runs to be repeats of each other; None where too little is known."""
    key = tuple(column.value(row) for column in COLUMNS if column.compare == "repeat")
    return key if row.gpus and row.global_batch_size and (row.parameters or row.layers) else None


def _contradictions(rows: Sequence[Row]) -> list[str]:
    """K13 and K14: repeats of one configuration that are far apart, or whose two figures look exchanged."""
    out = []
    for group in _grouped(rows, configuration).values():
        if len(group) < 2:
            continue
        swapped = [(a, b) for place, a in enumerate(group) for b in group[place + 1 :] if _swapped(a, b)]
        text = "seconds and TFLOPs look exchanged between {} and {}, of the same configuration"
        out += [text.format(one.run, other.run) for one, other in swapped]
        times = sorted((row.seconds_per_iteration or 0.0, row.run) for row in group)
        spread = times[-1][0] / times[0][0] - 1
        if spread > _REPEATS and not swapped:
            slower = f"{times[-1][1]} takes {spread:.0%} longer than {times[0][1]}"
            out.append(f"{slower} with the same configuration: report the spread")
    return out


def _fuller(rows: Sequence[Row]) -> list[str]:
    """K16: memory that falls where the micro batch grows, all else equal."""
    alike = _grouped(
        (row for row in rows if row.micro_batch_size and row.memory_bytes),
        lambda row: configuration(replace(row, micro_batch_size=None)),
    )
    return [
        f"{row.run} takes more memory at micro batch {small} than {other.run} at {large}"
        for group in alike.values()
        for row, other in permutations(group, 2)
        if (small := row.micro_batch_size or 0) < (large := other.micro_batch_size or 0)
        and (row.memory_bytes or 0) > (1 + _REPEATS) * (other.memory_bytes or 0)
    ]


def _swapped(one: Row, other: Row) -> bool:
    a, b = (one.seconds_per_iteration, one.tflops), (other.seconds_per_iteration, other.tflops)
    if not (a[0] and a[1] and b[0] and b[1]) or abs(a[0] / b[0] - 1) <= _REPEATS:
        return False
    return abs(a[0] / b[1] - 1) < _SWAPPED and abs(a[1] / b[0] - 1) < _SWAPPED


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
    by = GROUPS[group] if group else lambda _: ""
    groups = _grouped(ordered, by)
    named = [(str(value), groups[value]) for value in sorted(groups)]
    if unknown := [row for row in ordered if by(row) is None]:
        named.append(("unknown", unknown))
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
    return Table(tuple(column.title or "" for column in shown), tuple(cells))


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
    kept = [column for column in COLUMNS if column.csv == "yes"]
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
