"""Finished logs as report rows: what `report` and `compare` start from."""

import click

from megatron_monitor.archive import read_runs
from megatron_monitor.commands.arguments import Given, spooled, warn
from megatron_monitor.reports.rows import Options, Row
from megatron_monitor.run.state import RunState


def only_run(path: str, given: Given) -> tuple[RunState, Row]:
    """The one run that the path holds; a usage error with their names if it holds another number."""
    with spooled((path,)) as files:
        config = given.configured(files)
        _, runs, problems = read_runs(config, Options(config.gpu_peak_tflops))
    if len(runs) == 1:
        return runs[0]
    warn(*problems)
    names = ", ".join(row.run for _, row in runs) or "none"
    raise click.ClickException(f"{path} holds {len(runs)} runs: {names}; one is needed")
