"""The receiver and the observer as processes: lost answers, swapped batches, kill -9 of both, an agent that dies."""

import json
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from megatron_monitor.system.clock import SystemClock
from tests.e2e.conftest import Start
from tests.lines import line
from tests.monitor.receiver.senders import otlp_push, push_request, snapped
from tests.programs import MONITOR, TETHERED, answers, free_port, slack, wait

pytestmark = pytest.mark.e2e
LABELS = {"namespace": "ml", "training.kubeflow.org/job-name": "gpt", "pod": "gpt-0", "agent": "node7"}
BUDGET = 5.0  # seconds: longer than lines wait for earlier ones and a daemon takes to start under load
LONG = 12.0  # seconds: an agent, or the receiver, is stale before it


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
        body = json.dumps({"streams": [{"stream": {"agent": "node7", "heartbeat": "test"}, "values": values}]}).encode()
        self.post("/loki/api/v1/push", body, "application/json")


def settings(directory: Path, port: int, budget: float = BUDGET) -> list[str]:
    """Those of both processes."""
    found = [f"receiver.listen=127.0.0.1:{port}", f"receiver.directory={directory / 'spool'}"]
    found += [f"state_dir={directory / 'state'}", f"detectors.hang.minimum={budget}s", "shutdown_grace_period=0s"]
    return [part for setting in found for part in ("--set", setting)]


@pytest.fixture
def receive(tmp_path: Path) -> Iterator[Callable[[], tuple[int, subprocess.Popen[bytes]]]]:
    """Starts a receiver; it is killed at the end."""
    running: list[subprocess.Popen[bytes]] = []
    port = free_port()

    def begin() -> tuple[int, subprocess.Popen[bytes]]:
        config = tmp_path / "config.yaml"
        config.touch()
        command = [*TETHERED, *MONITOR, "receive", "--config", str(config), *settings(tmp_path, port)]
        running.append(subprocess.Popen(command))
        wait(lambda: answers(f"http://127.0.0.1:{port}/-/ready"), 10.0, "the receiver")
        return port, running[-1]

    yield begin
    for process in running:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait(timeout=slack(5))


Receive = Callable[[], tuple[int, subprocess.Popen[bytes]]]


def test_each_line_once_and_a_hang_under_a_living_agent(start: Start, receive: Receive, tmp_path: Path) -> None:
    """Answers are lost, batches swapped, both processes are killed: 180 of 180 iterations, no restart. The training
    stops while its agent lives: that is a hang. The agent stops, too: nothing more is told.
    """
    port, receiver = receive()
    daemon, agent = start(*settings(tmp_path, port)), Agent(port, 18, 10)
    for numbers in ((0, 1, 1), (3, 2, 4), (5, 4, 5), (7, 6, 8)):
        for number in numbers:
            agent.push(number)
    daemon.kill()
    receiver.kill()
    receiver.wait()
    receive()
    for number in (7, 8, 6):
        agent.push(number)
    daemon = start(*settings(tmp_path, port))
    for numbers in ((10, 9, 11), (11, 12), (14, 13, 15), (16, 17)):
        for number in numbers:
            agent.push(number)

    def reported(incident: str) -> bool:
        agent.beat()
        return daemon.metric("megatron_incident", incident=incident, severity="critical") == 1.0

    daemon.wait(lambda: reported("hang") or daemon.metric("megatron_iterations_total", run="ml/gpt") == 180.0)
    assert daemon.metric("megatron_iterations_total", run="ml/gpt") == 180.0
    assert daemon.metric("megatron_restarts_total", run="ml/gpt") == 0.0
    assert daemon.metric("megatron_monitor_late_lines_total", run="ml/gpt") in (None, 0.0)
    daemon.wait(lambda: reported("hang"), BUDGET + 5.0)
    daemon.wait(lambda: daemon.metric("megatron_monitor_agents", state="stale") == 1.0)
    assert daemon.metric("megatron_incident", incident="hang", severity="critical") == 1.0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_receiver_that_is_not_there_is_no_hang(
    start: Start, receive: Receive, tmp_path: Path, number: signal.Signals
) -> None:
    """Killed or frozen: what its streams do is unobserved, however long; when it is back the silence counts again."""
    port, receiver = receive()
    daemon, agent = start(*settings(tmp_path, port, LONG)), Agent(port, 10, 10)
    for batch in range(10):
        agent.push(batch)
    agent.beat()
    daemon.wait(lambda: daemon.metric("megatron_iterations_total", run="ml/gpt") == 100.0)
    receiver.send_signal(number)
    daemon.wait(lambda: daemon.metric("megatron_monitor_receiver_up") == 0.0, 15.0)
    until = daemon.metric("megatron_hang_deadline_timestamp_seconds", run="ml/gpt") or 0.0
    daemon.wait(lambda: SystemClock.wall() > until + 2.0, 2 * LONG)
    assert daemon.metric("megatron_incident", incident="hang", severity="critical") != 1.0
    if number is signal.SIGSTOP:
        receiver.send_signal(signal.SIGCONT)
    else:
        receiver.wait()
        receive()

    def reported() -> bool:
        agent.beat()
        return daemon.metric("megatron_incident", incident="hang", severity="critical") == 1.0

    daemon.wait(reported, 2 * LONG)


def test_a_receiver_reads_its_configuration_again(receive: Receive, tmp_path: Path) -> None:
    """At SIGHUP."""
    port, receiver = receive()
    agent, file = Agent(port, 2, 10), tmp_path / "config.yaml"
    agent.push(0)
    file.write_text(f"receiver: {{tenants: {{a: [{'a' * 64}]}}}}\n")
    receiver.send_signal(signal.SIGHUP)

    def refused() -> bool:
        try:
            agent.push(1)
        except urllib.error.HTTPError as error:
            return error.code == 401
        return False

    wait(refused, 10.0, "the tenants")
