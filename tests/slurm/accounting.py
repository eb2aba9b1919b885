"""A real Slurm with accounting: munge, MariaDB, slurmdbd, two users; for root on a machine that is only for tests.

apt-get install slurm-wlm slurmdbd mariadb-server munge
"""

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.programs import TETHERED, free_port, wait
from tests.slurm.cluster import COMMON, Cluster, end

USERS = ("mm-ada", "mm-bob")
NODES = tuple(f"node-{number:02d}" for number in range(1, 9))
NEEDED = ("slurmctld", "slurmd", "slurmdbd", "munged", "mariadbd", "mariadb-install-db")
_DBD = """\
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
DbdHost=localhost
DbdPort={dbd}
SlurmUser=root
PidFile={directory}/slurmdbd.pid
LogFile={directory}/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={sql}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm
"""
_CONF = """\
SlurmctldPort={ctl}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={directory}/munge.socket
SlurmUser=root
SlurmdUser=root
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={dbd}
AccountingStoragePass={directory}/munge.socket
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,requeue_delay=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MessageTimeout=5
{nodes}
PartitionName=main Nodes=node-[01-06] Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=node-[01-06] MaxTime=INFINITE State=UP PriorityTier=9
PartitionName=tight Nodes=node-[07-08] MaxTime=INFINITE State=UP PriorityTier=1
"""


def missing() -> str:
    """What is not here of all that it needs; empty where it can be started."""
    lacks = [name for name in NEEDED if shutil.which(name, path=f"/usr/sbin:/usr/bin:{os.environ['PATH']}") is None]
    return "it needs root" if os.geteuid() else f"there is no {', '.join(lacks)}" if lacks else ""


class Accounted(Cluster):
    """The same, whose users submit."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.slurmctld: subprocess.Popen[bytes] | None = None

    def as_user(self, user: str, *command: str) -> str:
        """What a client prints that the user calls."""
        return self.run(*become(user), *command)


def become(user: str) -> Sequence[str]:
    """Before a command: the user calls it."""
    known = pwd.getpwnam(user)
    return ("setpriv", f"--reuid={known.pw_uid}", f"--regid={known.pw_gid}", "--clear-groups", "--pdeathsig", "KILL")


@contextmanager
def users() -> Iterator[None]:
    """Two that there were not."""
    for name in USERS:
        subprocess.run(["useradd", "--no-create-home", name], check=False)
    try:
        yield
    finally:
        for name in USERS:
            subprocess.run(["userdel", name], check=False)


@contextmanager
def accounted(directory: Path) -> Iterator[Accounted]:
    """Started, its nodes idle; all that it has started ends with it."""
    for below in ("state", "sql", *(f"spool/{name}" for name in NODES)):
        (directory / below).mkdir(parents=True)
    ports = {name: free_port() for name in ("ctl", "dbd", "sql")}
    nodes = "\n".join(
        f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={free_port()} CPUs=8" for name in NODES
    )
    made = Accounted(directory)
    made.conf.write_text((COMMON + _CONF).format(directory=directory, nodes=nodes, **ports))
    (directory / "slurmdbd.conf").write_text(_DBD.format(directory=directory, **ports))
    (directory / "slurmdbd.conf").chmod(0o600)
    (directory / "munge.key").write_bytes(os.urandom(128))
    (directory / "munge.key").chmod(0o400)
    environment = {**made.environment, "PATH": f"/usr/sbin:{os.environ['PATH']}"}
    socket, munge = directory / "sql.socket", directory / "munge.socket"
    with ExitStack() as ends, users():

        def begin(*command: str) -> subprocess.Popen[bytes]:
            with (directory / f"{Path(command[0]).name}.out").open("ab") as log:
                daemon = subprocess.Popen(
                    [*TETHERED, *command], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
            ends.callback(end, daemon)
            return daemon

        begin("munged", "--foreground", "--force", f"--key-file={directory}/munge.key", f"--socket={munge}",
              f"--pid-file={directory}/munge.pid", f"--log-file={directory}/munge.log",
              f"--seed-file={directory}/munge.seed")  # fmt: skip
        subprocess.run(
            ["mariadb-install-db", "--user=root", f"--datadir={directory}/sql", "--skip-test-db"], env=environment,
            check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        begin("mariadbd", "--no-defaults", "--user=root", f"--datadir={directory}/sql", f"--socket={socket}",
              f"--port={ports['sql']}", "--bind-address=127.0.0.1", f"--pid-file={directory}/sql.pid")  # fmt: skip
        wait(socket.exists, 30.0, "MariaDB")
        grant = "CREATE USER slurm@'%' IDENTIFIED BY 'slurm'; GRANT ALL ON *.* TO slurm@'%'"
        subprocess.run(["mariadb", f"--socket={socket}", "-e", grant], check=True)
        begin("slurmdbd", "-D")
        wait(lambda: _succeeds(made, "sacctmgr", "-i", "add", "cluster", "test"), 30.0, "slurmdbd")
        made.slurmctld = begin("slurmctld", "-D", "-c", "-i")
        for name in NODES:
            begin("slurmd", "-D", "-N", name)
        idle = ["idle"] * len(NODES)
        wait(lambda: made.run("sinfo", "-h", "-N", "-p", "main,tight", "-o", "%T").split() == idle, 30.0, "idle nodes")
        try:
            yield made
        finally:
            made.end_jobs()


def _succeeds(made: Cluster, *command: str) -> bool:
    try:
        made.run(*command)
    except AssertionError:
        return False
    return True
