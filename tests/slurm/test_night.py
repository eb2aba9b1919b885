"""One night on a real Slurm, from the job's log to the phone: the pages are the events, and nothing else."""

import json
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.deploy.stage import Stage, Way, alertmanager
from tests.programs import wait
from tests.slurm import test_accounting
from tests.slurm.test_accounting import Site, begun, site  # noqa: F401 - the fixture that starts the cluster

pytestmark = [pytest.mark.slurm, pytest.mark.prometheus, pytest.mark.xdist_group("slurm")]
NODE = "node-03"
HOLD = "for: 30s"
"""A remediation waits so long: Alertmanager sends no page of a hang that has ended within 15 s."""


def test_a_night(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """A hang, a requeue by a remediation, both again, a dead node, a restart of the monitor: three events are three
    pages, each resolved, by the shipped Alertmanager configuration and its timings.
    """
    with ExitStack() as stack:
        stage = Stage(tmp_path, stack, Way())
        address = stack.enter_context(alertmanager(tmp_path, stage.receiver, hastened=False))
        notifier = {"type": "alertmanager", "name": "am", "urls": [f"http://{address}"], "cluster": "night"}
        notifiers = json.dumps([notifier]).replace("{", "{{").replace("}", "}}")
        config = test_accounting.CONFIG.replace("for: 1s", HOLD)
        monkeypatch.setattr(test_accounting, "CONFIG", f"{config}notifiers: {notifiers}\n")
        monitor, job = begun(site, "night", "night-again", f"--nodelist={NODE}")
        run, events = f"night-again-{job}", list[str]()

        def pages(*incidents: str) -> None:
            events.extend(incidents)
            facts = sorted(f"{sign}{run}/{incident}/critical" for incident in events for sign in "+-")
            phone = ["ring", "closed"] * len(events)
            wait(
                lambda: (stage.phone("night"), sorted(stage.chat("night"))) == (phone, facts),
                150.0, lambda: f"{stage.phone('night')} {stage.chat('night')}, not {facts}",
            )  # fmt: skip

        for restarts in ("1", "2"):
            site.stop("night")
            wait(lambda: site.slurm.show(job)["Restarts"] == restarts, 60.0, "no requeue")  # noqa: B023
            (site.directory / "stop-night").unlink()
            pages("hang")
            # Slurm starts a requeued job after two minutes, so what comes next is another event.
            wait(lambda: site.run(monitor, run)["state"] == "training", 180.0, "no restart")
            time.sleep(5.0)
        site.slurm.run("scontrol", "update", f"NodeName={NODE}", "State=DOWN", "Reason=test")
        wait(lambda: stage.phone("night")[-1] == "ring", 60.0, lambda: str(site.run(monitor, run)))
        (page,) = [
            body["payload"] for path, _, body in stage.receiver.received
            if path == "/pager" and body["event_action"] == "trigger" and "crash" in body["payload"]["summary"]
        ]  # fmt: skip
        assert "node_failure" in page["summary"]
        assert NODE in page["custom_details"]["text"]
        pages("crash")
        for daemon in site.daemons:
            daemon.terminate()
            daemon.wait(timeout=30)
        site.daemon("night")
        time.sleep(90.0)  # a group is notified again after a minute if anything has changed
        pages()
