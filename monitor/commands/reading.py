"""Finished logs as report rows: what `report` and `compare` start from."""

from __future__ import annotations

from monitor.clock import Clock, SystemClock
from monitor.config import Config
from monitor.once import read_all
from monitor.reports.rows import Options, Row, row_of
from monitor.reports.trace import Tallies
from monitor.run import derived


def rows_of(config: Config, options: Options, clock: Clock | None = None) -> tuple[list[Row], list[str]]:
    """(a row a run in the order of their names, what a person should know)."""
    tallies = Tallies()
    core, problems = read_all(config, clock or SystemClock(), tallies.look)
    rows = [
        row_of(run.state, derived.run_state(run.state, run.history), tallies.of.get(name), options)
        for name, run in sorted(core.runs.items())
        if run.state.proven and run.state.sources
    ]
    return rows, problems
