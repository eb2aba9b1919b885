"""The facts of one run in a report: medians over steady iterations, memory, outcome, notes. Pure.

formats.py formats them. Units: seconds, bytes, samples, TFLOP/s per GPU, ratios from 0 to 1. `None`:
not in the log.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from megatron_monitor.detectors.slowdown.messages import level, standing
from megatron_monitor.incidents import Transition
from megatron_monitor.model import flops
from megatron_monitor.model.flops import parameters
from megatron_monitor.model.topology import Topology
from megatron_monitor.parsers.tables import rows_of
from megatron_monitor.reports.outcome import outcome, remark
from megatron_monitor.run import derived
from megatron_monitor.run.state import RunState
from megatron_monitor.run.steps.pace import AtSize

_NOT_STEADY = 2  # iterations of a run without steady time: the first one warms up, and one value has no median


# One field per column. Without a value it is unknown.
_NAMES = [name for name, *_ in rows_of("megatron_monitor.reports", "columns.csv", tuple[Any, ...])]
if TYPE_CHECKING:
    Row = Any
else:
    Row = msgspec.defstruct("Row", [(name, Any, None) for name in _NAMES], module=__name__)


def row_of(state: RunState, run_state: str, past: Iterable[Transition], peak: float | None) -> Row:
    """Return the row of one run. `run_state` is the result of derived.run_state, `past` the run's incidents."""
    word = outcome(state, run_state, past)
    note = remark(state, word)
    state = state.reported()
    attempt = state.attempt
    topology = attempt.topology
    row = Row(run=state.name, outcome=word, steady_iterations=0)
    row.environment, row.software, row.sources = dict(attempt.environment), dict(attempt.software), list(state.sources)
    _configuration(row, state)
    row.iterations, row.last_iteration = state.iterations_total, attempt.latest.iteration
    row.train_iterations, row.restarts = attempt.train_iterations, state.restarts
    row.goodput = derived.goodput(state)
    notes = [note] if note else []
    size, steady = state.steady.chosen(topology.global_batch_size) or (None, None)
    row.global_batch_size = size or row.global_batch_size
    notes += _pace(row, state, steady)
    notes += [] if (stands := level(state)) is None else [standing(stands)]
    _rates(row, state, steady, peak)
    row.memory_bytes = attempt.memory.max_reserved or attempt.memory.max_allocated
    if row.tflops_source == "computed" and row.tflops_formula:
        notes.append(f"TFLOPs computed by {row.tflops_formula}")
    if row.restarts:
        notes.append(f"{row.restarts} restart{'s' if row.restarts > 1 else ''}")
    row.notes = notes
    return row


def _configuration(row: Row, state: RunState) -> None:
    attempt = state.attempt
    topology = attempt.topology
    for name in set(_NAMES) & set(Topology.__struct_fields__):
        setattr(row, name, getattr(topology, name))  # as printed; better values follow
    row.gpus = topology.world_size
    row.global_batch_size = derived.batch_size(state)
    row.sequence_length = derived.sequence_length(state)
    row.gpu, row.format = topology.gpu_name, attempt.format
    row.parameters = topology.parameters or parameters(topology)
    per_node = topology.processes_per_node
    if row.nodes is None and row.gpus and per_node and row.gpus % per_node == 0:
        row.nodes = row.gpus // per_node


def _pace(row: Row, state: RunState, steady: AtSize | None) -> list[str]:
    """Fill in the seconds. Return a note about how they were measured."""
    attempt = state.attempt
    if steady is not None and steady.seconds.seen and state.iterations_total > _NOT_STEADY:
        seconds = steady.seconds
        row.seconds_per_iteration, row.steady_iterations = seconds.median, seconds.seen
        planned = attempt.topology.global_batch_size
        if planned and row.global_batch_size and row.global_batch_size != planned and attempt.topology.rampup:
            return [f"measured in the ramp-up at GBS {row.global_batch_size} of {planned}"]
        return []
    row.seconds_per_iteration, many = attempt.pure_seconds, state.iterations_total
    if row.seconds_per_iteration is not None and steady is not None and steady.seconds.seen:
        return [f"no steady time in {many} iterations: the second one's is shown"]
    if row.seconds_per_iteration is not None:
        first = "line alone, the mean of its iterations" if many > 1 else "iteration alone"
        return [f"from the first {first}"]
    rate = attempt.summary_rate
    if rate and row.global_batch_size:  # HF Trainer with its bar switched off: start-up and evaluation are included
        row.seconds_per_iteration = row.global_batch_size / rate
        return [f"from the Trainer's summary of {rate:g} samples per second"]
    return []


def _rates(row: Row, state: RunState, steady: AtSize | None, peak: float | None) -> None:
    """Fill in the values that follow from the seconds and the sizes."""
    attempt, seconds = state.attempt, row.seconds_per_iteration
    batch, sequence = row.global_batch_size, row.sequence_length
    printed, computed = _printed_tflops(state, steady), None
    if seconds:
        formula, first = attempt.tflops_formula, state.log_clock_first
        computed = flops.computed_tflops(attempt.topology, seconds, batch, sequence, attempt.format, formula, first)
        row.samples_per_second = batch / seconds if batch else None
        row.mfu = flops.mfu(attempt.topology, seconds, batch, sequence, derived.peak_tflops(state, peak))
    if computed is not None:
        row.tflops_computed = computed[1]
        row.tflops_formula = computed[0] if printed is None else attempt.tflops_formula
    if row.samples_per_second is None:
        rate = attempt.engine.rates.median if attempt.step_source == "engine" else None
        row.samples_per_second = rate or attempt.latest.samples_per_second
    row.tflops, row.tflops_source = printed, "log"
    if printed is None:
        row.tflops, row.tflops_source = row.tflops_computed, "computed" if computed is not None else None
    row.tokens_per_second = row.samples_per_second * sequence if row.samples_per_second and sequence else None
    # TFLOP/s per unit x units / 1024, as seed 003 counts. A unit is a GPU or a CPU node.
    row.petaflops = row.tflops * row.gpus / 1024 if row.tflops is not None and row.gpus else None


def _printed_tflops(state: RunState, steady: AtSize | None) -> float | None:
    """Return the median of the steady iterations, or the last line's figure for runs without them."""
    if steady is not None and steady.tflops.seen:
        return steady.tflops.median
    return derived.printed_tflops(state) if state.attempt.step_source == "iteration" else None
