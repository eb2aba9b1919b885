"""Why a printed TFLOP/s figure is not what the run's inputs give: one wrong input that would make it so. Pure.

In: the printed figure, the run's `Topology`, seconds, batch and sequence. Out: sentences, the likeliest first. Law: an
input is named only if some formula then gives the printed figure to its last digit; several may fit, all are told.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from megatron_monitor.model.flops import FORMULAS, formulas_of, prints_as
from megatron_monitor.model.topology import Topology

_SLIPS = {1024: 1048, 1048: 1024}
"""Batch sizes mistyped in BigScience's notes."""

_Inputs = tuple[Topology, float, int, int]


def wrong_input(printed: float, topology: Topology, seconds: float, batch: int, sequence: int) -> list[str]:
    """Each single wrong input, or pair of them, that explains the printed figure; empty if none does."""
    inputs = (topology, seconds, batch, sequence)
    own = [f"{name}: {text}" for text, changed in _single(inputs) for name in _fitting(printed, changed)]
    if own:
        return own
    return [
        f"{name}: {text} and {other}"
        for text, changed in _single(inputs)
        for other, twice in _slips(changed)
        for name in _fitting(printed, twice)
    ]


def nearest(printed: float, topology: Topology, seconds: float, batch: int, sequence: int) -> tuple[str, float] | None:
    """(formula, TFLOP/s per GPU) that comes closest to the printed figure with the inputs as they are."""
    found = [
        (name, value)
        for name in _asked(topology)
        if (value := FORMULAS[name](topology, seconds, batch, sequence)) is not None and value > 0
    ]
    return min(found, key=lambda item: abs(item[1] - printed), default=None)


def _asked(topology: Topology) -> tuple[str, ...]:
    """The run's own program's formulas and the notes' rule: of many formulas with many inputs, some fits by chance."""
    own = formulas_of(topology.dialect) or ("bigscience", "megatron_deepspeed_2021", "megatron_lm_2026")
    return (*own, "seed")


def _fitting(printed: float, inputs: _Inputs) -> list[str]:
    """The first formula that gives the printed figure with these inputs, as a list of at most one."""
    for name in _asked(inputs[0]):
        value = FORMULAS[name](*inputs)
        if value is not None and prints_as(value, printed):
            return [name]
    return []


def _single(inputs: _Inputs) -> Iterator[tuple[str, _Inputs]]:
    """One input changed, in the order of what people get wrong most."""
    topology, seconds, batch, sequence = inputs
    yield from _slips(inputs)
    for factor in (0.5, 2):
        if sequence * factor == (length := int(sequence * factor)):
            yield f"sequence length {length}, not {sequence}", (topology, seconds, batch, length)
    for factor in (0.25, 0.5, 2, 4):
        if batch * factor == (size := int(batch * factor)):
            yield f"global batch size {size}, not {batch}", (topology, seconds, size, sequence)
    world = topology.world_size
    for multiple in (2, 0.5, 4, 0.25, 8, 0.125):
        if world and world * multiple == (gpus := int(world * multiple)):
            yield f"{gpus} GPUs, not {world}", (replace(topology, world_size=gpus), seconds, batch, sequence)
    kind = topology.activation_checkpointing
    if kind in ("full", "none"):
        told, other = ("with", "without") if kind == "full" else ("without", "with")
        changed = replace(topology, activation_checkpointing="none" if kind == "full" else "full")
        yield f"{other} activation checkpointing, not {told}", (changed, seconds, batch, sequence)
    if topology.parameters:
        changed = replace(topology, parameters=round(topology.parameters * 2**30 / 1e9))
        yield "the size in units of 2^30 parameters", (changed, seconds, batch, sequence)
    yield "the time in thousandths", (topology, seconds / 1000, batch, sequence)


def _slips(inputs: _Inputs) -> Iterator[tuple[str, _Inputs]]:
    topology, seconds, batch, sequence = inputs
    slip = _SLIPS.get(batch)
    if slip:
        yield f"global batch size {slip}, not {batch}", (topology, seconds, slip, sequence)
