"""`flight-recorder`: who did not arrive, from the dumps of PyTorch's flight recorder."""

import sys
from collections.abc import Sequence
from dataclasses import asdict

import click

from megatron_monitor.commands.arguments import fail, files_of, json_option, print_json, say, warn
from megatron_monitor.dumps import DumpsUnreadableError, read_files
from megatron_monitor.nodes.collectives import operation_name
from megatron_monitor.nodes.flight_recorder import Diagnosis
from megatron_monitor.nodes.hostlist import HostlistError, expand
from megatron_monitor.system.clock import SystemClock


@click.command("flight-recorder")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--nodes", "node_list", metavar="LIST", help="The job's Slurm node list: names the ranks' nodes, over "
              "which srun spreads ranks in blocks.")  # fmt: skip
@json_option
def flight_recorder(paths: tuple[str, ...], node_list: str | None, as_json: bool) -> None:
    r"""Tell from flight recorder dumps which rank the others wait for, in which collective, and where it was.

    PATH may be files, directories or globs of dumps whose names end in the rank (nccl_trace_rank_37), pickle or JSON. A
    pickle is read without executing anything in it. Exit 1 if the dumps do not tell.

    \b
    Examples:
      megatron-monitor flight-recorder /tmp/nccl_trace_rank_*
      megatron-monitor flight-recorder /dumps --nodes "$SLURM_JOB_NODELIST"
    """
    try:
        hosts = expand(node_list) if node_list else []
    except HostlistError as error:
        raise click.BadParameter(str(error), param_hint="--nodes") from error
    try:
        found = read_files(list(files_of(paths)), 0.0, SystemClock())
    except DumpsUnreadableError as error:
        fail(error)
    for path, reason in found.left_out:
        say(f"{path}: {reason}")
    if not found.dumps:
        fail("no dump of the flight recorder in " + ", ".join(paths))
    nodes = _nodes(found, hosts)
    if as_json:
        print_json(_as_json(found, nodes))
    else:
        _print(found, nodes)
    sys.exit(1 if found.missing is None else 0)


def _nodes(found: Diagnosis, hosts: Sequence[str]) -> dict[int, str]:
    """Rank -> node, where ranks divide evenly among the nodes."""
    world = found.world_size
    if found.missing is None or not hosts or not world:
        return {}
    each, rest = divmod(world, len(hosts))
    if rest:
        warn(f"{world} ranks do not divide among {len(hosts)} nodes: no node is named")
        return {}
    return {rank: hosts[rank // each] for rank in found.missing.ranks if rank < world}


def _as_json(found: Diagnosis, nodes: dict[int, str]) -> dict[str, object]:
    missing = found.missing
    told: dict[str, object] = {"dumps": found.dumps, "world_size": found.world_size}
    if missing is not None:
        told |= asdict(missing) | {
            "operation": operation_name(missing.operation),
            "summary": missing.sentence(nodes),
            "nodes": list(dict.fromkeys(nodes.values())),
            "stacks": {str(rank): stack for rank, stack in found.stacks.items()},
            "waiting_stack": found.waiting_stack,
        }
    return told | {"ranks_without_dump": list(found.without_dump)}


def _print(found: Diagnosis, nodes: dict[int, str]) -> None:
    missing = found.missing
    if missing is None:
        warn(f"{found.dumps} dumps: no rank is behind the others in them")
    else:
        click.echo(missing.sentence(nodes))
        for rank in missing.ranks:
            if rank in found.stacks:
                click.echo("\n  ".join((f"rank {rank}, last recorded in that group:", *found.stacks[rank])))
        if found.waiting_stack:
            click.echo("\n  ".join(("a rank that waits:", *found.waiting_stack)))
    if found.without_dump:
        some = ", ".join(map(str, found.without_dump[:16])) + (" ..." if len(found.without_dump) > 16 else "")
        warn(f"no dump of ranks {some}")
