"""`notify --test NAME`: one message, the receiver's answer, and the exit code."""

from pathlib import Path

import pytest

from tests.commands import command
from tests.monitor.notifiers.receiver import Receiver


@pytest.fixture
def config(receiver: Receiver, tmp_path: Path) -> Path:
    """A notifier of each kind."""
    path, base = tmp_path / "config.yaml", receiver.url.removesuffix("/hook")
    path.write_text(
        f"notifiers:\n"
        f"  - {{type: webhook, name: on-call, url: '{receiver.url}', minimum_severity: critical}}\n"
        f"  - {{type: alertmanager, name: am, urls: ['{base}/a/', '{base}/b'], cluster: c, incidents: [crash]}}\n"
    )
    return path


def test_an_accepted_message(receiver: Receiver, config: Path) -> None:
    """It says what it is, and has the severity that the notifier wants."""
    done = command("notify", "--config", config, "--test", "on-call")
    assert done.output == "on-call: answered 200 OK\n"
    ((path, _, body),) = receiver.received
    assert (path, body["severity"], body["run"]) == ("/hook", "critical", "test")
    assert body["summary"] == "a test of the notifier on-call: nothing is wrong"


def test_each_alertmanager_is_asked(receiver: Receiver, config: Path) -> None:
    """The alert ends by itself."""
    done = command("notify", "--config", config, "--test", "am")
    assert done.output.count("answered 200 OK") == 2
    assert [path for path, _, _ in receiver.received] == ["/a/api/v2/alerts", "/b/api/v2/alerts"]
    (alert,) = receiver.bodies[0]
    assert (alert["labels"]["incident"], alert["labels"]["severity"]) == ("crash", "warning")
    assert alert["endsAt"] > alert["startsAt"]


def test_an_unknown_name(config: Path) -> None:
    """It is wrong usage. The names are said."""
    said = "no notifier is called chat; configured: on-call, am"
    assert said in command("notify", "--config", config, "--test", "chat", code=2).output
