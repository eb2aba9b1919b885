"""`compare`: two runs beside each other."""

import json
from typing import TextIO

import click

from megatron_monitor.commands.arguments import Given, with_config
from megatron_monitor.commands.reading import only_run
from megatron_monitor.commands.tables import grid, show
from megatron_monitor.reports import comparison

_SAME = {None: "\n\nThe logs do not hold their configuration.", True: "\n\nSame configuration.", False: ""}


@click.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True,
              help="How it is written.")  # fmt: skip
@click.option("--json", "form", flag_value="json", help="JSON instead of text.")
@click.option("-o", "--output", type=click.File("w", "utf-8"), default="-", help="File; standard output if none.")
@with_config
def compare(a: str, b: str, form: str, output: TextIO, given: Given) -> None:
    r"""Compare the runs of two logs: is it the same configuration, what differs, and how sure the difference is.

    A and B are files, or directories that hold one run.

    \b
    Example:
      megatron-monitor compare /logs/monday.log /logs/tuesday.log
    """
    one, other = (only_run(path, given)[1] for path in (a, b))
    if one.run == other.run:
        one.run, other.run = a, b
    found = comparison.compare(one, other)
    if form == "json":
        click.echo(json.dumps(found, indent=2, ensure_ascii=False), output)
        return
    click.echo(found["verdict"] + _SAME[found["same_configuration"]], output)
    for title, table in comparison.sections(found):
        click.echo(f"\n{title}", output)
        show(grid(table.headers, table.rows, table.numeric()), to=output)
    if found["notes"]:
        click.echo("".join(f"\nNote: {note}" for note in found["notes"]), output)
