"""A training that hangs, a daemon, Prometheus, its rules, Alertmanager, a receiver: in the time set."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.conftest import (
    DEPLOY,
    Launch,
    Receiver,
    StartAlertmanager,
    StartPrometheus,
    hastened,
)
from tests.e2e.conftest import RunningDaemon, Start
from tests.e2e.test_daemon import Writer
from tests.lines import line
from tests.programs import Prometheus, free_port, slack, wait

pytestmark = [pytest.mark.e2e, pytest.mark.prometheus]

SCRAPE = EVALUATION = GROUP_WAIT = GROUP_INTERVAL = FOR = 1.0
SLACK = 5.0
"""Seconds for what no setting names: two cores that other tests use as well."""
HANG = ("--set", "detectors.hang.minimum=2s")


def scraping(tmp_path: Path, daemon: str, alertmanager: str, **waits: str) -> dict[str, Any]:
    """The shipped prometheus.yml, pointed at the test's daemon and hastened; `waits`: more alerts' `for`."""
    config: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": f"{SCRAPE:g}s", "evaluation_interval": f"{EVALUATION:g}s"}
    (tmp_path / "rules").mkdir()
    waits = {"MegatronHangDeadlinePassedWhileDown": f"{FOR:g}s", "MegatronMonitorDown": f"{FOR:g}s"} | waits
    config["rule_files"] = hastened(tmp_path / "rules", **waits)
    config["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = [alertmanager]
    config["scrape_configs"] = [job for job in config["scrape_configs"] if job["job_name"] == "megatron-monitor"]
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [daemon]
    return config


def received(receiver: Receiver, name: str, status: str, within: float) -> dict[str, Any]:
    """The alert, once the webhook has it."""
    wait(lambda: bool(receiver.alerts(name, status)), within, f"{name} {status}")
    return receiver.alerts(name, status)[-1]


def watched(prometheus: Prometheus, daemon: RunningDaemon, training: Writer) -> None:
    """Wait until the run is judged by its own pace, and Prometheus holds its deadline."""
    daemon.wait(lambda: training.number >= 12 and (daemon.metric("megatron_iteration") or 0) >= 12)
    held = "run:megatron_hang_deadline_timestamp_seconds:held"
    wait(lambda: bool(prometheus.instant(held)), 20.0, "the recorded deadline")


def test_a_hang_reaches_a_person_and_so_does_its_end(
    start: Start, start_prometheus: StartPrometheus, start_alertmanager: StartAlertmanager, receiver: Receiver,
    training: Writer, tmp_path: Path,
) -> None:  # fmt: skip
    """Firing within scrape + evaluation + group_wait of the daemon's own word, resolved likewise."""
    alertmanager = start_alertmanager(group_wait=f"{GROUP_WAIT:g}s", group_interval=f"{GROUP_INTERVAL:g}s")
    daemon = start(*HANG, str(training.path))
    prometheus = start_prometheus(scraping(tmp_path, daemon.address, alertmanager))
    watched(prometheus, daemon, training)
    assert not prometheus.firing()
    training.stop()
    daemon.wait(lambda: daemon.metric("megatron_incident", incident="hang", severity="critical") == 1.0)
    alert = received(receiver, "MegatronHang", "firing", SCRAPE + EVALUATION + GROUP_WAIT + SLACK)
    assert alert["labels"] == {
        "alertname": "MegatronHang", "cluster": "cluster-1", "incident": "hang", "run": "train", "severity": "critical",
    }  # fmt: skip
    assert re.fullmatch(r"train hangs since \d\d:\d\d UTC", alert["annotations"]["summary"])
    assert " Phase training. Do: " in alert["annotations"]["description"]
    assert " Last line: iteration " in alert["annotations"]["description"]
    assert f"Last iteration: {training.number}." in alert["annotations"]["description"]
    assert alert["annotations"]["dashboard_url"].endswith("/d/megatron-run?var-cluster=cluster-1&var-run=train")
    assert "MegatronHangDeadlinePassedWhileDown" not in prometheus.firing()

    going_on = Writer(training.path)
    going_on.number = training.number
    ended = received(receiver, "MegatronIncidentEnded", "firing", 2 * SCRAPE + EVALUATION + GROUP_INTERVAL + SLACK)
    assert re.fullmatch(r"train: hang ended at \d\d:\d\d UTC after [\d.]+s", ended["annotations"]["summary"])
    going_on.stop()


def test_the_deadline_is_told_when_the_daemon_is_dead(
    start: Start, start_prometheus: StartPrometheus, start_alertmanager: StartAlertmanager, receiver: Receiver,
    training: Writer, tmp_path: Path,
) -> None:  # fmt: skip
    """Kill -9, then the training stops: its last deadline raises the alert. When it is back, the alert resolves."""
    alertmanager = start_alertmanager(group_wait=f"{GROUP_WAIT:g}s", group_interval=f"{GROUP_INTERVAL:g}s")
    listen = f"127.0.0.1:{free_port()}"
    daemon = start("--set", "detectors.hang.minimum=6s", str(training.path), listen=listen)
    prometheus = start_prometheus(scraping(tmp_path, daemon.address, alertmanager))
    watched(prometheus, daemon, training)
    daemon.kill()
    training.stop()
    deadline = prometheus.value("run:megatron_hang_deadline_timestamp_seconds:held")
    assert deadline is not None
    left = deadline - time.time()  # noqa: TID251
    assert 0 < left <= slack(6.5)
    down = received(receiver, "MegatronMonitorDown", "firing", SCRAPE + EVALUATION + FOR + GROUP_WAIT + SLACK)
    assert down["labels"]["instance"] == listen
    early = receiver.alerts("MegatronHangDeadlinePassedWhileDown", "firing")
    assert not early or time.time() > deadline  # noqa: TID251
    until = deadline - time.time() + EVALUATION + FOR + GROUP_WAIT + GROUP_INTERVAL + SLACK  # noqa: TID251
    alert = received(receiver, "MegatronHangDeadlinePassedWhileDown", "firing", until)
    assert alert["labels"]["run"] == "train"
    assert time.time() > deadline  # noqa: TID251

    with training.path.open("a") as stream:
        stream.write(line(training.number + 1))
    going_on = Writer(training.path)
    going_on.number = training.number + 1
    start("--set", "detectors.hang.minimum=6s", str(training.path), listen=listen)
    within = SCRAPE + EVALUATION + GROUP_INTERVAL + SLACK
    received(receiver, "MegatronRunWatchedAgain", "firing", within)
    wait(lambda: "MegatronMonitorDown" not in prometheus.firing(), within, "the daemon is up")
    assert not receiver.alerts("MegatronHang", "firing")
    going_on.stop()


def test_a_run_that_ended_leaves_no_deadline(
    start: Start, start_prometheus: StartPrometheus, start_alertmanager: StartAlertmanager, receiver: Receiver,
    training: Writer, tmp_path: Path,
) -> None:  # fmt: skip
    """It finishes, then its daemon ends with it: when the deadline would have passed, there is no alert."""
    alertmanager = start_alertmanager(group_wait=f"{GROUP_WAIT:g}s", group_interval=f"{GROUP_INTERVAL:g}s")
    daemon = start("--set", "detectors.hang.minimum=4s", str(training.path))
    prometheus = start_prometheus(scraping(tmp_path, daemon.address, alertmanager))
    watched(prometheus, daemon, training)
    training.stop()
    with training.path.open("a") as stream:
        stream.write("[after training is done] datetime: 2026-01-01 00:00:00 \n")
        stream.write(f"[exiting program at iteration {training.number}] datetime: 2026-01-01 00:00:00 \n")
    daemon.wait(lambda: daemon.metric("megatron_run_state", state="finished") == 1.0)
    held = "run:megatron_hang_deadline_timestamp_seconds:held"
    wait(lambda: not prometheus.instant(held), SCRAPE + EVALUATION + SLACK, "the deadline is dropped")
    assert daemon.terminate() == 0
    received(receiver, "MegatronMonitorDown", "firing", SCRAPE + EVALUATION + FOR + GROUP_WAIT + SLACK)
    wait_for_deadline = threading.Event()
    wait_for_deadline.wait(4.0 + EVALUATION + FOR + GROUP_WAIT)
    assert prometheus.firing() == {"MegatronMonitorDown"}
    assert {alert["labels"]["alertname"] for body in receiver.bodies for alert in body["alerts"]} == {
        "MegatronMonitorDown"
    }


@pytest.mark.outputs
def test_the_deadline_in_a_dead_push_is_told(
    start: Start, launch: Launch, start_prometheus: StartPrometheus, start_alertmanager: StartAlertmanager,
    receiver: Receiver, training: Writer, tmp_path: Path,
) -> None:  # fmt: skip
    """A Pushgateway keeps what a killed daemon pushed last: its deadline passes there, and that is told."""
    gateway = launch("prometheus-pushgateway", listen="--web.listen-address", ready="/-/ready")
    alertmanager = start_alertmanager(group_wait=f"{GROUP_WAIT:g}s", group_interval=f"{GROUP_INTERVAL:g}s")
    pushed = f"outputs.0={{type: pushgateway, name: p, url: 'http://{gateway}', interval: 300ms}}"
    daemon = start("--set", pushed, "--set", "detectors.hang.minimum=4s", str(training.path))
    config = scraping(tmp_path, gateway, alertmanager)
    config["scrape_configs"] = [
        {"job_name": "gateway", "honor_labels": True, "static_configs": [{"targets": [gateway]}]}
    ]
    for path in map(Path, config["rule_files"]):  # the grace for a daemon that is about to report it, and `for`
        text = path.read_text().replace("timestamp_seconds:held > 30)", "timestamp_seconds:held > 1)")
        path.write_text(text.replace("for: 1m", "for: 1s"))
    prometheus = start_prometheus(config)
    watched(prometheus, daemon, training)
    daemon.kill()
    training.stop()
    within = 4.0 + 1.0 + SCRAPE + EVALUATION + FOR + GROUP_WAIT + SLACK
    alert = received(receiver, "MegatronHangDeadlinePassed", "firing", within)
    assert alert["labels"] == {"alertname": "MegatronHangDeadlinePassed", "run": "train", "severity": "critical"}
    assert not receiver.alerts("MegatronHangDeadlinePassedWhileDown", "firing")


def test_a_simulated_crash_is_told_and_its_silence_is_not(
    start: Start, start_prometheus: StartPrometheus, start_alertmanager: StartAlertmanager, receiver: Receiver,
    tmp_path: Path,
) -> None:  # fmt: skip
    """`simulate` plays a run that dies of a full GPU memory: one alert of the crash, none of the hang that follows."""
    alertmanager = start_alertmanager(group_wait=f"{GROUP_WAIT:g}s", group_interval=f"{GROUP_INTERVAL:g}s")
    log = tmp_path / "tr11.log"
    log.touch()
    daemon = start(*HANG, str(log))
    prometheus = start_prometheus(scraping(tmp_path, daemon.address, alertmanager))
    command = [
        sys.executable, "-m", "monitor", "simulate", "--dialect", "megatron-lm", "--iterations", "100",
        "--seconds-per-iteration", "2", "--fault", "crash_oom@40", "--speed", "20", "-o", str(log),
    ]  # fmt: skip
    simulation = subprocess.Popen(command)
    try:
        daemon.wait(lambda: daemon.metric("megatron_incident", incident="crash") == 1.0, timeout=40.0)
        alert = received(receiver, "MegatronCrash", "firing", SCRAPE + EVALUATION + GROUP_WAIT + SLACK)
    finally:
        simulation.kill()
        simulation.wait(timeout=5)
    assert alert["labels"]["run"] == "tr11"
    assert daemon.metric("megatron_failures_total", failure="cuda_oom") == 1.0
    threading.Event().wait(2.0 + SCRAPE + EVALUATION + GROUP_WAIT)  # the budget of a hang passes
    alerted = {alert["labels"]["alertname"] for body in receiver.bodies for alert in body["alerts"]}
    assert not {name for name in alerted if "Hang" in name}
    assert "MegatronHang" not in prometheus.firing()
