"""`report`: print the benchmark table of a folder of logs, one row a run."""

import sys
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from functools import partial

import click

from megatron_monitor.archive import Read, read_archive, read_task, tasks_of
from megatron_monitor.commands.arguments import (
    POSITIVE,
    ConfigOptions,
    json_option,
    spooled,
    warn,
    with_config,
)
from megatron_monitor.commands.progress import progress_bar
from megatron_monitor.config import Config
from megatron_monitor.once import files_of
from megatron_monitor.reports.formats import TEXTS, as_markdown, fastest_first, texts
from megatron_monitor.reports.formats import as_json as json_of
from megatron_monitor.reports.rows import Row
from megatron_monitor.scalars import one_line


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@json_option
@click.option("--workers", type=POSITIVE, help="Processes that read; default: one a core for large archives.")
@with_config
def report(paths: tuple[str, ...], as_json: bool, workers: int | None, given: ConfigOptions) -> None:
    """Make the benchmark table of PATH: one row a run, medians over steady iterations, the fastest first.

    PATH may be files, directories, globs, or - for standard input. A run's name is its file's.

    \b
    Examples:
      megatron-monitor report /logs/tuning
      megatron-monitor report /logs/tuning --json > report.json
    """
    with spooled(paths) as files:
        config = given.configured(files)
        found, failed = _rows(config, partial(read_task, config=config), workers)
    rows = fastest_first(found)
    if not as_json and sys.stdout.isatty():
        show_on_terminal(rows)
    else:
        click.echo((json_of if as_json else as_markdown)(rows), nl=False)
    sys.exit(1 if failed or not rows else 0)


def _rows(config: Config, read: Read, workers: int | None) -> tuple[list[Row], bool]:
    """Return (the rows of all runs, whether a file is missing or unreadable). Print problems on standard error."""
    found, missing = files_of(config)
    tasks, rows, failed = tasks_of(found, config), list[Row](), bool(missing)
    warn(*missing)
    try:
        with progress_bar(len(tasks)) as advance:
            for reading in read_archive(tasks, read, workers):
                rows += reading.rows
                failed = failed or reading.unreadable
                warn(*reading.problems)
                advance(1)
    except BrokenProcessPool as error:
        raise click.ClickException("a process was killed, perhaps because memory ran out; try --workers 1") from error
    return rows, failed


_FIRST = ("Run", "Sec/it", "TFLOPs", "Iterations", "Samples/s", "GPUs", "GBS", "Mem", "TP", "PP", "DP")
_NAME_WIDTH = 32  # columns reserved for a run's name before other columns are chosen


def show_on_terminal(found: Sequence[Row]) -> None:
    """Print the most important columns that fit, the names of those that do not, and the notes."""
    from megatron_monitor.commands.tables import fitted, show, width  # loads rich

    if not found:
        return
    columns = {heading: cells for heading, cells in texts(found).items() if any(cells) and heading != "Notes"}
    rows, right = zip(*columns.values(), strict=True), [heading not in TEXTS for heading in columns]
    table, missing = fitted(list(columns), rows, right, _FIRST, width(), _NAME_WIDTH)
    show(table)
    if missing:
        click.echo(f"Too narrow for these columns: {', '.join(missing)}.")
    click.echo()
    for row in found:
        for note in row.notes:
            click.echo(one_line(f"{row.run}: {note}"))
