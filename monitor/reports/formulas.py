"""Every formula of run/flops.py on one set of inputs: the figure, what it counts, and which input it lacks. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from monitor.run import flops
from monitor.run.sizes import sizes_of
from monitor.run.topology import Topology

_SHAPE = ("layers", "hidden_size", "padded_vocab_size")
_PASSES = ("activation_checkpointing",)


@dataclass(frozen=True, slots=True)
class Told:
    """What people should know of one formula, and the inputs without which it gives nothing (beside time and GPUs)."""

    counts: str
    """hardware or model FLOPs."""
    printed_by: str
    needs: tuple[str, ...]


FORMULAS: dict[str, Told] = {
    "bigscience": Told("hardware", "BigScience Megatron-DeepSpeed since 2022-02-21 (PR 251)", _SHAPE + _PASSES),
    "megatron_deepspeed_2021": Told(
        "hardware", "BigScience Megatron-DeepSpeed before PR 251",
        ("layers", "hidden_size", "tensor_parallel_size", "pipeline_parallel_size", *_PASSES),
    ),
    "microsoft": Told("hardware", "microsoft Megatron-DeepSpeed, Argonne's fork", _SHAPE + _PASSES),
    "megatron_lm_2026": Told("model", "NVIDIA Megatron-LM since 2025, Primus (causal core halved)", _SHAPE),
    "megatron_lm_2024": Told("model", "NVIDIA Megatron-LM of 2024", _SHAPE),
    "megatron_lm_2023": Told("model", "NVIDIA Megatron-LM of 2023-11", _SHAPE),
    "gpt_neox": Told("hardware", "gpt-neox since 2023-12-06", _SHAPE + _PASSES),
    "gpt_neox_bracket": Told("hardware", "gpt-neox 2023-09-27 to 2023-12-06, the vocabulary lost", _SHAPE + _PASSES),
    "gpt_neox_2021": Told("model", "gpt-neox until 2023-09-27", ("layers", "hidden_size", "parameters")),
    "seed": Told("hardware", "BigScience's notes: 2 F P s B / (t W)", ("parameters", *_PASSES)),
    "bigscience_true_vocabulary": Told("hardware", "PR 251 with V/12lh where nothing is recomputed", _SHAPE + _PASSES),
    "microsoft_corrected": Told("hardware", "microsoft's with its integer division mended", _SHAPE + _PASSES),
    "effective_tera_flops": Told(
        "hardware", "Megatron-DeepSpeed's `Effective Tera Flops per GPU`", ("parameters", "log_interval")
    ),
}  # fmt: skip


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
