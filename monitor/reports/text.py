"""The benchmark as Markdown, CSV and JSON."""

from __future__ import annotations

import json

from monitor.reports.benchmark import Benchmark, difference, efficiency, table
from monitor.reports.tables import as_csv as csv_of
from monitor.reports.tables import markdown


def as_markdown(found: Benchmark, extra: bool = False) -> str:
    """A table a group, then what keeps rows from being compared."""
    parts = []
    for name, rows in found.groups:
        if name:
            parts += [f"## {name}", ""]
        parts += [markdown(table(found, rows, extra)), ""]
    if found.warnings:
        parts += ["Before comparing:", "", *(f"- {text}" for text in found.warnings), ""]
    return "\n".join(parts)


_CSV = (
    "run", "outcome", "nodes", "gpus", "parameters", "data_parallel_size", "tensor_parallel_size",
    "pipeline_parallel_size", "context_parallel_size", "micro_batch_size", "global_batch_size", "sequence_length",
    "memory_bytes", "memory_ends_bytes", "memory_others_bytes", "seconds_per_iteration", "seconds_low", "seconds_high",
    "steady_iterations", "tflops", "tflops_source", "tflops_formula", "tflops_computed", "mfu", "hfu",
    "samples_per_second", "tokens_per_second", "petaflops", "pipeline_bubble", "idle_gpus", "days", "iterations",
    "last_iteration", "train_iterations", "restarts", "layers", "hidden_size", "attention_heads",
    "dtype", "zero_stage", "activation_checkpointing", "gpu",
    "dialect",
)  # fmt: skip


def as_csv(found: Benchmark, _extra: bool = False) -> str:
    """Every figure at full precision, in base units; the group first where there is one."""
    grouped = any(name for name, _ in found.groups)
    rows = [
        [
            *([name] if grouped else []),
            *(getattr(row, column) for column in _CSV),
            difference(row, found.baseline),
            efficiency(row, found.baseline),
            "; ".join(row.notes),
        ]
        for name, members in found.groups
        for row in members
    ]
    return csv_of([*(["group"] if grouped else []), *_CSV, "difference", "scaling_efficiency", "notes"], rows)


def as_json(found: Benchmark, _extra: bool = False) -> str:
    """`{"rows": [...], "baseline": RUN, "warnings": [...]}`; rows as Row.to_json has them."""
    rows = []
    for row in found.rows:
        values = row.to_json()
        for name, value in (
            ("difference", difference(row, found.baseline)),
            ("scaling_efficiency", efficiency(row, found.baseline)),
        ):
            if value is not None:
                values[name] = value
        rows.append(values)
    document = {"rows": rows, "warnings": found.warnings}
    if found.baseline is not None:
        document["baseline"] = found.baseline.run
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
