"""Real Prometheus, Alertmanager and their like on loopback, made from the files in deploy/, ended by their fixture."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import loaded
from tests.e2e.conftest import RunningDaemon, Start, start  # noqa: F401 - the fixture that starts the daemon
from tests.e2e.test_daemon import Writer, training  # noqa: F401 - the fixture that writes a log
from tests.monitor.notifiers import receiver as webhook
from tests.programs import Prometheus, prometheus, running, serving, wait

INTERVAL = 1.0
"""Seconds of a scrape, an evaluation, a group's wait and a short `for`."""
USUAL = 3 * INTERVAL + 5.0
"""From a metric to a person; five for what no setting names: two cores that other tests use as well."""
HELD = "run:megatron_hang_deadline_timestamp_seconds:held"
DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "rules"


Launch = Callable[..., str]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Start a program with `launch(*command, listen=OPTION, ready=PATH)`; gives its address."""
    with ExitStack() as stack:
        yield lambda *command, **options: stack.enter_context(running(tmp_path, *command, **options))


def hastened(directory: Path, **waits: str) -> list[str]:
    """Copies of the rule files with shorter `for`, so that a test need not wait; paths of the copies."""
    copies = []
    for path in sorted(RULES.glob("*.yml")):
        text = path.read_text()
        for name, value in waits.items():
            text, found = re.subn(rf"(- alert: {name}\n(?:(?!    - ).*\n)*?      for: )\S+", rf"\g<1>{value}", text)
            assert found or f"alert: {name}\n" not in text, name
        copy = directory / path.name
        copy.write_text(text.replace("    interval: 2m\n", "    interval: 1s\n"))
        copies.append(str(copy))
    return copies


StartPrometheus = Callable[..., Prometheus]


@pytest.fixture
def start_prometheus(tmp_path: Path) -> Iterator[StartPrometheus]:
    """Start Prometheus on a configuration, with options of its own if need be."""
    with ExitStack() as stack:
        yield lambda config, *options: stack.enter_context(
            prometheus(tmp_path, yaml.safe_dump(config, sort_keys=False), *options)
        )


def with_example(text: str, name: str) -> str:
    """The Alertmanager's configuration with one of its commented examples taken into use."""
    pattern = re.compile(rf"^( *)# example {name}\n((?:\1# .*\n)+?)(?=\1# example|(?!\1#))", re.MULTILINE)
    match = pattern.search(text)
    assert match, f"no example {name}"
    indent = match[1]
    used = re.sub(rf"^{indent}# ", indent, match[2], flags=re.MULTILINE)
    return text[: match.start()] + used + text[match.end() :]


class Receiver(webhook.Receiver):
    """A webhook that keeps what is posted to it."""

    def fired(self, name: str) -> list[dict[str, Any]]:
        """Alerts of a name that came as firing."""
        return [
            alert
            for body in self.bodies
            for alert in body["alerts"]
            if alert["labels"]["alertname"] == name and alert["status"] == "firing"
        ]

    def names(self) -> set[str]:
        """Of all alerts that came."""
        return {alert["labels"]["alertname"] for body in self.bodies for alert in body["alerts"]}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A webhook receiver."""
    with serving(Receiver()) as server:
        yield server


@pytest.fixture
def alertmanager(launch: Launch, tmp_path: Path, receiver: Receiver) -> str:
    """The address of an Alertmanager on the shipped file, hastened, its webhook example pointed at `receiver`."""
    config = loaded(with_example((DEPLOY / "alertmanager" / "alertmanager.yml").read_text(), "webhook"))
    config["route"].update(group_wait=f"{INTERVAL:g}s", group_interval=f"{INTERVAL:g}s")
    (webhook,) = (one["webhook_configs"] for one in config["receivers"] if "webhook_configs" in one)
    webhook[0]["url"] = receiver.url
    file = tmp_path / "alertmanager.yml"
    file.write_text(yaml.safe_dump(config, sort_keys=False))
    return launch(
        "prometheus-alertmanager", f"--config.file={file}", f"--storage.path={tmp_path / 'alertmanager'}",
        "--cluster.listen-address=", listen="--web.listen-address", ready="/-/ready",
    )  # fmt: skip


@dataclass(frozen=True)
class Chain:
    """Daemons, a Prometheus with the shipped rules, Alertmanager, a person."""

    start: Start
    start_prometheus: StartPrometheus
    alertmanager: str
    receiver: Receiver
    directory: Path

    def config(self, *daemons: str, **waits: str) -> dict[str, Any]:
        """The shipped prometheus.yml, pointed at the daemons and hastened; `waits`: more alerts' `for`."""
        config: dict[str, Any] = loaded((DEPLOY / "prometheus" / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": f"{INTERVAL:g}s", "evaluation_interval": f"{INTERVAL:g}s"}
        (self.directory / "rules").mkdir()
        usual = dict.fromkeys(("MegatronHangDeadlinePassedWhileDown", "MegatronMonitorDown"), f"{INTERVAL:g}s")
        config["rule_files"] = hastened(self.directory / "rules", **usual | waits)
        config["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = [self.alertmanager]
        config["scrape_configs"] = [job for job in config["scrape_configs"] if job["job_name"] == "megatron-monitor"]
        config["scrape_configs"][0]["static_configs"][0]["targets"] = list(daemons)
        return config

    def prometheus(self, *daemons: str) -> Prometheus:
        """On that configuration."""
        return self.start_prometheus(self.config(*daemons))

    def told(self, name: str, more: float = 0.0) -> dict[str, Any]:
        """The alert, once the receiver has it: within a scrape, an evaluation, the group's wait, and seconds `more`."""
        wait(lambda: bool(self.receiver.fired(name)), USUAL + more, name)
        return self.receiver.fired(name)[-1]


@pytest.fixture
def chain(
    start: Start,  # noqa: F811
    start_prometheus: StartPrometheus, alertmanager: str, receiver: Receiver, tmp_path: Path,
) -> Chain:  # fmt: skip
    """Alertmanager runs, the others are started by the test."""
    return Chain(start, start_prometheus, alertmanager, receiver, tmp_path)


def watched(prometheus: Prometheus, daemon: RunningDaemon, training: Writer) -> None:  # noqa: F811
    """Wait until the run is judged by its own pace, and Prometheus holds its deadline."""
    daemon.wait(lambda: training.number >= 12 and (daemon.metric("megatron_iteration") or 0) >= 12)
    wait(lambda: bool(prometheus.instant(HELD)), 20.0, "the recorded deadline")


def goes_on(training: Writer, lost: int = 0) -> Writer:  # noqa: F811
    """The training writes again behind its last line."""
    writer = Writer(training.path)
    writer.number = training.number + lost
    return writer


def environment() -> dict[str, str]:
    """Of a program that must not read the user's own files."""
    return {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "LC_ALL": "C.UTF-8"}
