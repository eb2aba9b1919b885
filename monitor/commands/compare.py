"""`compare`: two runs beside each other."""

import json
from typing import TextIO

import click

from megatron_monitor.commands.arguments import Given, with_config
from megatron_monitor.commands.reading import only_run
from megatron_monitor.reports import comparison, html


@click.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--format", "form", type=click.Choice(["text", "json", "html"]), default="text", show_default=True,
              help="How it is written; html draws loss and pace.")  # fmt: skip
@click.option("--json", "form", flag_value="json", help="JSON instead of text.")
@click.option("-o", "--output", type=click.File("w", "utf-8"), default="-", help="File; standard output if none.")
@with_config
def compare(a: str, b: str, form: str, output: TextIO, given: Given) -> None:
    r"""Compare the runs of two logs: is it the same configuration, what differs, and how sure the difference is.

    A and B are files, or directories that hold one run.

    \b
    Example:
      megatron-monitor compare /logs/monday.log /logs/tuesday.log
      megatron-monitor compare /logs/monday.log /logs/tuesday.log --format html -o both.html
    """
    one, other = (only_run(path, given)[1] for path in (a, b))
    if one.run == other.run:
        one.run, other.run = a, b
    found = comparison.compare(one, other)
    if form == "json":
        shown = json.dumps(found, indent=2, ensure_ascii=False)
    else:
        shown = html.compared(found, one, other) if form == "html" else comparison.text(found)
    click.echo(shown, output)
