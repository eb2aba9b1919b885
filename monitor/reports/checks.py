"""Consistency checks of one run's own figures, as short sentences for the Notes column. Pure.

Each has its number in seed-facts.md, section 4. What is asked of the configuration while a run lives belongs to the
detectors; `findings` is the one place where a report calls such checks.
"""

from __future__ import annotations

from dataclasses import dataclass

from monitor.reports.ramp import Ramp, problem
from monitor.run import causes, flops
from monitor.run.state import RunState
from monitor.run.topology import Topology


@dataclass(frozen=True, slots=True)
class Finding:
    """A failed check, and what the figures say."""

    check: str
    text: str


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures that a report row shows: seconds per iteration, batch and sequence, printed and recomputed TFLOPs."""

    seconds: float | None
    batch: int | None
    sequence: int | None
    printed: float | None
    formula: str | None
    """The formula that gives the printed figure."""
    peak: float | None
    rounding: float = 0.0
    """Half a unit of the last digit that the log prints of the seconds."""


def findings(state: RunState, measured: Measured) -> list[Finding]:
    """Every check that failed."""
    return [
        finding
        for finding in (
            _world(state.topology),
            _batch(state.topology),
            _layers(state.topology),
            _ramp(state.topology),
            _tflops(state.topology, measured),
            _plausible(measured),
        )
        if finding is not None
    ]


def _world(topology: Topology) -> Finding | None:
    tensor, pipeline, data = (
        topology.tensor_parallel_size, topology.pipeline_parallel_size, topology.data_parallel_size,
    )  # fmt: skip
    world, context = topology.world_size, topology.context_parallel_size or 1
    if not (tensor and pipeline and data and world) or tensor * pipeline * data * context == world:
        return None
    sizes = f"TP {tensor} x PP {pipeline} x DP {data}" + (f" x CP {context}" if context > 1 else "")
    return Finding("K02", f"{sizes} = {tensor * pipeline * data * context} is not the world size {world}")


def _batch(topology: Topology) -> Finding | None:
    batch, micro, data = topology.global_batch_size, topology.micro_batch_size, topology.data_parallel_size
    if not (batch and micro and data) or batch % (micro * data) == 0:
        return None
    return Finding("K04", f"GBS {batch} % (MBS {micro} x DP {data}) = {batch % (micro * data)}")


def _layers(topology: Topology) -> Finding | None:
    layers, pipeline = topology.layers, topology.pipeline_parallel_size
    # BLOOM counts the embedding at each end as a layer of its own: 70 + 2 on 12 stages
    if not (layers and pipeline) or layers % pipeline == 0 or (layers + 2) % pipeline == 0:
        return None
    return Finding("K05", f"{layers} layers on {pipeline} pipeline stages are uneven")


def _ramp(topology: Topology) -> Finding | None:
    batch, micro, data = topology.global_batch_size, topology.micro_batch_size, topology.data_parallel_size
    if topology.rampup is None or not (batch and micro and data):
        return None
    start, increment, samples = topology.rampup
    try:
        wrong = problem(Ramp(batch, start, increment, samples), micro, data)
    except ValueError as error:
        wrong = str(error)
    return Finding("K21", f"ramp-up: {wrong}") if wrong else None


def _tflops(topology: Topology, measured: Measured) -> Finding | None:
    """K08 and K12: a printed figure that no formula gives, with the input that would, if one does."""
    printed, seconds, batch, sequence = measured.printed, measured.seconds, measured.batch, measured.sequence
    if measured.formula or not (printed and seconds and batch and sequence):
        return None
    near = causes.nearest(printed, topology, seconds, batch, sequence)
    if near is None:
        return None  # the log does not tell enough to judge
    off = f"TFLOPs {printed:g} do not reproduce: {near[0]} gives {near[1]:.2f} ({near[1] / printed - 1:+.1%})"
    if abs(near[1] / printed - 1) <= measured.rounding / seconds:
        return None  # the seconds are printed too coarsely to tell which formula it is
    wrong = causes.wrong_input(printed, topology, seconds, batch, sequence)
    return Finding("K12" if wrong else "K08", off + (f"; would fit {' or '.join(wrong[:3])}" if wrong else ""))


def _plausible(measured: Measured) -> Finding | None:
    if measured.printed is None or measured.peak is None or measured.printed <= measured.peak:
        return None
    return Finding("K17", f"TFLOPs {measured.printed:g} are above the GPU's peak of {measured.peak:g}")


_WITHIN = (0.0, -0.25, 0.25, -0.5, 0.5, -0.75, 0.75, -1.0, 1.0)  # of the seconds' rounding, the printed value first


def explains(
    state: RunState, printed: float | None, seconds: float, batch: int | None, sequence: int | None, rounding: float
) -> str | None:
    """The formula behind a printed figure: of these figures, the seconds as they may have been before rounding;
    else the one that explained the run's first line.
    """
    if printed is None:
        return None
    found = (
        flops.explain_printed(printed, state.topology, seconds + share * rounding, batch, sequence)
        for share in _WITHIN
        if seconds + share * rounding > 0
    )
    return next((name for name in found if name), None) or state.tflops_formula
