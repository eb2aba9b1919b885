"""What consistency checks need of the iteration lines, beside the last values. Pure; folded by iterations.py.

Law: bounded, plain values, a few microseconds a line. Lines that count once (copies taken out) come here.
"""

from dataclasses import dataclass, field
from math import inf, isfinite
from typing import TypeVar

from parsers.events import IterationLogged

_Value = TypeVar("_Value")
_KEPT = 3  # lines of printed figures: enough to tell a rule from an accident


@dataclass(slots=True)
class Observed:
    """Of one launch."""

    iteration: int | None = None
    samples: int | None = None
    batch: int | None = None
    miscounted: int = 0
    """Such steps in a row at which samples did not grow by the batch size."""
    miscount: list[int] = field(default_factory=list)
    """[iterations, samples, batch size] of the newest such step."""
    rates: list[float] = field(default_factory=list)
    """Printed samples per second over batch size by time, of the last lines at one batch size."""
    tflops: list[tuple[float, float, int, int]] = field(default_factory=list)
    """(printed TFLOP/s per GPU, seconds per iteration, batch size, tokens per sample) of the last lines."""
    unexplained: int = 0
    """Lines whose printed TFLOPs no formula gave: after a few of them the search ends."""


def observe_iteration(
    seen: Observed, event: IterationLogged, batch_size: int | None, tokens_per_sample: int | None
) -> None:
    """An iteration line that counted; batch and tokens as the line says them, else as the arguments do."""
    batch, samples, seconds, before = (
        event.global_batch_size,
        event.consumed_samples,
        event.seconds_per_iteration,
        seen.batch,
    )
    if batch and samples is not None:
        if before and seen.samples is not None and seen.iteration is not None:
            steps, grown = event.iteration - seen.iteration, samples - seen.samples
            if grown == batch * steps or min(batch, before) * steps <= grown <= max(batch, before) * steps:
                seen.miscounted = 0
            else:
                seen.miscounted += 1
                seen.miscount = [steps, grown, batch]
        seen.iteration, seen.samples = event.iteration, samples
    if batch and batch != before:
        seen.rates = []
    if seconds is not None and 0 < seconds < inf:
        rate, tflops = event.samples_per_second, event.tflops
        if batch and batch == before and rate is not None and isfinite(rate):
            _keep(seen.rates, rate * seconds / batch)
        if tflops is not None and 0 < tflops < inf and batch_size and tokens_per_sample:
            _keep(seen.tflops, (tflops, seconds, batch_size, tokens_per_sample))
    seen.batch = batch


def _keep(values: list[_Value], value: _Value) -> None:
    values.append(value)
    if len(values) > _KEPT:
        del values[0]
