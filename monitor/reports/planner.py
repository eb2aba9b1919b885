"""What `flops plan` answers: a ramp and a replica -> stages of the ramp, layouts that can run it, problems. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from monitor.reports.formulas import bubble
from monitor.reports.ramp import Ramp, largest, layouts, problem
from monitor.reports.tables import Table, aligned

_SHOWN = 20


def _problems(
    ramp: Ramp, tensor: int, pipeline: int, per_node: int, gpus: int | None, micro_batch: int | None,
    data_parallel: int | None, layers: int | None,
) -> Iterator[str]:  # fmt: skip
    """What is wrong with what was asked for."""
    if layers and layers % pipeline:
        yield f"layers {layers} % PP {pipeline} = {layers % pipeline}"
    if tensor > per_node:
        yield f"TP {tensor} is larger than a node of {per_node} GPUs"
    if micro_batch is None or data_parallel is None:
        return
    if wrong := problem(ramp, micro_batch, data_parallel):
        yield wrong
    if gpus is not None and data_parallel * tensor * pipeline > gpus:
        yield f"TP x PP x DP = {data_parallel * tensor * pipeline} GPUs, and there are {gpus}"


def answer(
    ramp: Ramp, tensor: int, pipeline: int, per_node: int, *, gpus: int | None = None, micro_batch: int | None = None,
    data_parallel: int | None = None, layers: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Plain data: `problems` is empty where the ramp can be run, with the layout asked for if one was."""
    problems = list(_problems(ramp, tensor, pipeline, per_node, gpus, micro_batch, data_parallel, layers))
    found = layouts(ramp, tensor, pipeline, per_node, gpus, micro_batch)
    if data_parallel is not None:
        found = [layout for layout in found if layout.data_parallel == data_parallel]
    if not found and not problems:
        problems.append("no layout runs the whole ramp" + (f" on {gpus} GPUs" if gpus else ""))
    sizes = ramp.sizes()
    ways = [micro_batch] if micro_batch else [1, 2, 4, 8]
    return {
        "replica_gpus": tensor * pipeline,
        "divisor": ramp.divisor,
        "sizes": {"first": sizes[0], "last": ramp.batch, "steps": len(sizes)},
        "stages": [
            {"batch_size": size, "iterations": count, "samples": samples} for size, count, samples in ramp.stages()
        ],
        "largest": [
            {**asdict(fit), "nodes": _whole(fit.nodes)}
            for size in dict.fromkeys((sizes[0], ramp.batch))
            for mbs in ways
            if (fit := largest(size, mbs, tensor, pipeline, per_node))
        ],
        "layouts": [
            {
                **asdict(layout),
                "nodes": _whole(layout.nodes),
                "first_bubble": bubble(pipeline, layout.first_micro_batches),
                "last_bubble": bubble(pipeline, layout.last_micro_batches),
            }
            for layout in found
        ],
        "problems": problems,
    }


def _whole(nodes: float) -> float:
    return int(nodes) if nodes == int(nodes) else nodes


def text(found: dict[str, Any]) -> str:
    """The answer for people."""
    sizes, parts = found["sizes"], []
    parts.append(
        f"A replica is {found['replica_gpus']} GPUs; batch sizes {sizes['first']} to {sizes['last']} "
        f"in {sizes['steps']} steps; MBS x DP must divide {found['divisor']}"
    )
    if found["stages"]:
        rows = tuple((str(s["batch_size"]), str(s["iterations"]), str(s["samples"])) for s in found["stages"])
        parts += ["", "Ramp", _shortened(Table(("GBS", "iterations", "samples"), rows))]
    most = tuple(
        (str(f["batch"]), str(f["micro_batch"]), str(f["replicas"]), str(f["gpus"]), f"{f['nodes']:g}")
        for f in found["largest"]
    )
    parts += ["", "Most that a batch size can feed", aligned(Table(("GBS", "MBS", "DP", "GPUs", "nodes"), most), "  ")]
    if found["layouts"]:
        listed = tuple(
            (
                str(x["data_parallel"]), str(x["micro_batch"]), str(x["gpus"]), f"{x['nodes']:g}", str(x["idle_gpus"]),
                f"{x['first_bubble']:.1%}", f"{x['last_bubble']:.1%}",
            )
            for x in found["layouts"]
        )  # fmt: skip
        headers = ("DP", "MBS", "GPUs", "nodes", "idle", "bubble at start", "at end")
        parts += ["", "Layouts that run the whole ramp", _shortened(Table(headers, listed))]
    for text in found["problems"]:
        parts += ["", f"Not valid: {text}"]
    return "\n".join(parts)


def _shortened(table: Table) -> str:
    kept = aligned(Table(table.headers, table.rows[:_SHOWN]), "  ")
    more = len(table.rows) - _SHOWN
    return kept + (f"\n  ... and {more} more (--json gives all)" if more > 0 else "")
