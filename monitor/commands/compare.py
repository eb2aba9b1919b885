"""`compare`: two runs beside each other."""

import json
from pathlib import Path

import click

from monitor.commands.arguments import config_option, set_option
from monitor.commands.reading import only_run
from monitor.reports import comparison


@click.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
@config_option
@set_option
def compare(a: str, b: str, as_json: bool, config_file: Path | None, overrides: tuple[str, ...]) -> None:
    r"""Compare the runs of two logs: is it the same configuration, what differs, and how sure the difference is.

    A and B are files, or directories that hold one run.

    \b
    Example:
      megatron-monitor compare /logs/monday.log /logs/tuesday.log
    """
    one, other = (only_run(path, config_file, overrides)[1] for path in (a, b))
    if one.run == other.run:
        one.run, other.run = a, b
    found = comparison.compare(one, other)
    click.echo(json.dumps(found, indent=2, ensure_ascii=False) if as_json else comparison.text(found))
