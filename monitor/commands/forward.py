"""`forward`: follow files on this host and push their lines to a receiver on another."""

import hashlib
import signal
import socket
from pathlib import Path
from urllib.parse import urlsplit

import click

from megatron_monitor.commands.arguments import POSITIVE_DURATION, absolute_of, fail, pairs
from megatron_monitor.commands.log_lines import start_logging
from megatron_monitor.config import Config, state_directory
from megatron_monitor.follow.patterns import WatchedPath
from megatron_monitor.forward import PATH, Forwarder, Target
from megatron_monitor.receiver.labels import AGENT
from megatron_monitor.scalars import url_of
from megatron_monitor.store import StateInUseError, StateUnreadableError
from megatron_monitor.system.clock import SystemClock


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH_OR_GLOB...")
@click.option("--to", required=True, metavar="URL", help="The receiver, e.g. http://monitor:9844.")
@click.option("--label", "labels", multiple=True, callback=pairs, metavar="NAME=VALUE",
              help="Label of every line, e.g. run=tr11.")  # fmt: skip
@click.option("--exclude", "excludes", multiple=True, metavar="GLOB", help="Files and directories to leave out.")
@click.option("--agent", help="This agent's name in its heartbeats; default: the host's name.")
@click.option("--heartbeat", type=POSITIVE_DURATION, default="5s", show_default=True, help="Heartbeat interval.")
@click.option("--token-file", type=click.Path(dir_okay=False, path_type=Path), help="The tenant's token.")
@click.option("--state", type=click.Path(file_okay=False, path_type=Path), help="Directory for the read positions.")
def forward(
    paths: tuple[str, ...], to: str, labels: dict[str, str], excludes: tuple[str, ...], agent: str | None,
    heartbeat: float, token_file: Path | None, state: Path | None,
) -> None:  # fmt: skip
    """Follow logs as `run` does and push each line exactly once to a receiver, across restarts of either side.

    The run of a line is `--label run=NAME`; without it, the path names the run, as in `run`.

    \b
    Examples:
      megatron-monitor forward --to http://monitor:9844 '/logs/**/*.out'
      megatron-monitor forward --to http://monitor:9844 --label run=tr11 train.log
    """
    if token_file is not None:
        token_file.read_bytes()  # it is read again for each push; if it is missing now, it is misspelt
    target = _target(to, token_file)
    found = [*map(absolute_of, paths)]
    state = state or _state_of([target.url, *found])
    start_logging(Config())
    try:
        beat = (AGENT, agent or socket.gethostname(), heartbeat)
        watches = [WatchedPath(path, excludes) for path in found]
        forwarder = Forwarder(watches, target, labels, state, SystemClock(), beat)
    except (StateInUseError, StateUnreadableError, OSError) as error:
        fail(f"{state}: {error}")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: forwarder.stop())
    forwarder.run()


def _state_of(arguments: list[str]) -> Path:
    """Return the default state directory, one for each combination of target and paths."""
    name = hashlib.blake2s("\0".join(arguments).encode("utf-8", "replace"), digest_size=6).hexdigest()
    return state_directory(Config(), f"forward-{name}")


def _target(to: str, token_file: Path | None) -> Target:
    try:
        url = url_of(to)
    except ValueError as error:
        fail(f"--to {to}: {error}", code=2)
    url = url if urlsplit(url).path.strip("/") else url.rstrip("/") + PATH
    return Target(url, token_file)
