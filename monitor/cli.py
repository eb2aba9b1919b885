"""The command line. Exit 0 done, 1 failed while working, 2 wrong usage or configuration."""

import atexit
import gc
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import click

from megatron_monitor import __version__

_ALL = {
    "Watch": (
        ("run", "", "Follow logs, judge the runs, serve metrics and the page."),
        ("top", "", "Show all runs of a monitor in the terminal, the worst first."),
        ("advise", "advice", "Ask what to do with a run: wait, restart, stop or none."),
        ("remediate", "remediator", "Act on Slurm jobs by the daemon's advice. Off unless configured."),
    ),
    "Analyze": (
        ("replay", "", "Evaluate finished logs by their own clock."),
        ("report", "reports", "Make a benchmark table with one row per run."),
        ("explain", "", "Show which rule reads a line, or why none does."),
    ),
    "Set up": (
        ("demo", "simulate", "Start here: a simulated run with a fault, and its page."),
        ("simulate", "simulate", "Write a synthetic training log, at once or live."),
        ("check-config", "", "Print every error of a configuration with its path."),
        ("notify", "", "Send a test message to one notifier and print its answer."),
        ("formats", "", "List the line formats that are built in, or print one's file."),
        ("export", "", "Write dashboards, rules, manifests and the configuration into a folder."),
        ("receive", "receiver", "Receive logs that agents push over the network."),
        ("forward", "forward", "Follow logs and push their lines to a receiver elsewhere."),
    ),
}
"""Group -> commands: name of module and function, the optional part that it needs (monitor/extensions.py), and its text
in `--help`, which is written here because loading all commands takes 0.6 s."""

COMMANDS = {
    group: {name: about for name, part, about in several if (Path(__file__).parent / part).is_dir()}
    for group, several in _ALL.items()
}
"""Commands whose optional parts are installed."""
_NAMES = [name for several in COMMANDS.values() for name in several]

_EXIT_STATUS = "Exit status: 0 done, 1 failed while working, 2 wrong usage or configuration"
_MORE_STATUS = {"advise": ", 3 the monitor does not know the run"}

GARBAGE = (20_000, 20, 50)
"""Arguments of gc.set_threshold. At Python's default of 700, a third of the time went into collections: a run's state
has a hundred thousand objects, and reference cycles are rare. 20,000 objects take a few MB."""


class _Commands(click.Group):
    """A group that imports a command when it is used: half of a short run is importing."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command called `cmd_name`, or None."""
        return command(cmd_name) if cmd_name in _NAMES else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write each command's text without importing it."""
        for group, several in COMMANDS.items():
            with formatter.section(group):
                formatter.write_dl(list(several.items()))

    def invoke(self, ctx: click.Context) -> None:
        """Run the command. A file that is missing or may not be opened is one line, and status 1."""
        try:
            super().invoke(ctx)
        except (OSError, click.FileError) as error:
            name, why = (error.ui_filename, error.message) if isinstance(error, click.FileError) else (
                error.filename, error.strerror
            )  # fmt: skip
            if name is None:
                raise
            from megatron_monitor.scalars import one_line

            click.echo(one_line(f"{name}: {why}"), err=True)
            sys.exit(1)


@cache
def command(name: str) -> click.Command:
    """Import and return the command of this name."""
    name = name.replace("-", "_")
    loaded = getattr(import_module(f"megatron_monitor.commands.{name}"), name)
    assert isinstance(loaded, click.Command)
    status = f"{_EXIT_STATUS}{_MORE_STATUS.get(name, '')}."
    loaded.epilog = f"{loaded.epilog}\n\n{status}" if loaded.epilog else status
    return loaded


@click.group(
    cls=_Commands,
    commands=dict.fromkeys(_NAMES),  # click suggests one of these for a misspelt command
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="megatron-monitor")
def main() -> None:
    """Tail training logs, detect hangs, slowdowns and crashes, export Prometheus metrics.

    \b
    Start here:
      megatron-monitor demo                     a simulated run with a fault, and the page to open
      megatron-monitor run /logs/tr11/main.txt  follow a log; http://127.0.0.1:9843/ shows it
      megatron-monitor run --once LOG           read to the end, print the metrics
    """
    gc.set_threshold(*GARBAGE)
    atexit.register(gc.freeze)  # skips the last collections: a fifth of a short run
