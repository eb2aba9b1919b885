"""A real Slurm, its jobs, the daemon and the remediator: a job that hangs is started again without its bad node."""

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.programs import wait
from tests.slurm.cluster import cluster
from tests.slurm.test_accounting import Site

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]

ROOT = Path(__file__).parents[2]
TRAIN = Path(__file__).with_name("train.py")
DUMP = ROOT / "deploy" / "slurm" / "dump-stacks.sh"
CONFIG = """
runs:
  - {{name: handled, paths: ['{directory}/logs/slurm-*.out']}}
  - {{paths: ['{directory}/silent/*.log']}}
slurm: {{interval: 2s}}
detectors: {{hang: {{minimum: 20s}}}}
remediations:
  - name: without-the-node
    incidents: [hang, crash]
    runs: [handled]
    for: 1s
    dry_run: false
    actions:
      - {{type: dump_stacks, command: ['{dump}']}}
      - {{type: cancel}}
      - {{type: resubmit, command: ['{directory}/handled.sbatch']}}
"""


class Watched(Site):
    """A cluster, the observer at `address` and its remediator, and the jobs."""

    address: str
    jobs: dict[str, str]

    def page(self, name: str) -> dict[str, Any]:
        """What the page says of the run."""
        return self.run(self.address, name)

    def events(self, name: str) -> list[dict[str, Any]]:
        """What remediations did to the run."""
        return [item for item in self.page(name)["history"] if item["summary"].startswith("remediation ")]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Four jobs on four nodes, all begun at once: their times overlap."""
    directory = tmp_path_factory.mktemp("slurm")
    for name in ("logs", "silent", "checkpoints", "slurm"):
        (directory / name).mkdir()
    handled = directory / "handled.sbatch"
    handled.write_text(
        "#!/bin/bash\n#SBATCH --job-name=handled --nodes=2 --ntasks-per-node=2\n"
        f"#SBATCH --chdir={directory}/logs\n"
        f"srun --label {sys.executable} {TRAIN} {directory}/checkpoints --stop 'node-[01-02]'\n"
    )
    silent = directory / "silent.sbatch"  # what Slurm writes at the end is thrown away: the log just ends
    silent.write_text(
        "#!/bin/bash\n#SBATCH --nodes=1 --ntasks=1 --no-requeue --output=/dev/null\n"
        f"mkdir -p {directory}/$SLURM_JOB_NAME\n"
        f"srun {sys.executable} {TRAIN} {directory}/$SLURM_JOB_NAME "
        f">{directory}/silent/$SLURM_JOB_NAME-$SLURM_JOB_ID.log 2>/dev/null\n"
    )
    with ExitStack() as ends:
        # srun hands it on to the nodes
        patch = ends.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("PY_SPY", str(Path(sys.executable).with_name("py-spy")))
        slurm = ends.enter_context(cluster(directory / "slurm"))
        site = Watched(slurm, directory, CONFIG.replace("{dump}", str(DUMP)))  # type: ignore[arg-type]
        ends.callback(site.end)
        site.address = site.daemon("slurm")  # first: what happened before its record began is left alone
        site.jobs = jobs = {"handled": slurm.submit(handled)}
        for name, node in (("time_limit", "node-01"), ("cancelled", "node-01"), ("node_down", "node-04")):
            jobs[name] = slurm.submit(silent, f"--job-name={name}", f"--nodelist={node}")
        for job in jobs.values():
            slurm.wait_for(job, "RUNNING")
        # A time limit has whole minutes; an end that is set has not, and is looked at every half minute.
        slurm.run("scontrol", "update", f"JobId={jobs['time_limit']}", "EndTime=now+5")
        yield site


def test_a_job_that_hangs_goes_on_without_the_node(site: Watched) -> None:
    """Found, stacks dumped, cancelled, submitted again without the node whose rank did not arrive; it goes on from its
    checkpoint, and the record says so.
    """
    job = site.jobs["handled"]
    site.slurm.wait_for(job, "CANCELLED", 40.0)
    wait(lambda: bool(site.events("handled")), 10.0, lambda: str(site.jobs))
    (reported,) = site.events("handled")
    new = re.search(r"resubmit done \(submitted job (\d+)\)", reported["summary"])
    assert new is not None, reported
    assert f"--dependency=afterany:{job}" in reported["evidence"]["actions"][2]
    (stacks,) = site.directory.rglob("stacks/*")
    dumped = stacks.read_text()
    for rank in range(4):
        assert f"== rank {rank}, " in dumped
    assert len(re.findall(r"main \(.*train\.py:\d+\)", dumped)) == 4
    site.slurm.wait_for(new[1], "RUNNING")
    shown = site.slurm.show(new[1])
    assert (shown["ExcNodeList"], shown["NodeList"]) == ("node-02", "node-[01,03]")
    wait(lambda: (site.page("handled")["iteration"] or 0) > 13, 15.0, lambda: str(site.jobs))
    run = site.page("handled")
    assert (run["restarts"], run["state"], run["incidents"]) == (1, "training", [])
    anew = (site.directory / "logs" / f"slurm-{new[1]}.out").read_text()
    assert re.findall(r" iteration +(\d+)/", anew)[0] == "11"
    wait(lambda: site.page("handled")["job"].get("id") == new[1], 10.0, lambda: str(site.jobs))


def test_ends_of_which_the_log_says_nothing(site: Watched) -> None:
    """A person cancels, the time is over, a node goes down: each is told as what it is, and none as a hang."""
    site.slurm.run("scancel", site.jobs["cancelled"])
    site.slurm.run("scontrol", "update", "NodeName=node-04", "State=DOWN", "Reason=test")
    expected = {"cancelled": "stopped", "node_down": "node_failure", "time_limit": "time_limit"}
    for name, failure in expected.items():
        run = f"{name}-{site.jobs[name]}"
        wait(lambda run=run: site.page(run)["state"] in ("crashed", "stopped"), 45.0, lambda: str(site.jobs))  # type: ignore[misc]
        page = site.page(run)
        assert page["failure"].startswith(f"{failure}: Slurm: job {site.jobs[name]} is"), page["failure"]
        late = [item for item in page["history"] if item["incident"] == "hang"]
        assert all(item["severity"] == "warning" for item in late)
