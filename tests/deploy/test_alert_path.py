"""A training that hangs, a daemon, Prometheus, its rules, Alertmanager, a receiver: in the time set."""

import re
import time
from pathlib import Path

import pytest

from tests.deploy.conftest import HELD, INTERVAL, USUAL, Chain, Launch, goes_on, watched
from tests.e2e.test_daemon import Writer
from tests.lines import line
from tests.programs import free_port, slack, wait

pytestmark = [pytest.mark.e2e, pytest.mark.prometheus]

HANG = ("--set", "detectors.hang.minimum=2s")
PAGE = "MegatronHangDeadlinePassedWhileDown"


def test_a_hang_reaches_a_person_and_so_does_its_end(chain: Chain, training: Writer) -> None:
    """Firing within scrape + evaluation + group_wait of the daemon's own word, resolved likewise."""
    daemon = chain.start(*HANG, str(training.path))
    prometheus = chain.prometheus(daemon.address)
    watched(prometheus, daemon, training)
    assert not prometheus.firing()
    training.stop()
    daemon.wait(lambda: daemon.metric("megatron_incident", incident="hang", severity="critical") == 1.0)
    alert = chain.told("MegatronHang")
    assert alert["labels"] == {
        "alertname": "MegatronHang", "cluster": "cluster-1", "incident": "hang", "run": "train", "severity": "critical",
    }  # fmt: skip
    assert re.fullmatch(r"train hangs since \d\d:\d\d UTC: training", alert["annotations"]["summary"])
    for words in (" Phase training.", " Do: ", " Last line: iteration ", f"Last iteration: {training.number}."):
        assert words in alert["annotations"]["description"]
    assert alert["annotations"]["dashboard_url"].endswith("/d/megatron-run?var-cluster=cluster-1&var-run=train")
    assert PAGE not in prometheus.firing()

    going_on = goes_on(training)
    ended = chain.told("MegatronIncidentEnded", more=INTERVAL)
    assert re.fullmatch(r"train: hang ended at \d\d:\d\d UTC after [\d.]+s", ended["annotations"]["summary"])
    going_on.stop()


def test_the_deadline_is_told_when_the_daemon_is_dead(chain: Chain, training: Writer) -> None:
    """Kill -9, then the training stops: its last deadline raises the alert. When it is back, the alert resolves."""
    listen = f"127.0.0.1:{free_port()}"
    daemon = chain.start("--set", "detectors.hang.minimum=6s", str(training.path), listen=listen)
    prometheus = chain.prometheus(daemon.address)
    watched(prometheus, daemon, training)
    daemon.kill()
    training.stop()
    deadline = prometheus.value(HELD)
    assert deadline is not None
    left = deadline - time.time()  # noqa: TID251
    assert 0 < left <= slack(6.5)
    assert chain.told("MegatronMonitorDown", more=INTERVAL)["labels"]["instance"] == listen
    assert not chain.receiver.fired(PAGE) or time.time() > deadline  # noqa: TID251
    until = deadline - time.time() + INTERVAL  # noqa: TID251
    assert chain.told(PAGE, more=until)["labels"]["run"] == "train"
    assert time.time() > deadline  # noqa: TID251

    with training.path.open("a") as stream:
        stream.write(line(training.number + 1))
    going_on = goes_on(training, lost=1)
    chain.start("--set", "detectors.hang.minimum=6s", str(training.path), listen=listen)
    chain.told("MegatronRunWatchedAgain")
    wait(lambda: "MegatronMonitorDown" not in prometheus.firing(), USUAL, "the daemon is up")
    assert not chain.receiver.fired("MegatronHang")
    going_on.stop()


@pytest.mark.outputs
def test_the_deadline_in_a_dead_push_is_told(chain: Chain, launch: Launch, training: Writer) -> None:
    """A Pushgateway keeps what a killed daemon pushed last: its deadline passes there, and that is told."""
    gateway = launch("prometheus-pushgateway", listen="--web.listen-address", ready="/-/ready")
    pushed = f"outputs=[{{type: pushgateway, name: p, url: 'http://{gateway}', interval: 300ms}}]"
    daemon = chain.start("--set", pushed, "--set", "detectors.hang.minimum=4s", str(training.path))
    config = chain.config(gateway)
    config["scrape_configs"] = [
        {"job_name": "gateway", "honor_labels": True, "static_configs": [{"targets": [gateway]}]}
    ]
    for path in map(Path, config["rule_files"]):  # the grace for a daemon that is about to report it, and `for`
        text = path.read_text().replace("timestamp_seconds:held > 30)", "timestamp_seconds:held > 1)")
        path.write_text(text.replace("for: 1m", "for: 1s"))
    watched(chain.start_prometheus(config), daemon, training)
    daemon.kill()
    training.stop()
    alert = chain.told("MegatronHangDeadlinePassed", more=4.0 + 2 * INTERVAL)
    assert alert["labels"] == {"alertname": "MegatronHangDeadlinePassed", "run": "train", "severity": "critical"}
    assert not chain.receiver.fired(PAGE)
