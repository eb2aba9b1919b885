"""How long a page takes: the real monitor and Alertmanager with the shipped timings, and a stand-in for the pager."""

import json
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.deploy.stage import Training, alertmanager
from tests.deploy.test_plays import CRASH
from tests.e2e.conftest import RunningDaemon, daemons
from tests.monitor.notifiers.receiver import Receiver
from tests.programs import serving, wait

LONGEST = 25.0
"""Seconds from a crash, or from the end of a hang's time-out, until the pager is called (docs/alerts.md)."""


def clock() -> float:
    """Unix seconds."""
    return datetime.now(UTC).timestamp()  # noqa: TID251 - a delay between real programs is measured


def watched(stack: ExitStack, directory: Path, address: str) -> tuple[Training, RunningDaemon]:
    """A training whose pace its monitor knows; the monitor posts to the Alertmanager under a cluster of its own."""
    directory.mkdir()
    training = Training(directory / f"{directory.name}.log")
    stack.callback(training.close)
    start = stack.enter_context(daemons(directory))
    notifiers = [{"type": "alertmanager", "name": "am", "urls": [f"http://{address}"], "cluster": directory.name}]
    settings = ("--set", f"notifiers={json.dumps(notifiers)}", "--set", "detectors.hang.minimum=3s")
    daemon = start(*settings, str(training.path))
    daemon.wait(lambda: (daemon.metric("megatron_iteration") or 0) >= 30, 30.0)
    return training, daemon


@pytest.mark.e2e
@pytest.mark.prometheus
@pytest.mark.nightly
def test_the_delay_to_the_phone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A crash pages within 25 s of its line, a hang within 25 s of the end of its time-out."""
    with ExitStack() as stack:
        receiver = stack.enter_context(serving(Receiver()))
        address = stack.enter_context(alertmanager(tmp_path, receiver, hastened=False))
        crashing, _ = watched(stack, tmp_path / "crashing", address)
        hanging, monitor = watched(stack, tmp_path / "hanging", address)

        def paged(run: str) -> bool:
            return any(path == "/pager" and run in body["payload"]["summary"] for path, _, body in receiver.received)

        crashing.ends(CRASH)
        crashed_at = clock()
        wait(lambda: paged("crashing"), 60.0, "the page of the crash")
        of_the_crash = clock() - crashed_at
        hanging.hangs()
        wait(lambda: (monitor.metric("megatron_incident", incident="hang") or 0) == 1, 60.0, "the hang")
        deadline = monitor.metric("megatron_hang_deadline_timestamp_seconds") or 0.0
        wait(lambda: paged("hanging"), 60.0, "the page of the hang")
        of_the_hang = clock() - deadline
    with capsys.disabled():
        print(f"\nto the pager: {of_the_crash:.1f} s after a crash, {of_the_hang:.1f} s after a time-out")  # noqa: T201
    assert of_the_crash <= LONGEST
    assert 0.0 < of_the_hang <= LONGEST
