"""The cluster's monitor and its forwarders, as they are shipped, on two nodes whose logs are made here."""

import json
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from megatron_monitor.cli import command
from megatron_monitor.system.clock import SystemClock
from tests.conftest import loaded
from tests.deploy.test_files import only
from tests.e2e.conftest import Start
from tests.lines import line
from tests.programs import MONITOR, TETHERED, answers, free_port, slack

pytestmark = pytest.mark.e2e
FAILURE = """Traceback (most recent call last):
  File "/train.py", line 10, in <module>
    main()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""
ELASTIC = (
    "E torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid: 77) of binary: python\n"
)
Forward = Callable[["Node", int], None]


def shipped() -> tuple[str, list[str], list[str]]:
    """The configuration of the monitor, its arguments and those of the forwarder."""
    (watcher,), (sender,) = (only(one)["spec"]["template"]["spec"]["containers"] for one in ("Deployment", "DaemonSet"))
    return only("ConfigMap")["data"]["config.yaml"], watcher["args"], sender["args"]


def test_the_program_takes_what_is_shipped(tmp_path: Path) -> None:
    """`check-config` has no complaint, and each option of the forwarder exists."""
    config, run, forward = shipped()
    (tmp_path / "config.yaml").write_text(config)
    done = CliRunner().invoke(command("check-config"), [str(tmp_path / "config.yaml")])
    assert done.exit_code == 0, done.output
    assert run == ["run", "--config=/etc/megatron-monitor/config.yaml"]
    for name, arguments in (("run", run), ("forward", forward)):
        assert arguments[0] == name
        known = {option for one in command(name).params for option in one.opts}
        assert {part.partition("=")[0] for part in arguments[1:] if part.startswith("--")} <= known


class Node:
    """Its /var/log/pods, as the kubelet keeps it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write(self, pod: str, container: str, text: str, namespace: str = "ml") -> None:
        """What a container prints now."""
        file = self.directory / "pods" / f"{namespace}_{pod}_0b7d6c0e-1111-2222-3333-444455556666" / container / "0.log"
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as stream:
            for row in text.splitlines():
                at = datetime.fromtimestamp(SystemClock().wall(), UTC)
                stream.write(f"{at:%Y-%m-%dT%H:%M:%S.%f}000Z stdout F {row}\n")


@pytest.fixture
def forward(tmp_path: Path) -> Iterator[Forward]:
    """Starts a node's forwarder by the shipped arguments; they are killed at the end."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(node: Node, port: int) -> None:
        places = {
            "http://megatron-monitor:9844": f"http://127.0.0.1:{port}", "$(NODE_NAME)": node.directory.name,
            "/var/log/pods": str(node.directory / "pods"), "/state": str(node.directory / "state"),
        }  # fmt: skip
        arguments = shipped()[2]
        for place, here in places.items():
            assert any(place in argument for argument in arguments), place
            arguments = [argument.replace(place, here) for argument in arguments]
        running.append(subprocess.Popen([*TETHERED, *MONITOR, *arguments]))

    yield begin
    for process in running:
        process.kill()
        process.wait(timeout=slack(5))


def test_one_run_on_two_nodes_is_told_once(start: Start, forward: Forward, tmp_path: Path) -> None:
    """The first rank fails on one node, the last one tells the iterations on the other: one run, called by its owner,
    one crash. What monitors and the system's pods print is nobody's training.
    """
    first, last, port = Node(tmp_path / "node-a"), Node(tmp_path / "node-b"), free_port()
    config: dict[str, Any] = loaded(shipped()[0])
    config["state_dir"], config["intake"]["listen"] = str(tmp_path / "state"), f"127.0.0.1:{port}"
    config["stop_wait"] = "0s"
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    last.write("tr11-worker-0", "pytorch", "".join(line(number, seconds=0.01) for number in range(1, 31)))
    for node, pod in ((first, "tr11-master-0"), (last, "tr11-worker-0")):
        node.write(pod, "pytorch", FAILURE + ELASTIC)
    first.write("tr11-master-0", "megatron-monitor", line(900))
    first.write("proxy-x7k2p", "main", line(900), "kube-system")
    daemon = start("--config", str(tmp_path / "config.yaml"))
    for node in (first, last):
        forward(node, port)

    def told() -> list[dict[str, Any]]:
        return [one for one in json.loads(daemon.get("/api/v1/incidents"))["incidents"] if one["incident"] == "crash"]

    daemon.wait(lambda: daemon.metric("megatron_monitor_carriers", state="heard") == 2)
    daemon.wait(lambda: bool(told()) and daemon.metric("megatron_iteration", run="ml/tr11") == 30)
    (crash,) = told()
    assert crash["run"] == "ml/tr11"
    assert [one["run"] for one in json.loads(daemon.get("/api/v1/runs"))["runs"]] == ["ml/tr11"]
    assert answers(f"http://127.0.0.1:{port}/ready")
