"""The daemon as a process, and what agents push: lost answers, swapped batches, kill -9, and an agent that dies."""

import json
import urllib.request
from pathlib import Path

import pytest

from megatron_monitor.system.clock import SystemClock
from tests.e2e.conftest import RunningDaemon, Start
from tests.lines import line
from tests.monitor.intake.senders import otlp_push, push_request, snapped
from tests.programs import answers, free_port, slack

pytestmark = pytest.mark.e2e
LABELS = {"namespace": "ml", "training.kubeflow.org/job-name": "gpt", "pod": "gpt-0", "carrier": "node7"}
BUDGET = 2.0


class Agent:
    """Pushes batches of a training's lines, in turn by each protocol; the newest lines are of now."""

    def __init__(self, port: int, batches: int, size: int) -> None:
        self.port, self.clock = port, SystemClock()
        begun = int((self.clock.wall() - 0.01 * batches * size) * 1e9)
        steps = [
            (begun + 10_000_000 * number, line(number, seconds=0.01).rstrip("\n"))
            for number in range(1, batches * size + 1)
        ]
        self.batches = [steps[index * size : (index + 1) * size] for index in range(batches)]

    def post(self, path: str, body: bytes, kind: str) -> None:
        """Until it is taken; HTTPError if not."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", body, {"Content-Type": kind})
        urllib.request.urlopen(request, timeout=slack(10)).close()

    def push(self, number: int) -> None:
        """One batch."""
        entries = self.batches[number]
        if number % 3 == 0:
            values = [[str(at), text] for at, text in entries]
            body = json.dumps({"streams": [{"stream": LABELS, "values": values}]}).encode()
            self.post("/loki/api/v1/push", body, "application/json")
        elif number % 3 == 1:
            self.post("/loki/api/v1/push", snapped(push_request(LABELS, entries)), "application/x-protobuf")
        else:
            body = otlp_push(LABELS, [(at, 0, text, {}) for at, text in entries], as_json=False)
            self.post("/v1/logs", body, "application/x-protobuf")

    def beat(self) -> None:
        """A heartbeat."""
        values = [[str(int(self.clock.wall() * 1e9)), "alive"]]
        body = json.dumps(
            {"streams": [{"stream": {"carrier": "node7", "heartbeat": "test"}, "values": values}]}
        ).encode()
        self.post("/loki/api/v1/push", body, "application/json")


def test_each_line_once_and_a_hang_under_a_living_agent(start: Start, tmp_path: Path) -> None:
    """Answers are lost, batches swapped, the daemon is killed: 180 of 180 iterations, no restart. The training stops
    while its agent lives: that is told. The agent stops, too: nothing more is.
    """
    port = free_port()
    settings = [f"receiver.listen=127.0.0.1:{port}", f"state_dir={tmp_path / 'state'}"]
    settings += [f"detectors.hang.minimum={BUDGET}s", "shutdown_grace_period=0s"]

    def begin() -> RunningDaemon:
        daemon = start(*(part for setting in settings for part in ("--set", setting)))
        daemon.wait(lambda: answers(f"http://127.0.0.1:{port}/ready"))
        return daemon

    daemon, agent = begin(), Agent(port, 18, 10)
    for numbers in ((0, 1, 1), (3, 2, 4), (5, 4, 5), (7, 6, 8)):
        for number in numbers:
            agent.push(number)
    daemon.kill()
    daemon = begin()
    for numbers in ((7, 8, 6), (10, 9, 11), (11, 12), (14, 13, 15), (16, 17)):
        for number in numbers:
            agent.push(number)

    def told(incident: str) -> bool:
        agent.beat()
        return daemon.metric("megatron_incident", incident=incident, severity="critical") == 1.0

    daemon.wait(lambda: told("hang") or daemon.metric("megatron_iterations_total", run="ml/gpt") == 180.0)
    assert daemon.metric("megatron_iterations_total", run="ml/gpt") == 180.0
    assert daemon.metric("megatron_restarts_total", run="ml/gpt") == 0.0
    assert daemon.metric("megatron_monitor_late_lines_total", run="ml/gpt") in (None, 0.0)
    daemon.wait(lambda: told("hang"), BUDGET + 5.0)
    daemon.wait(lambda: daemon.metric("megatron_monitor_agents", state="stale") == 1.0)
    assert daemon.metric("megatron_incident", incident="hang", severity="critical") == 1.0
