"""The arithmetic of reports. Pure.

Every formula of run/flops.py on one set of inputs: the figure, what it counts, and which input it lacks; utilisation;
days to an end, the pipeline's bubble, scaling.
"""

from __future__ import annotations

from dataclasses import dataclass

from monitor.model import flops
from monitor.model.sizes import sizes_of
from monitor.model.topology import Topology
from parsers.dialects import PRINTED_BY

_SHAPE = ("layers", "hidden_size", "padded_vocab_size")
_PASSES = ("activation_checkpointing",)
_DAY = 86400.0


@dataclass(frozen=True, slots=True)
class Formula:
    """What people should know of one formula, and the inputs without which it gives nothing (beside time and GPUs)."""

    counts: str
    """hardware or model FLOPs."""
    printed_by: str
    needs: tuple[str, ...]


def _printed(name: str, counts: str, *needs: str) -> tuple[str, Formula]:
    """A formula that a program prints by."""
    return name, Formula(counts, PRINTED_BY[name], needs)


FORMULAS: dict[str, Formula] = dict(
    (
        _printed("bigscience", "hardware", *_SHAPE, *_PASSES),
        _printed("megatron_deepspeed_2021", "hardware", "layers", "hidden_size", "tensor_parallel_size",
                 "pipeline_parallel_size", *_PASSES),
        _printed("microsoft", "hardware", *_SHAPE, *_PASSES),
        _printed("megatron_lm_2026", "model", *_SHAPE),
        _printed("megatron_lm_2024", "model", *_SHAPE),
        _printed("megatron_lm_2023", "model", *_SHAPE),
        _printed("gpt_neox", "hardware", *_SHAPE, *_PASSES),
        _printed("gpt_neox_bracket", "hardware", *_SHAPE, *_PASSES),
        _printed("gpt_neox_2021", "model", "layers", "hidden_size", "parameters"),
        ("seed", Formula("hardware", "BigScience's notes: 2 F P s B / (t W)", ("parameters", *_PASSES))),
        ("bigscience_true_vocabulary", Formula("hardware", "PR 251 with V/12lh where nothing is recomputed",
                                               _SHAPE + _PASSES)),
        ("microsoft_corrected", Formula("hardware", "microsoft's, integer division corrected", _SHAPE + _PASSES)),
        ("effective_tera_flops", Formula("hardware", "Megatron-DeepSpeed's `Effective Tera Flops per GPU`",
                                         ("parameters", "log_interval"))),
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Figure:
    """One formula's TFLOP/s per GPU, or the names of the inputs that it lacks."""

    name: str
    tflops: float | None
    lacks: tuple[str, ...] = ()


def lacking(name: str, topology: Topology) -> tuple[str, ...]:
    """Inputs of the formula that are unknown, by their names in `Topology`."""
    needs = (*FORMULAS[name].needs, "world_size")
    out = tuple(need for need in needs if not getattr(topology, need))
    if name == "seed" and "parameters" in out and sizes_of(topology) and topology.padded_vocab_size:
        out = tuple(need for need in out if need != "parameters")
        out += () if topology.sequence_length else ("sequence_length",)
    if topology.glu and topology.ffn_hidden_size is None and "layers" in needs:
        out += ("ffn_hidden_size",)
    return out


def figures(topology: Topology, seconds: float | None, batch: int | None, sequence: int | None) -> list[Figure]:
    """All formulas in the order in which a printed number is explained."""
    out = []
    given = {"seconds": seconds, "batch": batch, "sequence_length": sequence}
    absent = tuple(name for name, value in given.items() if not value)
    for name, formula in flops.FORMULAS.items():
        value = formula(topology, seconds, batch, sequence) if seconds and batch and sequence else None
        out.append(Figure(name, value, () if value is not None else (*absent, *lacking(name, topology))))
    return out


def utilisation(
    topology: Topology, seconds: float | None, batch: int | None, sequence: int | None, peak: float | None
) -> tuple[float | None, float | None]:
    """(MFU, HFU), 0 to 1: FLOPs of the model, and with what is recomputed, over the peak (TFLOP/s of one rank)."""
    world = topology.world_size
    if not (seconds and batch and sequence and peak and world):
        return None, None
    available = peak * 1e12 * world * seconds
    model = flops.model_flops_per_iteration(topology, batch, sequence)
    hardware = flops.hardware_flops_per_iteration(topology, batch, sequence)
    return (
        model / available if model is not None else None,
        hardware / available if hardware is not None else None,
    )


def days_for_iterations(iterations: float, seconds: float) -> float:
    """Days that `iterations` of `seconds` each take (seed 003: steps x sec / 86400)."""
    return iterations * seconds / _DAY


def days_for_tokens(tokens: float, batch: int, sequence: int, seconds: float) -> float:
    """Days until so many tokens were seen, at `batch` samples of `sequence` tokens every `seconds`."""
    return days_for_iterations(tokens / (batch * sequence), seconds)


def aggregate_petaflops(tflops: float, units: int) -> float:
    """TFLOP/s of one unit x units / 1024, as seed 003 counts: a unit is what the figure belongs to (GPU, CPU node)."""
    return tflops * units / 1024


def micro_batches(batch: int, micro_batch: int, data_parallel: int) -> int | None:
    """Micro-batches that a pipeline takes per iteration; None where the batch does not divide."""
    share = micro_batch * data_parallel
    return batch // share if share > 0 and batch >= share and batch % share == 0 else None


def bubble(pipeline: int, micro: int) -> float:
    """Share of an iteration in which a stage waits: (p - 1) / (m + p - 1) of the schedule without interleaving."""
    return (pipeline - 1) / (micro + pipeline - 1)


def scaled_seconds(seconds: float, pipeline: int, micro: int, other_micro: int) -> float:
    """Seconds per iteration at another count of micro-batches: the filling of the pipeline stays the same."""
    return seconds * (other_micro + pipeline - 1) / (micro + pipeline - 1)


def scaling_efficiency(rate: float, gpus: int, base_rate: float, base_gpus: int) -> float:
    """Work per GPU against the base's: 1 is linear. Rates are samples or tokens per second."""
    return (rate / gpus) / (base_rate / base_gpus)
