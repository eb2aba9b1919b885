"""`advise`: ask the daemon that follows a run what a launcher should do with it."""

import sys
from typing import Any
from urllib.parse import quote

import click

from megatron_monitor.commands.arguments import DURATION, fail, json_option, print_json
from megatron_monitor.commands.asking import DEFAULT, DaemonError, ask
from megatron_monitor.nodes.hostlist import joined
from megatron_monitor.system.clock import SystemClock

_EXIT_UNKNOWN_RUN = 3
_POLL_SECONDS = 1.0  # the daemon judges once a second
_FIELDS = ("advice", "reason", "exclude", "since", "checkpoint", "same_cause_before")


@click.command()
@click.argument("run")
@click.option("--at", "address", default=DEFAULT, show_default=True, metavar="URL", help="The daemon, or HOST:PORT.")
@click.option("--ended", is_flag=True, help="The attempt has ended, even if its log does not show that yet.")
@click.option("--wait", "patience", type=DURATION, default=0.0, help="How long to retry while the advice is `wait`.")
@click.option(
    "--only",
    "fields",
    multiple=True,
    type=click.Choice(_FIELDS),
    help="Print only the value of this field.",
)
@json_option
def advise(run: str, address: str, ended: bool, patience: float, fields: tuple[str, ...], as_json: bool) -> None:
    """Ask what to do with RUN: wait, restart it, stop it, or none.

    The answer names the reason, the nodes to exclude, lines of the log, the checkpoint to resume from, and how often
    the same cause occurred before. The command only asks; it changes nothing.

    \b
    Examples:
      megatron-monitor advise tr11 --ended --wait 5m
      megatron-monitor advise tr11 --only advice --only exclude
    """
    clock = SystemClock()
    until = clock.monotonic() + patience
    path = f"/api/v1/advice?run={quote(run, safe='')}{'&ended=1' if ended else ''}"
    try:
        while (answer := ask(address, path)).get("advice") == "wait" and clock.monotonic() < until:
            clock.sleep(_POLL_SECONDS)
    except DaemonError as error:
        fail(error)
    if as_json:
        print_json(answer)
    elif fields:
        click.echo("\n".join(_line(answer.get(name)) for name in fields))
    else:
        click.echo("\n".join(f"{name}: {text}" for name in _FIELDS if (text := _line(answer.get(name)))))
    sys.exit(0 if "exclude" in answer else _EXIT_UNKNOWN_RUN)


def _line(value: Any) -> str:
    """Return a value as one line for a shell: nodes as a Slurm host list, an unknown value as an empty line."""
    if isinstance(value, list):
        return joined(map(str, value))
    return "" if value is None else " ".join(str(value).split())
