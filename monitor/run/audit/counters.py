"""Do the lines agree with themselves? K09 samples per second against batch and time, K10 consumed samples."""

from __future__ import annotations

from collections.abc import Iterator

from monitor.run.audit.finding import Finding
from monitor.run.state import RunState

_RATE = 0.01  # printed digits and seconds round; 0.005 as printed by early BigScience has one digit
_LINES = 2  # lines in a row: one may have come out of order


def counters(state: RunState) -> Iterator[Finding]:
    """Both checks. Packed sequences and curricula count samples in their own ways."""
    if state.topology.unusual:
        return
    yield from _samples(state)
    yield from _rate(state)


def _samples(state: RunState) -> Iterator[Finding]:
    seen = state.observed
    if seen.miscounted < _LINES:
        return
    steps, grown, batch = seen.miscount
    yield Finding(
        "K10",
        "warning",
        f"consumed samples grow by {grown} in {steps} iterations, not by {steps} x {batch}",
        evidence={"iterations": steps, "samples": grown, "global_batch_size": batch},
    )


def _rate(state: RunState) -> Iterator[Finding]:
    rates = [rate for rate in state.observed.rates if rate > 0]
    if len(rates) < _LINES:
        return
    low, high = min(rates), max(rates)
    if high / low > 1 + 2 * _RATE + _coarse(state):
        return  # no fixed relation: the figure is averaged over other lines
    ratio = (low * high) ** 0.5
    evidence = {"printed_over_recomputed": round(ratio, 6)}
    if abs(ratio * 1000 - 1) <= _RATE + _coarse(state):
        text = "printed samples per second are 1000 times too small: they were divided by milliseconds"
        yield Finding("K09", "info", text, "unit", evidence)
    elif abs(ratio - 1) > _RATE + _coarse(state):
        text = f"printed samples per second are {ratio:.4g} x batch size over time per iteration"
        yield Finding("K09", "info", text, evidence=evidence)


def _coarse(state: RunState) -> float:
    """What rounding to three decimals may be of the printed figure: 0.005 may be 0.0045 to 0.0055."""
    printed = state.latest.samples_per_second
    return 0.0006 / printed if printed else 0.0
