"""`demo`: a simulated run with a fault half way, the daemon on it, and the page to open."""

import getpass
import os
import signal
import tempfile
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from pkgutil import get_data
from string import Template

import click

from megatron_monitor.commands.arguments import fail
from megatron_monitor.commands.run import start_logging
from megatron_monitor.commands.simulate import scenario_of
from megatron_monitor.config import load
from megatron_monitor.daemon import Daemon, StartError
from megatron_monitor.simulate import Scenario, write
from megatron_monitor.simulate import slurm as played
from megatron_monitor.system.clock import SystemClock

_ITERATIONS = 240
_SECONDS = 0.25
_JOB = 1718955
_QUEUED = 7.0  # seconds that the played Slurm takes to start a job anew: the end before is told after five


@click.command()
@click.option("--fault", default="hang", show_default=True, metavar="KIND", help="See `simulate --help`.")
@click.option("--listen", default="127.0.0.1:9843", show_default=True, help="Address of the page.")
@click.option("--iterations", type=click.IntRange(20), default=_ITERATIONS, show_default=True)
@click.option("--slurm", is_flag=True, help="Play a Slurm too, and a policy that starts the job anew when it hangs.")
@click.option("--exit-after", type=float, default=None, help="End by itself after so many seconds.")
def demo(fault: str, listen: str, iterations: int, slurm: bool, exit_after: float | None) -> None:
    """Start here: play a training run at four iterations a second, with a fault half way, and watch it.

    Nothing of yours is touched: the log and the daemon's state stand in a temporary directory.
    """
    scenario = replace(
        scenario_of((fault,), "megatron-lm", iterations, _SECONDS, seed=1), noise=0.01, world_size=8, tp=2, pp=1,
        micro_batch_size=4, global_batch_size=64, layers=24, hidden=2048, heads=16, sequence_length=512, vocab=50304,
        save_interval=40, save_seconds=1.0, start_seconds=3.0, start_epoch=SystemClock().wall(),
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="megatron-monitor-demo-") as directory:
        log = Path(directory) / (f"slurm-{_JOB}.out" if slurm else "demo-1B3.log")
        log.touch()
        text = Template((get_data("megatron_monitor.commands", "demo.yaml") or b"").decode())
        file = Path(directory) / "config.yaml"
        file.write_text(text.substitute(listen=listen, directory=directory, log=log), "utf-8")
        config = load(file, () if slurm else ("slurm.enabled=false", "policies=[]"))
        if slurm:
            _install_slurm(Path(directory))
        start_logging(config)
        daemon = Daemon(config)
        try:
            daemon.start()
        except StartError as error:
            fail(error)
        click.echo(
            f"page     http://{daemon.address}/\nmetrics  http://{daemon.address}/metrics\nlog      {log}\n"
            f"A simulated training runs now; {fault} comes half way. Ctrl-C ends it."
        )
        play = _play_requeued if slurm else _play
        threading.Thread(target=play, args=(scenario, log), name="training", daemon=True).start()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: daemon.stop())
        if exit_after is not None:
            threading.Timer(exit_after, daemon.stop).start()
        daemon.run()


def _install_slurm(directory: Path) -> None:
    """A Slurm of its own below the directory, with the demo's job."""
    now = int(SystemClock().wall())
    user = f"{getpass.getuser()}({os.getuid()})"
    job = {
        "JobId": str(_JOB), "JobName": "demo-1B3", "UserId": user, "JobState": "RUNNING", "Reason": "None",
        "Requeue": 1, "Restarts": 0, "BatchFlag": 1, "ExitCode": "0:0", "TimeLimit": "20:00:00", "SubmitTime": now,
        "StartTime": now, "EndTime": now + 72000, "Partition": "demo", "ExcNodeList": "(null)",
        "NodeList": "nid00[6149-6150]", "WorkDir": str(directory), "StdOut": str(directory / f"slurm-{_JOB}.out"),
    }  # fmt: skip
    played.install(directory / "slurm", job)


def _play_requeued(scenario: Scenario, log: Path) -> None:
    """The training until its fault; once its job is requeued, the next launch goes on from the last checkpoint."""
    clock, slurm = SystemClock(), log.parent / "slurm"
    _play(scenario, log)
    while (job := played.read(slurm))["JobState"] != "PENDING":
        clock.sleep(_SECONDS)
    at = datetime.fromtimestamp(clock.wall(), UTC).strftime("%Y-%m-%dT%H:%M:%S")
    with log.open("a") as stream:
        stream.write(f"slurmstepd: error: *** JOB {_JOB} ON nid006149 CANCELLED AT {at} DUE TO JOB REQUEUE ***\n")
    clock.sleep(_QUEUED)
    played.write(slurm, {**job, "JobState": "RUNNING", "Reason": "None", "StartTime": int(clock.wall())})
    every = scenario.save_interval
    saved = scenario.faults[0].at // every * every
    _play(replace(scenario, faults=(), first_iteration=saved + 1, start_epoch=clock.wall()), log)


def _play(scenario: Scenario, log: Path) -> None:
    with log.open("ab") as stream:
        write(scenario, stream, speed=1.0, clock=SystemClock())
