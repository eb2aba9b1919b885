"""`dialect`: proposes a dialect file for a log that nobody reads yet; `--show` prints a built-in one's file."""

from itertools import islice
from pkgutil import get_data

import click

from megatron_monitor.commands.arguments import fail
from megatron_monitor.parsers.declared.schema import built_in
from megatron_monitor.reports.dialects import proposed

_LINES = 20_000  # a training shows its step lines long before
_MOST = 64 * 1024  # bytes of a line that are read at once


@click.command()
@click.argument("log", required=False, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--name", default="ours", show_default=True, help="Its name: the label `dialect`.")
@click.option("--show", metavar="NAME", help="Print the file of a built-in dialect instead, as an example.")
def dialect(log: str | None, name: str, show: str | None) -> None:
    r"""Propose a dialect file for LOG: the line that repeats with a growing number, and what its values may mean.

    It is for a person to correct, and is never used by itself.

    \b
    Example:
      megatron-monitor dialect train.log > dialects/ours.yaml
      megatron-monitor check-config config.yaml      # with `dialects: [dialects]` in it: runs the samples
    """
    if show is not None:
        names = [known.name for known in built_in()]
        if show not in names:
            raise click.UsageError(f"no built-in dialect {show!r}; there are {', '.join(names)}")
        click.echo((get_data("megatron_monitor.parsers.trainers", f"{show}.yaml") or b"").decode(), nl=False)
        return
    if log is None:
        raise click.UsageError("LOG is missing")
    with click.open_file(log, "rb") as stream:
        found = proposed(islice(iter(lambda: stream.readline(_MOST), b""), _LINES), name)
    if found is None:
        fail(
            f"{log}: no line has a number that grows, or is called a step, beside names and values that are known; "
            "start from a dialect that is near: --show NAME"
        )
    click.echo(found, nl=False)
