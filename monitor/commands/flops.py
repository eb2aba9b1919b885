"""`flops`: TFLOP/s per GPU by every formula of the field, with the inputs shown; `flops plan`: the ramp-up planner."""

import json
import sys
from typing import Any

import click
from msgspec.structs import fields, replace

from megatron_monitor.commands.arguments import ABOVE_ZERO, POSITIVE, Given, count
from megatron_monitor.commands.reading import only_run
from megatron_monitor.model import gpus
from megatron_monitor.model.topology import Topology, derive_ranks
from megatron_monitor.reports import calculator, planner
from megatron_monitor.reports.planner import Ramp
from megatron_monitor.reports.rows import Row


@click.group(invoke_without_command=True)
@click.option("--log", "source", metavar="PATH", help="Take what is not given here from this log.")
@click.option("--layers", type=POSITIVE, help="Transformer layers.")
@click.option("--hidden", "hidden_size", type=POSITIVE, help="Hidden size.")
@click.option("--ffn", "ffn_hidden_size", type=POSITIVE, help="Width of the MLP; 4 x hidden if not given.")
@click.option("--heads", "attention_heads", type=POSITIVE, help="Attention heads.")
@click.option("--query-groups", type=POSITIVE, help="Key and value heads, where fewer than heads.")
@click.option("--kv-channels", type=POSITIVE, help="Width of a head; hidden / heads if not given.")
@click.option("--vocab", type=POSITIVE, help="Vocabulary; padded to a multiple of --divisible-by x TP.")
@click.option("--padded-vocab", "padded_vocab_size", type=POSITIVE, help="Vocabulary as padded.")
@click.option("--divisible-by", type=POSITIVE, default=128, show_default=True, help="Megatron's padding.")
@click.option("--seq", "sequence_length", type=POSITIVE, help="Tokens per sample.")
@click.option("--gbs", "global_batch_size", type=POSITIVE, help="Global batch size, samples.")
@click.option("--mbs", "micro_batch_size", type=POSITIVE, help="Micro batch size, samples.")
@click.option("--seconds", type=ABOVE_ZERO, help="Seconds per iteration.")
@click.option("--gpus", "world_size", type=POSITIVE, help="GPUs; TP x PP x DP if not given.")
@click.option("--tp", "tensor_parallel_size", type=POSITIVE, help="Tensor parallel size.")
@click.option("--pp", "pipeline_parallel_size", type=POSITIVE, help="Pipeline parallel size.")
@click.option("--dp", "data_parallel_size", type=POSITIVE, help="Data parallel size.")
@click.option("--checkpointing", "activation_checkpointing", type=click.Choice(["full", "selective", "none"]),
              help="Activations computed again; full if it is neither given nor in the log.")  # fmt: skip
@click.option("--glu", is_flag=True, help="SwiGLU or another gated MLP.")
@click.option("--experts", type=POSITIVE, help="Experts of a layer.")
@click.option("--top-k", "moe_top_k", type=POSITIVE, help="Experts that a token passes.")
@click.option("--expert-ffn", "moe_ffn_hidden_size", type=POSITIVE, help="Width of an expert's MLP.")
@click.option("--mtp-layers", type=POSITIVE, help="Multi-token prediction layers.")
@click.option("--size", "parameters", type=count, help="Parameters, e.g. 104B: the seed formula's.")
@click.option("--gpu", "gpu_name", help="GPU by name, e.g. 'A100-SXM4-80GB': its peak gives MFU.")
@click.option("--dtype", type=click.Choice(["fp16", "bf16"]), help="Which of the GPU's peaks.")
@click.option("--peak", type=ABOVE_ZERO, help="Peak of one GPU in TFLOP/s, instead of --gpu.")
@click.option("--printed", type=ABOVE_ZERO, help="A figure that a log or table prints: which formula is it?")
@click.option("--iterations", type=POSITIVE, help="Iterations of the whole training: days.")
@click.option("--tokens", type=count, help="Tokens of the whole training, e.g. 400B: days.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
@click.pass_context
def flops(ctx: click.Context, /, as_json: bool, **options: Any) -> None:
    r"""Compute TFLOP/s per GPU by every formula of the field from sizes and seconds, inputs shown, and MFU.

    \b
    Examples:
      megatron-monitor flops --layers 72 --hidden 14336 --padded-vocab 250880 --seq 2048 --gbs 2048 \
          --gpus 384 --tp 8 --pp 12 --seconds 143.31 --gpu A100-SXM4-80GB
      megatron-monitor flops --size 104B --seq 2048 --gbs 2048 --gpus 128 --seconds 633 --printed 43.0
      megatron-monitor flops --log train.log --gpu 'H100 80GB HBM3'
      megatron-monitor flops plan --gbs 2048 --rampup 32 32 10000000 --tp 8 --pp 12 --gpus 384
    """
    if ctx.invoked_subcommand is not None:
        return
    if all(value in (None, False) for name, value in options.items() if name != "divisible_by"):
        click.echo(ctx.get_help())
        return
    answer = _answer(options)
    click.echo(json.dumps(answer, indent=2) if as_json else calculator.text(answer))
    sys.exit(0 if any(row["tflops"] is not None for row in answer["formulas"]) or answer["parameters"] else 1)


def _answer(given: dict[str, Any]) -> dict[str, Any]:
    base, row = Topology(), Row(run="", outcome="")
    if given["source"]:
        state, row = only_run(given["source"], Given())
        base = state.launch.topology
    topology, named = _asked(base, given)
    changed = bool(named - {"gpu_name", "dtype"}) or given["seconds"] is not None
    printed = row.tflops if row.tflops_source == "log" and not changed else None
    return calculator.answer(
        topology, given["seconds"] or row.seconds_per_iteration, given["global_batch_size"] or row.global_batch_size,
        given["sequence_length"] or row.sequence_length, peak=given["peak"], printed=given["printed"] or printed,
        iterations=given["iterations"], tokens=given["tokens"], breakdown={} if changed else row.breakdown,
        pure_compute=not changed and row.tells_waiting,
    )  # fmt: skip


def _asked(base: Topology, given: dict[str, Any]) -> tuple[Topology, set[str]]:
    """The sizes, and which of them were given; a usage error where the GPU's peak is asked for and not known."""
    named = {item.name: given[item.name] for item in fields(Topology) if given.get(item.name) not in (None, False)}
    told = set(named)
    if told & {"world_size", "tensor_parallel_size", "pipeline_parallel_size"}:
        named.setdefault("data_parallel_size", None)  # the log's belongs to the log's own layout
    if named.get("data_parallel_size"):
        named.setdefault("world_size", None)
    topology = _completed(replace(base, **named), given)
    if given["gpu_name"] and given["peak"] is None and gpus.peak_tflops(given["gpu_name"], topology.dtype) is None:
        where = f" in {topology.dtype}" if topology.dtype else ""
        raise click.BadParameter(f"no peak is known for {topology.gpu_name!r}{where}; give --peak", param_hint="--gpu")
    return topology, told


def _completed(topology: Topology, given: dict[str, Any]) -> Topology:
    """What follows from the sizes: ranks or layout, the padding, full recomputation."""
    recomputed, tensor = topology.activation_checkpointing or "full", topology.tensor_parallel_size or 1
    new = replace(topology, activation_checkpointing=recomputed, log_interval=topology.log_interval or 1)
    derive_ranks(new, tensor * (topology.pipeline_parallel_size or 1) * (topology.context_parallel_size or 1))
    if given["padded_vocab_size"] is None and given["vocab"]:
        multiple = given["divisible_by"] * tensor
        new.padded_vocab_size = -(-given["vocab"] // multiple) * multiple
    return new


@flops.command()
@click.option("--gbs", "batch", type=POSITIVE, required=True, help="Global batch size at the ramp's end.")
@click.option("--rampup", type=(int, int, int), metavar="START INCREMENT SAMPLES", help="--rampup-batch-size.")
@click.option("--tp", type=POSITIVE, default=1, show_default=True, help="Tensor parallel size.")
@click.option("--pp", type=POSITIVE, default=1, show_default=True, help="Pipeline parallel size.")
@click.option("--mbs", type=POSITIVE, help="Only this micro batch size.")
@click.option("--dp", type=POSITIVE, help="Check this data parallel size (with --mbs).")
@click.option("--gpus", "world", type=POSITIVE, help="GPUs at hand; no bound if not given.")
@click.option("--gpus-per-node", type=POSITIVE, default=8, show_default=True, help="GPUs of a node.")
@click.option("--layers", type=POSITIVE, help="Layers: must be a multiple of PP.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
def plan(
    batch: int, rampup: tuple[int, int, int] | None, tp: int, pp: int, mbs: int | None, dp: int | None,
    world: int | None, gpus_per_node: int, layers: int | None, as_json: bool,
) -> None:  # fmt: skip
    r"""Plan a batch size ramp-up: which MBS, DP and nodes fit every batch size, and the most GPUs each can feed.

    \b
    Examples:
      megatron-monitor flops plan --gbs 2048 --rampup 32 32 10000000 --tp 8 --pp 12 --gpus 384
      megatron-monitor flops plan --gbs 2048 --rampup 32 32 10000000 --mbs 8 --dp 8      is it valid? exit 1 if not
    """
    try:
        ramp = Ramp(batch, *(rampup or (batch, 1, 0)))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--rampup") from error
    answer = planner.answer(ramp, tp, pp, gpus_per_node, gpus=world, micro_batch=mbs, data_parallel=dp, layers=layers)
    click.echo(json.dumps(answer, indent=2) if as_json else planner.text(answer))
    sys.exit(1 if answer["problems"] else 0)
