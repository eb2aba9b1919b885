"""`nodes`: each node's record over all runs, and which of them to leave out."""

from collections.abc import Sequence
from datetime import UTC, datetime

import click
import msgspec

from megatron_monitor.commands.arguments import Given, fail, json_option, print_json, spooled, warn, with_config
from megatron_monitor.commands.tables import grid, show
from megatron_monitor.config import Config, state_directory
from megatron_monitor.core.saved import of_parts
from megatron_monitor.node_statistics.extension import record
from megatron_monitor.node_statistics.ledger import Ledger
from megatron_monitor.node_statistics.standing import Count, Standing, eventful, standings
from megatron_monitor.nodes.hostlist import compress
from megatron_monitor.once import read_all
from megatron_monitor.store import Store

_COLUMNS = ("node", "launches", "named", "failed", "slow", "hung", "last", "chance")
_SHOWN = 40  # rows: those with the least likely record; --json has all


@click.command()
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--exclude", is_flag=True, help="Print a Slurm node list of those that stand out; why, beside it.")
@json_option
@with_config
def nodes(paths: tuple[str, ...], exclude: bool, as_json: bool, given: Given) -> None:
    r"""Show each node's record against what chance gives if all nodes are alike; --exclude: whom to leave out.

    Without PATH it reads what the daemon has saved; with PATH these logs. A node stands out where its failures, or the
    launches that it took part in, are too many for chance, all nodes taken into account.

    \b
    Examples:
      megatron-monitor nodes                                what the daemon on this machine knows
      megatron-monitor nodes '/logs/**/*.out' --json
      bad=$(megatron-monitor nodes --exclude); sbatch ${bad:+--exclude=$bad} train.sbatch
    """
    with spooled(paths) as files:
        config = given.configured(files)
        ledger = _of_logs(config) if files or config.runs else _of_daemon(config)
    found = standings(ledger)
    if exclude:
        _print_exclusion(found)
    elif as_json:
        print_json({"launches": len(ledger.launches), "nodes": [one.to_json() for one in found]})
    else:
        _print_table(found, len(ledger.launches))


def _of_logs(config: Config) -> Ledger:
    core, problems = read_all(config, charts=False)
    warn(*problems)
    ledger = Ledger()
    for run in core.runs.values():
        record(ledger, run)
    if not ledger.launches:
        fail("no line of these logs tells which nodes a launch ran on")
    return ledger


def _of_daemon(config: Config) -> Ledger:
    directory = state_directory(config, config.listen)
    parts, problems = Store(directory).load()
    saved = of_parts(parts, problems) if parts is not None else None
    warn(*problems)
    if saved is None:
        fail(f"{directory}: no daemon has saved a state there; name logs, or --set state_dir=DIR")
    return msgspec.msgpack.decode(saved.extensions["nodes"], type=Ledger) if "nodes" in saved.extensions else Ledger()


def _print_exclusion(found: Sequence[Standing]) -> None:
    """The list alone on standard output: it is put into a command."""
    chosen = [one for one in found if one.stands_out]
    warn(*(f"{one.node}: {one.evidence}" for one in chosen))
    if chosen:
        click.echo(compress(one.node for one in chosen))
    else:
        warn("no node stands out")


def _print_table(found: Sequence[Standing], launches: int) -> None:
    shown = eventful(found)[:_SHOWN]
    right = [name not in ("node", "last") for name in _COLUMNS]
    show(grid(_COLUMNS, map(_cells, shown), right, ["bold red" if one.stands_out else "" for one in shown]))
    suspects = [f"{one.node}: {one.evidence}" for one in found if one.stands_out]
    for suspect in suspects:
        click.echo(suspect)
    verb = "stands" if len(suspects) == 1 else "stand"
    verdict = f"{len(suspects)} {verb} out: --exclude prints the list" if suspects else "none stands out"
    click.echo(f"{len(found)} nodes in {launches} launches; {verdict}")


def _cells(one: Standing) -> tuple[str, ...]:
    day = "-" if one.last_at is None else f"{datetime.fromtimestamp(one.last_at, UTC):%Y-%m-%d}"
    counts = (_count(one.present), _count(one.slow), str(one.hangs), day)
    chance = "-" if one.chance >= 1.0 else f"{one.chance:.1g}"
    return one.node, str(one.launches), _count(one.named), *counts, chance


def _count(count: Count) -> str:
    """Seen, and what is due by chance."""
    return f"{count.seen} ({count.expected:.2g})" if count.of else "-"
