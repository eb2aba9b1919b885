"""`demo`: simulate a run with a fault half way, and start the daemon that follows it."""

import signal
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click

from megatron_monitor.commands.arguments import fail
from megatron_monitor.commands.log_lines import start_logging
from megatron_monitor.commands.progress import progress_bar
from megatron_monitor.commands.simulate import scenario_of
from megatron_monitor.config import load
from megatron_monitor.daemon import Daemon, StartError
from megatron_monitor.simulate import Scenario, write
from megatron_monitor.system.clock import SystemClock

_SECONDS_PER_ITERATION = 0.25
_SETTINGS = (
    "log_level=info",
    "detectors.hang={minimum: 3s, first: {saving: 10s, evaluating: 10s, starting: 20s, first_iteration: 20s}}",
)


@click.command()
@click.option("--fault", default="hang", show_default=True, metavar="KIND", help="See `simulate --help`.")
@click.option("--listen", default="127.0.0.1:9843", show_default=True, help="Address of the page.")
@click.option("--iterations", type=click.IntRange(20), default=240, show_default=True)
def demo(fault: str, listen: str, iterations: int) -> None:
    """Start here: play a training run at four iterations a second, with a fault half way, and watch it.

    The log and the daemon's state are written to a temporary directory, which is deleted at the end.
    """
    scenario = replace(
        scenario_of((fault,), "megatron-lm", iterations, _SECONDS_PER_ITERATION, seed=1),
        noise=0.01, world_size=8, tp=2, pp=1, micro_batch_size=4, global_batch_size=64,
        layers=24, hidden=2048, heads=16, sequence_length=512, vocab=50304,
        save_interval=40, save_seconds=1.0, start_seconds=3.0, start_epoch=SystemClock().wall(),
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="megatron-monitor-demo-") as directory:
        log = Path(directory) / "demo-1B3.log"
        log.touch()
        config = load(
            "", (f"listen={listen}", f"state_dir={directory}/state", f"runs=[{{paths: [{log}]}}]", *_SETTINGS)
        )
        try:
            daemon = Daemon(config, lambda: config)
            daemon.start()
        except StartError as error:
            fail(error)
        address = daemon.services.address
        click.echo(
            f"page     http://{address}/\nmetrics  http://{address}/metrics\nlog      {log}\n"
            f"A simulated training runs now; the fault {fault} comes half way. Ctrl-C ends it."
        )
        with progress_bar(iterations, "iterations") as advance:
            start_logging(config)  # in here, so that its lines appear above the bar
            threading.Thread(target=_play, args=(scenario, log, advance), name="training", daemon=True).start()
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: daemon.stop())
            daemon.run()


def _play(scenario: Scenario, log: Path, advance: Callable[[float], object]) -> None:
    with log.open("ab") as stream:
        write(scenario, stream, speed=1.0, clock=SystemClock(), shown=lambda: advance(1))
