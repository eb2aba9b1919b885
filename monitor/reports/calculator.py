"""What `flops` answers: a question of sizes and seconds -> every formula's figure, utilisation, counts, days. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from megatron_monitor.detectors.base import stated
from megatron_monitor.model import flops, gpus
from megatron_monitor.model import misprints as causes
from megatron_monitor.model.sizes import parameters
from megatron_monitor.model.topology import Topology
from megatron_monitor.parsers.dialects import PRINTED_BY
from megatron_monitor.reports import formulas
from megatron_monitor.reports.tables import Table, aligned

_INPUTS = (
    "layers", "hidden_size", "ffn_hidden_size", "attention_heads", "query_groups", "kv_channels", "padded_vocab_size",
    "glu", "experts", "moe_top_k", "moe_ffn_hidden_size", "mtp_layers", "parameters", "activation_checkpointing",
    "world_size", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "micro_batch_size",
    "gpu_name", "dtype",
)  # fmt: skip


def answer(
    topology: Topology, seconds: float | None, batch: int | None, sequence: int | None, *, peak: float | None,
    printed: float | None, iterations: int | None, tokens: int | None, breakdown: Mapping[str, float],
    pure_compute: bool,
) -> dict[str, Any]:  # fmt: skip
    """Everything that follows, as plain data, from seconds per iteration, samples, tokens per sample, the GPU's peak in
    TFLOP/s, a printed figure, a goal; None where an input lacks. `breakdown`: seconds of an iteration by category, by
    the log's timers; `pure_compute`: waiting is told apart from compute there.
    """
    peak = gpus.peak_of_rank(topology.gpu_name, topology.dtype) if peak is None else peak
    mfu, hfu = flops.utilisation(topology, seconds, batch, sequence, peak)
    counted, stages = parameters(topology), topology.pipeline_parallel_size
    given = {"seconds": seconds, "global_batch_size": batch, "sequence_length": sequence}
    sizes = {name: value for name in _INPUTS if (value := getattr(topology, name)) not in (None, False)}
    micro = formulas.micro_batches(batch, topology.micro_batch_size, topology.data_parallel_size)
    at_once = batch * sequence if batch and sequence else None
    works = flops.per_iteration(topology, batch, sequence)
    goal = {
        "days": formulas.days(iterations, tokens, seconds, batch, sequence),
        "tokens": iterations * at_once if iterations and at_once else None,
    }
    out: dict[str, Any] = {
        "inputs": sizes | stated(given),
        "formulas": list(_figures(topology, seconds, batch, sequence)),
        "parameters": {"total": counted[0], "outside_embedding": counted[1]} if counted else None,
        "model_flops_per_iteration": works[0],
        "hardware_flops_per_iteration": works[1],
        "peak_tflops": peak,
        "mfu": mfu,
        "hfu": hfu,
        "samples_per_second": batch / seconds if batch and seconds else None,
        "tokens_per_second": at_once / seconds if at_once and seconds else None,
        **_time(breakdown, seconds, pure_compute, mfu, hfu),
        "micro_batches": micro,
        "pipeline_bubble": formulas.bubble(stages, micro) if stages and micro else None,
        **stated(goal),
    }
    if printed is not None:
        out["printed"] = _explained(printed, topology, seconds, batch, sequence)
    return out


def _figures(
    topology: Topology, seconds: float | None, batch: int | None, sequence: int | None
) -> Iterator[dict[str, Any]]:
    """Every formula in the order in which a printed number is explained: its figure, or the inputs that it lacks."""
    given = {"seconds": seconds, "batch": batch, "sequence_length": sequence}
    absent = [name for name, value in given.items() if not value]
    for name, formula in flops.FORMULAS.items():
        value = formula(topology, seconds, batch, sequence) if seconds and batch and sequence else None
        lacks = [*absent, *formulas.lacking(name, topology)] if value is None else []
        told = {"counts": formula.counts, "printed_by": PRINTED_BY.get(name, formula.printed_by), "lacks": lacks}
        yield {"formula": name, "tflops": value, **told}


def _time(
    parts: Mapping[str, float], seconds: float | None, pure_compute: bool, mfu: float | None, hfu: float | None
) -> dict[str, Any]:
    """Where the iteration goes, and MFU and HFU while it computes: FLOPs over the peak in the time of compute alone.

    More than that no hiding of communication, data loading and the optimizer can give. Compute is the slowest rank's;
    communication inside the passes (tensor parallelism's, or what overlaps them) is part of it.
    """
    if not parts or not seconds:
        return {}
    compute = parts.get("compute", 0.0) if pure_compute else 0.0
    return {
        "time": {
            "parts": dict(parts),
            "compute_share": compute / sum(parts.values()) if compute else None,
            "mfu_of_compute": mfu * seconds / compute if compute and mfu is not None else None,
            "hfu_of_compute": hfu * seconds / compute if compute and hfu is not None else None,
        }
    }


def _explained(
    printed: float, topology: Topology, seconds: float | None, batch: int | None, sequence: int | None
) -> dict[str, Any]:
    if not (printed and seconds and batch and sequence):
        return {"tflops": printed, "formula": None, "causes": [], "nearest": None}
    name = flops.explain_printed(printed, topology, seconds, batch, sequence)
    near = causes.nearest(printed, topology, seconds, batch, sequence)
    wrong = [] if name else causes.wrong_input(printed, topology, seconds, batch, sequence)
    return {"tflops": printed, "formula": name, "causes": wrong, "nearest": list(near) if near else None}


_FOLLOWS = (
    ("billions", "parameters", "{0[0]:.3f} B, {0[1]:.3f} B outside the embedding"),
    ("model_flops_per_iteration", "model FLOPs / iteration", "{0:.4e}"),
    ("hardware_flops_per_iteration", "hardware FLOPs / iteration", "{0:.4e}"),
    ("mfu", "MFU", "{0:.1%} of {peak_tflops:g} TFLOP/s"),
    ("hfu", "HFU", "{0:.1%}, what is computed again counted"),
    ("samples_per_second", "samples per second", "{0:.3f}"),
    ("tokens_per_second", "tokens per second", "{0:.1f}"),
    ("pipeline_bubble", "pipeline bubble", "{0:.1%} at {micro_batches} micro-batches"),
    ("tokens", "tokens", "{0:.4e}"),
    ("days", "days", "{0:.2f}"),
)
"""Figure of the answer, its name for people, and how it is written."""


def text(found: dict[str, Any]) -> str:
    """The answer for people."""
    parts = ["Inputs", _pairs(found["inputs"]), "", "TFLOP/s per GPU"]
    rows = [
        {**row, "figure": "" if row["tflops"] is None else f"{row['tflops']:.2f}",
         "by": row["printed_by"] if row["tflops"] is not None else "needs " + ", ".join(row["lacks"])}
        for row in found["formulas"]
    ]  # fmt: skip
    columns = {"formula": "{formula}", "TFLOPs": "{figure}", "counts": "{counts}", "printed by": "{by}"}
    parts.append(aligned(Table.of(columns, rows), "  "))
    told = found | {"billions": [count / 1e9 for count in (found["parameters"] or {}).values()] or None}
    figures = {label: form.format(told[name], **told) for name, label, form in _FOLLOWS if told.get(name) is not None}
    if figures:
        parts += ["", "What follows", _pairs(figures)]
    if "time" in found:
        parts += ["", "Where an iteration's time goes, by the log's timers", _time_text(found["time"])]
    if "printed" in found:
        parts += ["", _printed_text(found["printed"])]
    return "\n".join(parts)


def _time_text(time: dict[str, Any]) -> str:
    whole = sum(time["parts"].values())
    rows = [(name, f"{took:.4g} s", f"{took / whole:.1%}" if whole else "") for name, took in time["parts"].items()]
    lines = [aligned(Table(("", "", ""), tuple(rows)), "  ").partition("\n")[2]]
    if time["compute_share"] is None:
        lines.append("  compute holds waiting too: timers of the passes' parts tell them apart (--timing-log-level 2)")
    for name, label in (("mfu_of_compute", "MFU"), ("hfu_of_compute", "HFU")):
        if time[name] is not None:
            lines.append(f"  {label} while computing: {time[name]:.1%}, the most that hiding all the rest could give")
    return "\n".join(lines)


def _printed_text(printed: dict[str, Any]) -> str:
    figure, near = f"{printed['tflops']:g} TFLOPs as printed is", printed["nearest"]
    if printed["formula"]:
        return f"{figure} the formula {printed['formula']}"
    if printed["causes"]:
        return "\n  ".join((f"{figure} no formula's figure for these inputs; it would be with", *printed["causes"]))
    close = f"; nearest is {near[0]}: {near[1]:.2f} ({near[1] / printed['tflops'] - 1:+.1%})" if near else ""
    return f"{figure} no formula's figure, nor with one input changed{close}"


def _pairs(values: dict[str, Any]) -> str:
    width = max((len(name) for name in values), default=0)
    return "\n".join(f"  {name.replace('_', ' '):<{width}}  {value}" for name, value in values.items())
