"""Explains printed TFLOP/s of a run: the formula that gives them, or that none does. Pure."""

from megatron_monitor.charts.steady import AtSize
from megatron_monitor.model import flops
from megatron_monitor.run.state import RunState

_MAX_VARIATION = 0.02  # share of an iteration's FLOPs: more than the rounding of three digits of a rate and its time
_ROUNDINGS = (0.0, -0.25, 0.25, -0.5, 0.5, -0.75, 0.75, -1.0, 1.0)  # of the seconds' rounding, the printed value first


def explains(
    state: RunState, printed: float | None, seconds: float, batch: int | None, sequence: int | None, rounding: float
) -> str | None:
    """Return the formula behind a printed figure, with the seconds as they may have been before rounding, else the
    formula of the run's first line.
    """
    attempt = state.attempt
    if printed is None:
        return None
    if attempt.tflops_formula == flops.EFFECTIVE:
        return flops.EFFECTIVE  # the line names it
    found = (
        flops.explain_printed(printed, attempt.topology, seconds + share * rounding, batch, sequence)
        for share in _ROUNDINGS
        if seconds + share * rounding > 0
    )
    return next((name for name in found if name), None) or attempt.tflops_formula


def misprint(
    state: RunState, printed: float | None, seconds: float | None, batch: int | None, sequence: int | None,
    rounding: float, steady: AtSize | None,
) -> str:  # fmt: skip
    """Return what is wrong with a printed figure that no formula explains. Empty: it cannot be recomputed, because the
    arguments are unusual or the work per iteration varies (packed sequences). `rounding`: half a unit of the last
    printed digit of the seconds.
    """
    topology = state.attempt.topology
    if not (printed and seconds and batch and sequence) or topology.unusual or (steady and _varies(steady)):
        return ""
    near = flops.nearest_formula(printed, topology, seconds, batch, sequence)
    if near is None:
        return ""  # too little is known
    off = near[1] / printed - 1
    if abs(off) <= rounding / seconds:
        return ""  # the seconds are too coarse to distinguish the formulas
    return f"TFLOPs {printed:g} do not reproduce: {near[0]} gives {near[1]:.2f} ({off:+.1%})"


def _varies(steady: AtSize) -> bool:
    """Return True if the FLOPs of iterations differ according to the lines."""
    seconds, tflops = steady.seconds.values, steady.tflops.values
    work = (
        [duration * rate for duration, rate in zip(seconds, tflops, strict=False)]
        if len(seconds) == len(tflops)
        else []
    )
    return len(work) > 1 and max(work) > (1 + _MAX_VARIATION) * min(work)
