"""`compare`: two runs beside each other."""

import click

from megatron_monitor.archive import read_runs
from megatron_monitor.commands.arguments import Given, json_option, print_json, spooled, warn, with_config
from megatron_monitor.commands.tables import grid, show
from megatron_monitor.reports import comparison
from megatron_monitor.reports.rows import Options, Row

_SAME = {None: "\n\nThe logs do not hold their configuration.", True: "\n\nSame configuration.", False: ""}


@click.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@json_option
@with_config
def compare(a: str, b: str, as_json: bool, given: Given) -> None:
    r"""Compare the runs of two logs: is it the same configuration, what differs, and how sure the difference is.

    A and B are files, or directories that hold one run.

    \b
    Example:
      megatron-monitor compare /logs/monday.log /logs/tuesday.log
    """
    one, other = (_only_run(path, given) for path in (a, b))
    if one.run == other.run:
        one.run, other.run = a, b
    found = comparison.compare(one, other)
    if as_json:
        print_json(found)
        return
    click.echo(found["verdict"] + _SAME[found["same_configuration"]])
    for title, table in comparison.sections(found):
        click.echo(f"\n{title}")
        show(grid(table.headers, table.rows, table.numeric()))
    if found["notes"]:
        click.echo("".join(f"\nNote: {note}" for note in found["notes"]))


def _only_run(path: str, given: Given) -> Row:
    """The one run that the path holds; an error with their names if it holds another number."""
    with spooled((path,)) as files:
        config = given.configured(files)
        _, runs, problems = read_runs(config, Options(config.gpu_peak_tflops))
    if len(runs) == 1:
        return runs[0][1]
    warn(*problems)
    names = ", ".join(row.run for _, row in runs) or "none"
    raise click.ClickException(f"{path} holds {len(runs)} runs: {names}; one is needed")
