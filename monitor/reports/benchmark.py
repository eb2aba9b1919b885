"""The benchmark table: sorted rows and obstacles to comparing them. Pure."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from megatron_monitor.reports.formats import COLUMNS, Benchmark
from megatron_monitor.reports.rows import Row

T = TypeVar("T")

_REPEATS = 0.05  # equal configurations more than 5 % apart: network or clocks made such runs differ by up to 74 %
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
    """Return the rows of each value in their order. Rows with an unknown value are omitted."""
    groups: dict[Any, list[T]] = {}
    for row in rows:
        if (value := key(row)) is not None:
            groups.setdefault(value, []).append(row)
    return groups


def warnings(rows: Sequence[Row]) -> list[str]:
    """Return sentences about the measured rows. A fact that a log does not have is unknown, not equal."""
    software = sorted({name for row in rows for name in row.software})
    facts = [*_FACTS, *((f"{name} differs", lambda row, name=name: row.software.get(name)) for name in software)]
    out = []
    for text, read in facts:
        found = {value: _names([row.run for row in group]) for value, group in _grouped(rows, read).items()}
        if len(found) > 1:
            out.append(f"{text}: " + "; ".join(f"{value} ({names})" for value, names in found.items()))
    return [*out, *_apart(rows)]


def _names(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def configuration(row: Row) -> tuple[Any, ...] | None:
    """Return what two repeats of a run have in common. None: too little is known."""
    key = tuple(column.value(row) for column in COLUMNS if column.repeat == "yes")
    return key if row.gpus and row.global_batch_size and (row.parameters or row.layers) else None


def _apart(rows: Sequence[Row]) -> list[str]:
    """Return the repeats of a configuration that are far apart."""
    out = []
    for group in _grouped(rows, configuration).values():
        times = sorted((row.seconds_per_iteration or 0.0, row.run) for row in group)
        spread = times[-1][0] / times[0][0] - 1
        if spread > _REPEATS:
            slower = f"{times[-1][1]} takes {spread:.0%} longer than {times[0][1]}"
            out.append(f"{slower} with the same configuration: report the spread")
    return out


def benchmark(rows: Sequence[Row], baseline: str | None = None) -> Benchmark:
    """Sort the rows, the fastest first and unknown times last, and find the baseline by its run name.

    Raises LookupError if no run or several have this name.
    """
    ordered = sorted(rows, key=lambda row: (row.seconds_per_iteration or math.inf, row.run))
    base = _find(ordered, baseline) if baseline is not None else None
    return Benchmark(ordered, base, warnings([row for row in ordered if row.seconds_per_iteration is not None]))


def _find(rows: Sequence[Row], name: str) -> Row:
    exact = [row for row in rows if row.run == name]
    found = exact or [row for row in rows if row.run.endswith("/" + name) or name in row.sources]
    if len(found) != 1:
        known = ", ".join(row.run for row in rows)
        raise LookupError(f"{name!r} names {len(found)} runs; there are {known}")
    return found[0]
