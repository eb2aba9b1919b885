"""What `flops plan` answers: which micro-batch sizes, data parallel sizes and nodes fit each size of a ramp. Pure.

Rule (docs/formulas.md, "Batches and pipelines"): every batch size b of the ramp must be a multiple of
MBS x DP; a replica is TP x PP GPUs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, gcd
from typing import Any

from megatron_monitor.reports.formulas import bubble
from megatron_monitor.reports.tables import Table, aligned


@dataclass(frozen=True, slots=True)
class Ramp:
    """`--rampup-batch-size START INCREMENT SAMPLES` on the way to `batch`; a constant batch size starts at its end."""

    batch: int
    start: int
    increment: int
    samples: int

    def __post_init__(self) -> None:
        """Refuse what Megatron refuses: sizes below 1, and steps that do not end at the batch size."""
        if self.start < 1 or self.samples < 0:
            raise ValueError("batch sizes are 1 or more")
        if self.increment < 1 or self.start > self.batch:
            raise ValueError("the increment is 1 or more, and the start at most the batch size")
        if (self.batch - self.start) % self.increment:
            raise ValueError(
                f"{self.batch} - {self.start} is no multiple of the increment {self.increment}: Megatron refuses it"
            )

    def sizes(self) -> range:
        """Every batch size that the ramp passes, the last one included."""
        return range(self.start, self.batch + 1, self.increment)

    @property
    def divisor(self) -> int:
        """MBS x DP must divide this: gcd(start, increment, batch)."""
        return gcd(self.start, self.batch, self.increment if self.start < self.batch else 0)

    def stages(self) -> Iterator[dict[str, int]]:
        """Batch size, iterations and samples of each step of the ramp but the last, which lasts to the end."""
        sizes, consumed = self.sizes(), 0
        step = self.samples / max(1, len(sizes) - 1)
        for number, size in enumerate(sizes[:-1], start=1):
            iterations = max(0, ceil((number * step - consumed) / size))
            consumed += iterations * size
            if iterations:
                yield {"batch_size": size, "iterations": iterations, "samples": iterations * size}


def largest(batch: int, micro_batch: int, tensor: int, pipeline: int, per_node: int) -> dict[str, float] | None:
    """The layout of most replicas that the batch size feeds, BS / MBS, in counts; None where it does not divide."""
    if batch % micro_batch:
        return None
    replicas = batch // micro_batch
    gpus = replicas * tensor * pipeline
    counts = {"batch": batch, "micro_batch": micro_batch, "replicas": replicas, "gpus": gpus}
    return counts | {"nodes": _nodes(gpus, per_node)}


def _nodes(gpus: int, per_node: int) -> float:
    """Whole where the GPUs fill their nodes."""
    return gpus / per_node if gpus % per_node else gpus // per_node


def problem(ramp: Ramp, micro_batch: int, data_parallel: int) -> str | None:
    """Why this layout cannot run the whole ramp; None if it can. Names the first batch size that does not divide."""
    share = micro_batch * data_parallel
    if ramp.divisor % share == 0:
        return None
    # the first of start, start + increment and the end fails if any does: their gcd is the ramp's
    size = next(size for size in ramp.sizes() if size % share)
    return f"batch size {size} % (MBS {micro_batch} x DP {data_parallel} = {share}) = {size % share}"


def layouts(
    ramp: Ramp, tensor: int, pipeline: int, per_node: int, gpus: int | None = None, micro_batch: int | None = None
) -> list[dict[str, float]]:
    """Every (DP, MBS) that divides each batch size of the ramp on at most `gpus`, most GPUs first, then largest MBS:
    the GPUs that it needs and leaves over, and what a pipeline takes and how long it waits at the ramp's two ends.
    """
    found = []
    for share in _divisors(ramp.divisor):
        first, last = ramp.start // share, ramp.batch // share
        for data_parallel in _divisors(share):
            mbs, needed = share // data_parallel, tensor * pipeline * data_parallel
            if (gpus is not None and needed > gpus) or micro_batch not in (None, mbs):
                continue
            found.append({
                "data_parallel": data_parallel, "micro_batch": mbs, "gpus": needed, "nodes": _nodes(needed, per_node),
                "first_micro_batches": first, "last_micro_batches": last,
                "idle_gpus": gpus - needed if gpus is not None else 0,
                "first_bubble": bubble(pipeline, first), "last_bubble": bubble(pipeline, last),
            })  # fmt: skip
    return sorted(found, key=lambda layout: (-layout["gpus"], -layout["micro_batch"]))


def _divisors(number: int) -> list[int]:
    small = [value for value in range(1, int(number**0.5) + 1) if number % value == 0]
    return small + [number // value for value in reversed(small) if value * value != number]


_SHOWN = 20


def answer(
    ramp: Ramp, tensor: int, pipeline: int, per_node: int, *, gpus: int | None = None, micro_batch: int | None = None,
    data_parallel: int | None = None, layers: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Plain data: `problems` is empty where the ramp can be run, with the layout asked for if one was."""
    problems = list(_problems(ramp, tensor, pipeline, per_node, gpus, micro_batch, data_parallel, layers))
    found = layouts(ramp, tensor, pipeline, per_node, gpus, micro_batch)
    found = [layout for layout in found if data_parallel in (None, layout["data_parallel"])]
    if not found and not problems:
        problems.append("no layout runs the whole ramp" + (f" on {gpus} GPUs" if gpus else ""))
    ways = [micro_batch] if micro_batch else [1, 2, 4, 8]
    return {
        "replica_gpus": tensor * pipeline,
        "divisor": ramp.divisor,
        "sizes": {"first": ramp.start, "last": ramp.batch, "steps": len(ramp.sizes())},
        "stages": list(ramp.stages()),
        "largest": [
            fit
            for size in dict.fromkeys((ramp.start, ramp.batch))
            for mbs in ways
            if (fit := largest(size, mbs, tensor, pipeline, per_node))
        ],
        "layouts": found,
        "problems": problems,
    }


def _problems(
    ramp: Ramp, tensor: int, pipeline: int, per_node: int, gpus: int | None, micro: int | None, data: int | None,
    layers: int | None,
) -> Iterator[str]:  # fmt: skip
    """Of the model, and of the layout that is asked for, if one is."""
    if layers and layers % pipeline:
        yield f"layers {layers} % PP {pipeline} = {layers % pipeline}"
    if tensor > per_node:
        yield f"TP {tensor} is larger than a node of {per_node} GPUs"
    if micro is None or data is None:
        return
    if wrong := problem(ramp, micro, data):
        yield wrong
    if gpus is not None and (wanted := data * tensor * pipeline) > gpus:
        yield f"TP x PP x DP = {wanted} GPUs, and there are {gpus}"


_TABLES = (
    ("Ramp", "stages", {"GBS": "{batch_size}", "iterations": "{iterations}", "samples": "{samples}"}),
    ("Most that a batch size can feed", "largest",
     {"GBS": "{batch}", "MBS": "{micro_batch}", "DP": "{replicas}", "GPUs": "{gpus}", "nodes": "{nodes:g}"}),
    ("Layouts that run the whole ramp", "layouts",
     {"DP": "{data_parallel}", "MBS": "{micro_batch}", "GPUs": "{gpus}", "nodes": "{nodes:g}", "idle": "{idle_gpus}",
      "bubble at start": "{first_bubble:.1%}", "at end": "{last_bubble:.1%}"}),
)  # fmt: skip
"""Title, what of the answer, and its columns."""


def text(found: dict[str, Any]) -> str:
    """The answer for people."""
    sizes = found["sizes"]
    parts = [
        f"A replica is {found['replica_gpus']} GPUs; batch sizes {sizes['first']} to {sizes['last']} "
        f"in {sizes['steps']} steps; MBS x DP must divide {found['divisor']}"
    ]
    for title, name, columns in _TABLES:
        if found[name] or name == "largest":
            parts += ["", title, aligned(Table.of(columns, found[name][:_SHOWN]), "  ")]
        if (more := len(found[name]) - _SHOWN) > 0:
            parts.append(f"  ... and {more} more (--json gives all)")
    for wrong in found["problems"]:
        parts += ["", f"Not valid: {wrong}"]
    return "\n".join(parts)
