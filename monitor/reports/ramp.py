"""The ramp-up planner: which micro-batch sizes, data parallel sizes and nodes fit each batch size of a ramp. Pure.

Rule (docs/formulas.md, "Batches and pipelines"): every batch size b of the ramp must be a multiple of
MBS x DP; a replica is TP x PP GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, gcd


@dataclass(frozen=True, slots=True)
class Ramp:
    """`--rampup-batch-size START INCREMENT SAMPLES` on the way to `batch`; no increment: the batch size is constant."""

    batch: int
    start: int | None = None
    increment: int | None = None
    samples: int | None = None

    def __post_init__(self) -> None:
        """Refuse what Megatron refuses: sizes below 1, and steps that do not end at the batch size."""
        if self.batch < 1 or (self.start is not None and self.start < 1) or (self.samples or 0) < 0:
            raise ValueError("batch sizes are 1 or more")
        if (self.start is None) != (self.increment is None):
            raise ValueError("a ramp has a start and an increment")
        if self.start is not None and self.increment is not None:
            if self.increment < 1 or self.start > self.batch:
                raise ValueError("the increment is 1 or more, and the start at most the batch size")
            if (self.batch - self.start) % self.increment:
                raise ValueError(
                    f"{self.batch} - {self.start} is no multiple of the increment {self.increment}: Megatron refuses it"
                )

    def sizes(self) -> range:
        """Every batch size that the ramp passes, the last one included."""
        if self.start is None or self.increment is None:
            return range(self.batch, self.batch + 1)
        return range(self.start, self.batch + 1, self.increment)

    @property
    def divisor(self) -> int:
        """MBS x DP must divide this: gcd(start, increment, batch)."""
        sizes = self.sizes()
        return gcd(sizes[0], self.batch, sizes.step if len(sizes) > 1 else 0)

    def stages(self) -> Iterator[tuple[int, int, int]]:
        """(batch size, iterations, samples) of each step of the ramp but the last, which lasts to the end."""
        sizes, consumed = self.sizes(), 0
        step = (self.samples or 0) / max(1, len(sizes) - 1)
        for number, size in enumerate(sizes[:-1], start=1):
            iterations = max(0, ceil((number * step - consumed) / size))
            consumed += iterations * size
            if iterations:
                yield size, iterations, iterations * size


@dataclass(frozen=True, slots=True)
class Fit:
    """The largest layout of one batch size at one micro-batch size: counts of replicas, GPUs and nodes."""

    batch: int
    micro_batch: int
    replicas: int
    gpus: int
    nodes: float
    """Whole where the GPUs fill their nodes."""


def largest(batch: int, micro_batch: int, tensor: int, pipeline: int, per_node: int) -> Fit | None:
    """Most replicas that the batch size feeds: BS / MBS; None where it does not divide."""
    if micro_batch < 1 or batch % micro_batch:
        return None
    replicas = batch // micro_batch
    gpus = replicas * tensor * pipeline
    return Fit(batch, micro_batch, replicas, gpus, gpus / per_node)


def problem(ramp: Ramp, micro_batch: int, data_parallel: int) -> str | None:
    """Why this layout cannot run the whole ramp; None if it can. Names the first batch size that does not divide."""
    share = micro_batch * data_parallel
    if share < 1:
        return "MBS and DP are 1 or more"
    if ramp.divisor % share == 0:
        return None
    # the first of start, start + increment and the end fails if any does: their gcd is the ramp's
    size = next(size for size in ramp.sizes() if size % share)
    return f"batch size {size} % (MBS {micro_batch} x DP {data_parallel} = {share}) = {size % share}"


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout that can run the whole ramp: GPUs it needs, and the micro-batches of a pipeline at its two ends."""

    data_parallel: int
    micro_batch: int
    gpus: int
    nodes: float
    first_micro_batches: int
    last_micro_batches: int
    idle_gpus: int
    """Of those at hand, left over; 0 where none were named."""


def layouts(
    ramp: Ramp, tensor: int, pipeline: int, per_node: int, gpus: int | None = None, micro_batch: int | None = None
) -> list[Layout]:
    """Every (DP, MBS) that divides each batch size of the ramp on at most `gpus`, most GPUs first, then largest MBS."""
    replica, found = tensor * pipeline, []
    for share in _divisors(ramp.divisor):
        for data_parallel in _divisors(share):
            mbs = share // data_parallel
            needed = replica * data_parallel
            if (gpus is not None and needed > gpus) or (micro_batch is not None and mbs != micro_batch):
                continue
            first, last = ramp.sizes()[0] // share, ramp.batch // share
            idle = gpus - needed if gpus is not None else 0
            found.append(Layout(data_parallel, mbs, needed, needed / per_node, first, last, idle))
    return sorted(found, key=lambda layout: (-layout.gpus, -layout.micro_batch))


def _divisors(number: int) -> list[int]:
    small = [value for value in range(1, int(number**0.5) + 1) if number % value == 0]
    return small + [number // value for value in reversed(small) if value * value != number]
