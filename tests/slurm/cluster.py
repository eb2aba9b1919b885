"""A real Slurm of four nodes on loopback: one slurmctld, four slurmd of Debian's slurm-wlm, all as the present user.

`auth/none` and `cred/none` need no munge, `slurmd -N` makes four nodes of one host. What is started is ended.
"""

import getpass
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.programs import TETHERED, free_port, slack, wait

NODES = ("node-01", "node-02", "node-03", "node-04")
COMMON = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool/%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
FirstJobId=1701
KillWait=1
CompleteWait=0
"""
_CONF = """\
SlurmctldPort={port}
AuthType=auth/none
CredType=cred/none
SlurmUser={user}
SlurmdUser={user}
AccountingStorageType=accounting_storage/none
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Cluster:
    """Its clients, run with its configuration."""

    def __init__(self, directory: Path) -> None:
        self.conf = directory / "slurm.conf"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))},
            "SLURM_CONF": str(self.conf),
        }

    def run(self, *command: str) -> str:
        """What a client prints; it must succeed."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=slack(30))
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout.strip()

    def submit(self, script: Path, *options: str) -> str:
        """The id of a new job."""
        return self.run("sbatch", "--parsable", *options, str(script))

    def show(self, job: str) -> dict[str, str]:
        """What `scontrol show job` says."""
        pairs = (pair.partition("=") for pair in self.run("scontrol", "show", "job", "-o", job).split())
        return {name: value for name, _, value in pairs}

    def jobs(self) -> list[str]:
        """Ids of all that are in the queue."""
        return self.run("squeue", "-h", "-o", "%i").split()

    def end_jobs(self) -> None:
        """No job is left."""
        with suppress(AssertionError, subprocess.TimeoutExpired):
            if jobs := self.jobs():
                self.run("scancel", "--signal=KILL", "--full", *jobs)
                self.run("scancel", *jobs)
            wait(lambda: not self.jobs(), 5.0, "jobs that do not end")

    def wait_for(self, job: str, state: str, timeout: float = 15.0) -> None:
        """Until the job is in that state."""
        wait(lambda: self.show(job)["JobState"] == state, timeout, lambda: str(self.show(job)))


@contextmanager
def cluster(directory: Path) -> Iterator[Cluster]:
    """Started, its nodes idle; every job and every daemon of it ends with it."""
    nodes = "\n".join(
        f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={free_port()} CPUs=8 Weight={weight}"
        for weight, name in enumerate(NODES, 1)
    )
    for name in NODES:
        (directory / "spool" / name).mkdir(parents=True)
    (directory / "state").mkdir()
    made = Cluster(directory)
    made.conf.write_text(
        (COMMON + _CONF).format(port=free_port(), user=getpass.getuser(), directory=directory, nodes=nodes), "utf-8"
    )
    daemons = [_begin(made, directory, "slurmctld", "-D", "-c", "-i")]
    daemons += [_begin(made, directory, "slurmd", "-D", "-N", name) for name in NODES]
    try:
        wait(lambda: _idle(made), 20.0, lambda: "".join(log.read_text() for log in directory.glob("*.out")))
        yield made
    finally:
        made.end_jobs()
        end(*reversed(daemons))


def end(*daemons: subprocess.Popen[bytes]) -> None:
    """End daemons."""
    for daemon in daemons:
        daemon.terminate()
    for daemon in daemons:
        with suppress(subprocess.TimeoutExpired):
            daemon.wait(timeout=slack(5))
        daemon.kill()
        daemon.wait(timeout=slack(5))


def _begin(made: Cluster, directory: Path, *command: str) -> subprocess.Popen[bytes]:
    path = "/usr/sbin:/sbin:" + made.environment.get("PATH", "")
    with (directory / f"{command[-1]}.out").open("wb") as log:
        return subprocess.Popen(
            [*TETHERED, *command], env={**made.environment, "PATH": path}, stdin=subprocess.DEVNULL, stdout=log,
            stderr=log,
        )  # fmt: skip


def _idle(made: Cluster) -> bool:
    shown = subprocess.run(
        ["sinfo", "-h", "-N", "-o", "%T"], env=made.environment, capture_output=True, text=True, timeout=slack(30)
    )
    return shown.stdout.split() == ["idle"] * len(NODES)
