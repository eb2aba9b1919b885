"""The daemon stopped, dead, Prometheus away, both: what people are told, counted at the receiver."""

import re
import signal
import threading
from pathlib import Path

import pytest
import yaml

from tests.deploy.conftest import DEPLOY, INTERVAL, USUAL, Chain, Receiver, goes_on, watched
from tests.deploy.test_alert_path import HANG, PAGE
from tests.e2e.test_daemon import Writer
from tests.programs import free_port, prometheus, slack, wait

pytestmark = [pytest.mark.e2e, pytest.mark.prometheus]

LOOKBACK = 3.0
"""In place of Prometheus's five minutes: after a pause of twice that it is as if it had been away for ten."""
HASTE = (f"--query.lookback-delta={LOOKBACK:g}s", "--rules.alert.resend-delay=4s")
"""What is not repeated for four times the delay is resolved by Alertmanager: 16 s, where Prometheus is away for 6 s and
starts. With 1 s the hang is told twice. What is shipped holds for three hours.
"""


WAITS = {"MegatronRunsUnwatched": f"{INTERVAL:g}s", "MegatronMonitorDown": f"{3 * INTERVAL:g}s"}
ENDED = {
    "cancelled-shared": "logs", "requeued-shared": "logs", "cancelled-own": "cancelled", "requeued-killed": "killed",
}  # fmt: skip
"""Run -> the folder of its daemon, of jobs that Slurm ends."""
_SLURM = "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-01-01T10:00:00{} ***\n"
SLURM = {"cancelled": _SLURM.format(""), "requeued": _SLURM.format(" DUE TO JOB REQUEUE")}
DEAD = ("MegatronRunsUnwatched", "MegatronMonitorDown")
"""What is told of a daemon that is gone: warnings, to the chat."""


def messages(receiver: Receiver) -> list[tuple[str, str, int]]:
    """Each message that came: its alert's name, its status, how many alerts it holds."""
    return [(body["alerts"][0]["labels"]["alertname"], body["status"], len(body["alerts"])) for body in receiver.bodies]


def test_an_orderly_stop_pages_nobody(chain: Chain, tmp_path: Path) -> None:
    """50 healthy runs, their daemon stopped by SIGTERM: one message, of 50 runs. A job's own daemon: none. Killed: one
    page for all. Before that jobs are cancelled and requeued, whose deadlines pass: nothing is said of a hang, whether
    the job's own daemon ends with it, a shared one goes on, or one is killed that had read the end.
    """
    logs = [tmp_path / "logs" / f"run-{number}.log" for number in range(50)]
    others = [tmp_path / "own" / "job.log", tmp_path / "killed" / "a.log", tmp_path / "killed" / "b.log"]
    for path in (*logs, *others):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    trainings = [Writer(path) for path in (*logs, *others)]
    ended = {name: tmp_path / folder / f"{name}.log" for name, folder in ENDED.items()}
    for path in ended.values():
        path.parent.mkdir(exist_ok=True)
        path.touch()
    jobs = [Writer(path) for path in ended.values()]
    shared = chain.start(*HANG, str(tmp_path / "logs"))
    own = chain.start(*HANG, "--set", "ends_with_job=true", str(others[0]))
    killed = chain.start(*HANG, str(tmp_path / "killed"))
    cancelled = chain.start(*HANG, "--set", "ends_with_job=true", str(ended["cancelled-own"]))
    daemons = [daemon.address for daemon in (shared, own, killed, cancelled)]
    server = chain.start_prometheus(chain.config(*daemons, **WAITS))
    alive = "count(run:megatron_hang_deadline_timestamp_seconds:held)"
    wait(lambda: server.value(alive) == 53 + len(ended), 30.0, lambda: f"{server.value(alive)} deadlines")

    for job in jobs:
        job.stop()
    for name, path in ended.items():
        with path.open("a") as stream:
            stream.write(SLURM[name.partition("-")[0]])
    cancelled.process.send_signal(signal.SIGTERM)  # as Slurm ends all processes of the job
    assert cancelled.process.wait(timeout=slack(10)) == 0
    wait(lambda: server.value(alive) == 53, 10.0, lambda: f"{server.value(alive)} deadlines")
    ends = [shared.process, own.process]
    for process in ends:
        process.send_signal(signal.SIGTERM)
    assert [process.wait(timeout=slack(10)) for process in ends] == [0, 0]
    alert = chain.told("MegatronRunsUnwatched", more=INTERVAL)
    assert re.fullmatch(
        rf"50 runs are unwatched since \d\d:\d\d UTC: monitor {shared.address} is gone", alert["annotations"]["summary"]
    )
    assert alert["annotations"]["description"].startswith("Their monitor was stopped in order.")
    for training in trainings:  # every deadline passes now
        training.stop()
    killed.kill()
    within = USUAL + 2.0 + INTERVAL
    wait(lambda: (PAGE, "firing", 2) in messages(chain.receiver), within, lambda: str(messages(chain.receiver)))
    threading.Event().wait(2.0)
    told = messages(chain.receiver)
    # one of the shared daemon, one of the killed one; none of the job's own
    assert told.count(("MegatronRunsUnwatched", "firing", 1)) == 2
    assert {row[0] for row in told} <= {PAGE, *DEAD}
    assert not [row for row in told if row[1] == "resolved"]
    assert {run["labels"]["run"] for run in chain.receiver.fired(PAGE)} == {"a", "b"}
    told_of = {alert["labels"].get("run") for body in chain.receiver.bodies for alert in body["alerts"]}
    assert not told_of & set(ended)


@pytest.mark.parametrize("path", ["container/compose.yaml", "systemd/prometheus.default"])
def test_what_was_told_holds_for_two_hours_without_prometheus(path: str) -> None:
    """Three times the delay at least: an alert may have been repeated last a delay before Prometheus went away."""
    (delay,) = re.findall(r"--rules\.alert\.resend-delay=(\d+)m", (DEPLOY / path).read_text())
    assert 3 * int(delay) > 2 * 60


def test_nothing_is_resolved_because_nobody_looks(chain: Chain, training: Writer, tmp_path: Path) -> None:
    """A hang is told. Its daemon dies, Prometheus is away for long and comes back, then the daemon, then the training:
    the hang stands until the daemon says otherwise, it is told once, and so is how it ended.
    """
    listen = f"127.0.0.1:{free_port()}"
    daemon = chain.start(*HANG, str(training.path), listen=listen)
    written = yaml.safe_dump(chain.config(daemon.address, **WAITS), sort_keys=False)
    with prometheus(tmp_path, written, *HASTE) as server:
        watched(server, daemon, training)
        training.stop()
        chain.told("MegatronHang", more=3.0)
        wait(lambda: bool(server.instant("run:megatron_incident:remembered == 1")), 10.0, "the incident in memory")
        daemon.kill()
    threading.Event().wait(2 * LOOKBACK)  # Prometheus is away
    with prometheus(tmp_path, written, *HASTE) as server:
        wait(lambda: "MegatronHang" in server.firing(), USUAL + INTERVAL, "the hang, remembered")
        going_on = goes_on(training)
        chain.start(*HANG, str(training.path), listen=listen)
        ended = chain.told("MegatronIncidentEnded", more=INTERVAL)
        going_on.stop()
    assert re.fullmatch(r"train: hang ended at \d\d:\d\d UTC after [\d.]+s", ended["annotations"]["summary"])
    told = messages(chain.receiver)
    assert {row[0] for row in told} <= {"MegatronHang", "MegatronIncidentEnded", *DEAD}
    assert max(map(told.count, told)) == 1
    assert [row[1] for row in told if row[1] != "firing"] == []
