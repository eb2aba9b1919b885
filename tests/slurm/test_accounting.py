"""Policies on a real Slurm with accounting and users (`make test-slurm`): who ended a job, and every way in which a
restart could cost a healthy job, be lost or be made twice. The monitor and what it restarts are root's: a Python below
/root is nobody else's.
"""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.programs import free_port, wait
from tests.slurm.accounting import USERS, Accounted, accounted, missing

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]
ROOT = Path(__file__).parents[2]
ADA, BOB = USERS
TRAIN = """#!/bin/bash
#SBATCH --output={directory}/logs/{output}.out
# A training: `train.sbatch NAME`. It hangs while stop-NAME is there, and goes on from its checkpoint.
cd {directory}
n=$(cat checkpoint-$1 2>/dev/null || echo 0)
echo "successfully loaded checkpoint from /c at iteration $n"
while [ $n -lt $(cat last-$1 2>/dev/null || echo 100000) ]; do
  n=$((n+1))
  printf ' iteration %8d/  100000 | consumed samples: %12d | elapsed time per iteration (ms): 200.0 | ' $n $((n*64))
  printf 'lm loss: 2.%06dE+00 | number of nan iterations:   0 |\\n' $n
  [ $((n%5)) = 0 ] && echo $n > checkpoint-$1
  sleep 0.2
  while [ -e stop-$1 ]; do sleep 0.2; done
done
"""
CONFIG = """
runs: [{{paths: ['{directory}/logs/{who}-*.out']}}]
slurm: {{interval: 1s}}
detectors: {{hang: {{minimum: 5s}}}}
remediations:
  - name: anew
    incidents: [hang, crash]
    runs: ['{who}-new*']
    for: 1s
    dry_run: false
    actions: [{{type: cancel}}, {{type: resubmit, command: ['{directory}/{script}', '{who}']}}]
  - name: again
    incidents: [hang, crash]
    runs: ['{who}-again*']
    for: 1s
    dry_run: false
    actions: [{{type: requeue}}]
"""


class Site:
    """The cluster, and its daemons, which have `config` or else CONFIG."""

    def __init__(self, slurm: Accounted, directory: Path, config: str = "") -> None:
        self.slurm, self.directory, self.config = slurm, directory, config
        self.daemons: list[subprocess.Popen[bytes]] = []

    def daemon(self, who: str, state: str = "") -> str:
        """An observer that follows the logs of `who`, and its remediator; the observer's address."""
        address, name = f"127.0.0.1:{free_port()}", f"{who}{state}"
        config = self.directory / f"{name}.yaml"
        config.write_text((self.config or CONFIG).format(directory=self.directory, who=who, script=_script(who)))
        self._begin(name, "run", "--listen", address)
        wait(lambda: self._get(address, "/-/ready") is not None, 30.0, f"{name}.log")
        self.remediator(address, name)
        return address

    def remediator(self, address: str, name: str) -> None:
        """One that asks that observer."""
        own = f"127.0.0.1:{free_port()}"
        self._begin(name, "remediate", "--at", address, "--listen", own)
        wait(lambda: self._get(own, "/-/healthy") is not None, 30.0, f"{name}-remediate.log")

    def _begin(self, name: str, command: str, *options: str) -> None:
        config = self.directory / f"{name}.yaml"
        words = [sys.executable, "-m", "megatron_monitor", command, "--config", str(config), *options,
                 "--set", f"state_dir={self.directory}/state-{name}"]  # fmt: skip
        environment = {**self.slurm.environment, "PYTHONPATH": str(ROOT / "src")}
        with (self.directory / f"{name}-{command}.log").open("ab") as log:
            self.daemons.append(subprocess.Popen(words, cwd=ROOT, env=environment, stdout=log, stderr=log))

    def run(self, address: str, name: str) -> dict[str, Any]:
        """What the page says of the run."""
        runs = json.loads(self._get(address, "/api/v1/runs") or "[]")
        return next((run for run in (runs["runs"] if isinstance(runs, dict) else runs) if run["run"] == name), {})

    def _get(self, address: str, path: str) -> str | None:
        with suppress(OSError):
            return str(urllib.request.urlopen(f"http://{address}{path}", timeout=5).read().decode())
        return None

    def end(self) -> None:
        """Kill the daemons."""
        for daemon in self.daemons:
            daemon.kill()
            daemon.wait(timeout=5)

    def train(self, who: str, name: str, *options: str, user: str = "root") -> str:
        """A job of that name, whose training is `who`'s."""
        return self.slurm.as_user(
            user, "sbatch", "--parsable", f"--chdir={self.directory}", f"--job-name={name}", *options,
            str(self.directory / _script(who)), who,
        )  # fmt: skip

    def log(self, name: str, text: str) -> bool:
        """Whether that stands in the job's log."""
        path = self.directory / "logs" / f"{name}.out"
        return path.exists() and text in path.read_text()

    def stop(self, who: str) -> None:
        """The training hangs from now on."""
        (self.directory / f"stop-{who}").write_text("")

    def all_of(self, who: str) -> list[str]:
        """Jobs that were ever submitted for that training."""
        lines = self.slurm.run("squeue", "-h", "-t", "all", "-o", "%i %o").splitlines()
        return [line.split()[0] for line in lines if line.endswith(f".sbatch {who}")]


def _script(who: str) -> str:
    return "array.sbatch" if who == "tasks" else "train.sbatch"


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """One cluster for all of them: it takes ten seconds to start."""
    if why := missing():
        pytest.skip(why)
    directory = Path(tempfile.mkdtemp(prefix="megatron-monitor-slurm-"))
    directory.chmod(0o777)
    (directory / "logs").mkdir(mode=0o777)
    (directory / "logs").chmod(0o777)
    for name, output in (("train", "%x-%j"), ("array", "%x-%A_%a")):
        (directory / f"{name}.sbatch").write_text(TRAIN.format(directory=directory, output=output))
    (directory / "slurm").mkdir()
    with ExitStack() as ends:
        ends.callback(shutil.rmtree, directory, ignore_errors=True)
        made = Site(ends.enter_context(accounted(directory / "slurm")), directory)
        ends.callback(made.end)
        yield made


def begun(site: Site, who: str, name: str, *options: str) -> tuple[str, str]:
    """A training with its daemon, some steps in. (address, job)"""
    address = site.daemon(who)
    job = site.train(who, name, *options)
    wait(lambda: site.log(f"{name}-{job}", "iteration        8/"), 30.0, f"{name} does not begin")
    wait(lambda: bool(site.run(address, f"{name}-{job}").get("job")), 20.0, "no job on the page")
    return address, job


def test_who_ended_it(site: Site) -> None:
    """Its user, an administrator, the time limit: each with the name, none as a hang."""
    address = site.daemon("ends")
    jobs = {name: site.train("ends", f"ends-{name}", user=ADA) for name in ("own", "admin", "limit")}
    for name, job in jobs.items():
        wait(lambda run=f"ends-{name}-{job}": bool(site.run(address, run).get("job")), 30.0, name)  # type: ignore[misc]
    site.slurm.as_user(ADA, "scancel", jobs["own"])
    site.slurm.run("scancel", jobs["admin"])
    site.slurm.run("scontrol", "update", f"JobId={jobs['limit']}", "EndTime=now+2")
    uid = subprocess.run(["id", "-u", ADA], capture_output=True, text=True, check=True).stdout.strip()
    for name, by in (("own", f"{ADA} (uid {uid})"), ("admin", "root (uid 0)")):
        run = f"ends-{name}-{jobs[name]}"
        wait(lambda run=run: site.run(address, run).get("state") == "stopped", 40.0, run)  # type: ignore[misc]
        wait(lambda run=run, by=by: by in site.run(address, run)["job"].get("cancelled_by", ""), 20.0, run)  # type: ignore[misc]
        wait(lambda run=run, by=by: f"cancelled by {by}" in str(site.run(address, run)["incidents"]), 20.0, run)  # type: ignore[misc]
    run = f"ends-limit-{jobs['limit']}"
    wait(lambda: "time_limit" in str(site.run(address, run).get("failure")), 60.0, run)


def test_what_slurm_does_by_itself(site: Site) -> None:
    """A node goes down, a preemption, a requeue by an administrator: each is an end of its own kind, and no hang."""
    address = site.daemon("self")
    jobs = {
        "node_failure": site.train("self", "self-down", "--no-requeue", "--nodelist=node-06", user=ADA),
        "preempted": site.train("self", "self-preempted", "--nodelist=node-05", "--exclusive", user=ADA),
        "requeued": site.train("self", "self-requeued", "--nodelist=node-04", user=ADA),
    }
    runs = {name: f"{site.slurm.show(job)['JobName']}-{job}" for name, job in jobs.items()}
    for run in runs.values():
        wait(lambda run=run: bool(site.run(address, run).get("job")), 30.0, run)  # type: ignore[misc]
    site.slurm.run("scontrol", "update", "NodeName=node-06", "State=DOWN", "Reason=test")
    urgent = site.train("urgent", "urgent", "--partition=urgent", "--nodelist=node-05", "--exclusive", user=BOB)
    site.slurm.run("scontrol", "requeue", jobs["requeued"])
    for name, kinds in (
        ("node_failure", ["node_failure"]), ("preempted", ["preempted"]), ("requeued", ["requeued", "stopped"])
    ):  # fmt: skip
        wait(lambda name=name, kinds=kinds: any(  # type: ignore[misc]
            kind in str(site.run(address, runs[name])) for kind in kinds), 40.0, name)  # fmt: skip
        assert "hung in" not in str(site.run(address, runs[name]).get("history")), name
    site.slurm.run("scancel", urgent, *jobs.values())


@pytest.mark.parametrize(
    ("name", "options", "blamed", "why"),
    [
        ("het-again", ("--ntasks=1", ":", "--ntasks=1"), "", "a part of a heterogeneous job"),
        ("tight-again", ("--partition=tight", "--nodes=2"), "node-07", "sbatch --test-only"),  # it has two nodes
        ("lost-new", ("--export=ALL,LR=1",), "", "was submitted with --export"),
    ],
)
def test_a_job_that_would_not_come_back_is_left_alone(
    site: Site, name: str, options: tuple[str, ...], blamed: str, why: str
) -> None:
    """Its commands would be for one component of it, it would wait for a node for ever, or train otherwise: the page
    says why.
    """
    who = name.partition("-")[0]
    address, job = begun(site, who, name, *options)
    run = f"{name}-{job}"
    if blamed:
        with (site.directory / "logs" / f"{run}.out").open("a") as log:
            log.write(f"srun: error: {blamed}: task 1: Segmentation fault\n")
    site.stop(who)
    wait(lambda: why in str(site.run(address, run).get("actions")), 60.0, lambda: str(site.run(address, run)))
    shown = site.slurm.show(job)
    assert (shown["JobState"], shown["Restarts"]) == ("RUNNING", "0")


def test_a_chain_is_not_begun_twice(site: Site) -> None:
    """The next link waits for this one: it goes on, and nothing is submitted beside it."""
    _, job = begun(site, "chain", "chain-new-1")
    following = site.train("chain", "chain-new-2", f"--dependency=afterany:{job}")
    site.stop("chain")
    site.slurm.wait_for(job, "CANCELLED", 60.0)
    site.slurm.wait_for(following, "RUNNING", 20.0)
    time.sleep(4)
    assert site.all_of("chain") == sorted((job, following), reverse=True) or len(site.all_of("chain")) == 2


def test_a_task_of_an_array_is_submitted_alone(site: Site) -> None:
    """Its siblings go on."""
    address = site.daemon("tasks")
    job = site.train("tasks", "tasks-new", "--array=0-2")
    wait(lambda: all(bool(site.run(address, f"tasks-new-{job}_{n}").get("job")) for n in range(3)), 40.0, "tasks")
    site.stop("tasks")
    wait(lambda: len(site.all_of("tasks")) >= 6, 60.0, lambda: str(site.all_of("tasks")))
    time.sleep(4)
    new = [one for one in site.all_of("tasks") if not one.startswith(f"{job}_")]
    assert sorted(one.partition("_")[2] for one in new) == ["0", "1", "2"], new


def test_of_two_daemons_one_acts(site: Site) -> None:
    """Each with its own state: one new job, not two."""
    _, job = begun(site, "two", "two-new")
    site.daemon("two", "-b")
    time.sleep(3)
    site.stop("two")
    site.slurm.wait_for(job, "CANCELLED", 60.0)
    wait(lambda: len(site.all_of("two")) >= 2, 30.0, "no new job")
    time.sleep(6)
    shown = [site.slurm.show(one) for one in site.all_of("two")]
    assert sorted(one["JobState"] for one in shown if one["JobState"] != "CANCELLED") == ["RUNNING"], shown


def test_a_finished_training_is_not_begun_again(site: Site) -> None:
    """It goes on and ends by itself as the policy comes to it: one that completed has no successor, one that was
    cancelled has one.
    """
    _, job = begun(site, "done", "done-new")
    site.stop("done")
    time.sleep(5.5)
    (site.directory / "last-done").write_text("20")
    (site.directory / "stop-done").unlink()
    wait(lambda: site.slurm.show(job)["JobState"] in ("COMPLETED", "CANCELLED"), 30.0, "it does not end")
    time.sleep(6)
    assert len(site.all_of("done")) == (1 if site.slurm.show(job)["JobState"] == "COMPLETED" else 2)


@pytest.mark.parametrize("at", ["told", "cancelled", "submitted", "running"])
def test_killed_amid_a_restart(site: Site, at: str) -> None:
    """The remediator by -9, as soon as Slurm shows that step, and started again: never two jobs, and what is lost is
    reported.
    """
    who = f"kill-{at}"
    address, job = begun(site, who, f"{who}-new")
    site.stop(who)
    run = f"{who}-new-{job}"
    reached = {
        "told": lambda: "hung in" in str(site.run(address, run).get("incidents")),
        "cancelled": lambda: site.slurm.show(job)["JobState"] != "RUNNING",
        "submitted": lambda: len(site.all_of(who)) > 1,
        "running": lambda: any(site.slurm.show(one)["JobState"] == "RUNNING" for one in site.all_of(who) if one != job),
    }
    wait(reached[at], 60.0, f"not {at}")
    site.daemons[-1].send_signal(signal.SIGKILL)
    site.daemons[-1].wait(timeout=5)
    site.remediator(address, who)

    def settled() -> bool:
        alive = [one for one in site.all_of(who) if site.slurm.show(one)["JobState"] in ("RUNNING", "PENDING")]
        reported = [one["incident"] for one in site.run(address, run).get("incidents", [])]
        return alive not in ([], [job]) or ("restart_failed" in reported and job not in alive)

    wait(settled, 150.0, lambda: f"{site.all_of(who)} {site.run(address, run)}")
    time.sleep(3)
    running = [one for one in site.all_of(who) if site.slurm.show(one)["JobState"] == "RUNNING"]
    assert len(running) <= 1, running


def test_slurm_that_is_away_delays_and_ends_nothing(site: Site) -> None:
    """The controller stands still for some seconds as the policy is due: done afterwards, once."""
    begun(site, "away", "away-new")
    assert site.slurm.slurmctld is not None
    site.stop("away")
    time.sleep(4)
    site.slurm.slurmctld.send_signal(signal.SIGSTOP)
    time.sleep(8)
    site.slurm.slurmctld.send_signal(signal.SIGCONT)
    wait(lambda: len(site.all_of("away")) >= 2, 60.0, "nothing was done afterwards")
    time.sleep(3)
    assert len([one for one in site.all_of("away") if site.slurm.show(one)["JobState"] == "RUNNING"]) == 1


def test_another_users_log_is_left_alone(site: Site) -> None:
    """It names a job that goes on, and stops."""
    address, job = begun(site, "bob", "bob-again")
    path = site.directory / "logs" / "bob-again-fake.out"
    line = " iteration {0:8d}/ 100000 | elapsed time per iteration (ms): 200.0 | lm loss: 9.0E+00 |\n"
    lines = f"SLURM_JOB_ID={job}\n" + "".join(line.format(number) for number in range(1, 9))
    path.write_text(lines)
    shutil.chown(path, BOB)
    time.sleep(12)
    assert site.slurm.show(job)["JobState"] == "RUNNING"
    assert site.slurm.show(job)["Restarts"] == "0"
    assert site.run(address, f"bob-again-{job}")["state"] == "training"
