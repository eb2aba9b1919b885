"""`remediate`: the process that carries out the daemon's advice on Slurm jobs."""

import logging
import os
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path

import click
from msgspec import MsgspecError

from megatron_monitor.advice.record import Record, file_in, read
from megatron_monitor.commands.arguments import ConfigOptions, fail, with_config
from megatron_monitor.commands.asking import DEFAULT, ask, without_password
from megatron_monitor.commands.log_lines import start_logging
from megatron_monitor.config import host_and_port, state_directory
from megatron_monitor.remediator.commands import Slurm
from megatron_monitor.remediator.remediator import EVERY, Remediator
from megatron_monitor.serve.http import Exposition, Probes
from megatron_monitor.serve.server import HttpServer
from megatron_monitor.snapshot import Snapshot
from megatron_monitor.store import StateInUseError, Store, replace_file
from megatron_monitor.system.clock import SystemClock
from megatron_monitor.system.flag import Flag

_MAX_TURN_SECONDS = 300.0  # of several commands, each with a time limit
_log = logging.getLogger(__name__)


@click.command()
@with_config
@click.option(
    "--at", "address", default=DEFAULT, show_default=True, metavar="URL", envvar="MEGATRON_MONITOR_URL",
    help="The daemon to ask, as URL or HOST:PORT.",
)  # fmt: skip
@click.option("--listen", default="127.0.0.1:9845", show_default=True, help="Address of /metrics and /-/healthy.")
def remediate(given: ConfigOptions, address: str, listen: str) -> None:
    """Carry out the `remediations:` of the configuration: dump stacks, cancel, requeue, resubmit, drain.

    Give it the same configuration file as the daemon, which it polls for advice. It acts with the rights of its own
    user and records each action in the directory `STATE_DIR-remediator`; the daemon shows these records.

    \b
    Examples:
      megatron-monitor remediate --config config.yaml
    """
    config = given.configured(())
    if not config.remediations:
        fail("nothing to do: `remediations` is empty (see config.yaml)", code=2)
    start_logging(config)
    state = Path(state_directory(config, config.listen))
    clock, path = SystemClock(), file_in(state)
    store, record = opened(path)
    try:
        asking, slurm = partial(ask, address, owners=_owners(state)), Slurm(clock, path.parent / "stacks")
        remediator = Remediator(
            config, record, lambda encoded: replace_file(path, [encoded], 0o644), slurm, asking, clock
        )
        metrics = Exposition(lambda: Snapshot(clock.wall(), monitor=remediator.shown), clock)
        probes = Probes(metrics, lambda: clock.monotonic() - remediator.turned_at, _MAX_TURN_SECONDS)
        server = HttpServer(*host_and_port(listen), probes)
    except OSError as error:
        fail(f"cannot listen on {listen}: {error.strerror or error}")
    stop = Flag()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    server.start()
    _log.info("observer=%s record=%s; listening on http://%s/", without_password(address), path, listen)
    while not stop.is_set():
        if not remediator.turn():
            stop.wait(EVERY)
    remediator.finish()
    server.stop()
    store.release()


def opened(path: Path) -> tuple[Store, Record | None]:
    """Lock the directory of the record, or exit; return it, and the saved record (None without a file)."""
    store = Store(path.parent)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)  # the observer's user reads the record
        store.lock()
    except (StateInUseError, OSError) as error:
        fail(f"{path.parent}: {error}; executions must be recorded")
    try:
        return store, read(path)
    except (OSError, MsgspecError) as error:
        fail(f"{path} cannot be read: {error}; check what was done, then move the file away")


def _owners(state: Path) -> set[int]:
    """Return the user ids that the observer may have. While it is down, anybody on this host may take its port."""
    with suppress(FileNotFoundError):
        return {0, os.geteuid(), state.stat().st_uid}
    return {0, os.geteuid()}
