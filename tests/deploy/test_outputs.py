"""The daemon's figures by way of a real node_exporter, Pushgateway and VictoriaMetrics."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import loaded
from tests.deploy.conftest import DEPLOY, Attempt
from tests.deploy.stage import alertmanager, hastened_rules
from tests.e2e.conftest import Start
from tests.e2e.test_daemon import Writer
from tests.lines import line
from tests.monitor.notifiers.receiver import Receiver
from tests.programs import get, serving, wait

pytestmark = [pytest.mark.e2e, pytest.mark.outputs]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A training's log of some iterations."""
    path = tmp_path / "train.log"
    path.write_text("".join(line(number) for number in range(1, 21)))
    return path


def test_node_exporter_shows_the_textfile(start: Start, attempt: Attempt, log: Path, tmp_path: Path) -> None:
    """Two daemons on one node, each with its label; removed when they end; node_exporter's own figures unharmed."""
    directory = tmp_path / "textfiles"
    directory.mkdir()
    address = attempt(
        "prometheus-node-exporter", "--collector.disable-defaults", "--collector.textfile",
        f"--collector.textfile.directory={directory}", listen="--web.listen-address", ready="/metrics",
    )  # fmt: skip
    daemons = [
        start(
            "--set", f"outputs=[{{type: textfile, name: textfile, path: {directory}/{job}.prom, interval: 200ms, "
                     f"labels: {{monitor_job: '{job}'}}}}]", str(log),
        )
        for job in (17, 18)
    ]  # fmt: skip

    def page() -> str:
        return get(f"http://{address}/metrics")

    wait(lambda: page().count("\nmegatron_iteration{") == 2, 10.0, "both daemons' runs")
    assert 'megatron_iteration{monitor_job="17",run="train"} 20' in page()
    assert "node_textfile_scrape_error 0" in page()
    assert page().count("\nprocess_cpu_seconds_total ") == 1, "node_exporter's own"
    with log.open("a") as stream:
        stream.write(line(21))
    wait(lambda: 'megatron_iteration{monitor_job="18",run="train"} 21' in page(), 5.0, "the next iteration")
    assert 'megatron_monitor_output_writes_total{monitor_job="17",outcome="written",output="textfile"}' in page()
    assert daemons[0].terminate() == 0
    # the other monitor may be writing the file that it renames; node_exporter reads files of this ending alone
    assert [path.name for path in directory.glob("*.prom")] == ["18.prom"]
    daemons[1].kill()
    assert "18.prom" in [path.name for path in directory.iterdir()], "MegatronMonitorBlind reports this one"


def test_the_pushgateway_holds_the_group_as_long_as_the_daemon_lives(start: Start, attempt: Attempt, log: Path) -> None:
    """Pushed on a timer under job and instance, deleted at SIGTERM."""
    address = attempt("prometheus-pushgateway", listen="--web.listen-address", ready="/-/ready")
    pushed = f"outputs=[{{type: pushgateway, name: p, url: 'http://{address}', interval: 200ms}}]"
    daemon = start("--set", pushed, str(log))

    def page() -> str:
        return get(f"http://{address}/metrics")

    instance = f"{socket.gethostname()}:{daemon.address.rpartition(':')[2]}"
    row = f'megatron_iteration{{instance="{instance}",job="megatron-monitor",run="train"}} 20'
    wait(lambda: row in page(), 10.0, "the pushed iteration")
    assert "push_time_seconds" in page()
    with log.open("a") as stream:
        stream.write(line(21))
    wait(lambda: row.replace(" 20", " 21") in page(), 5.0, "the next iteration")
    assert daemon.terminate() == 0
    assert "megatron_" not in page().replace("megatron-monitor", "")


def victoria(attempt: Attempt, directory: Path) -> str:
    """The address of a VictoriaMetrics that shows what it takes in at once."""
    store = f"-storageDataPath={directory / 'victoria'}"
    at_once = ("-search.latencyOffset=0s", "-loggerLevel=ERROR")
    return attempt("victoria-metrics", store, *at_once, listen="-httpListenAddr", ready="/health")


def send_on(attempt: Attempt, directory: Path, target: str, daemon: str) -> None:
    """agent.yml as shipped, on test addresses and hastened."""
    (directory / "targets").mkdir()
    (directory / "targets" / "one.yml").write_text(yaml.safe_dump([{"targets": [daemon]}]))
    config = loaded((DEPLOY / "prometheus" / "agent.yml").read_text())
    config["global"]["scrape_interval"] = "1s"
    config["remote_write"][0]["url"] = f"http://{target}/api/v1/write"
    config["remote_write"][0]["queue_config"]["batch_send_deadline"] = "500ms"
    (directory / "agent.yml").write_text(yaml.safe_dump(config))
    attempt(
        "prometheus", "--enable-feature=agent", f"--config.file={directory / 'agent.yml'}",
        f"--storage.agent.path={directory / 'agent'}", listen="--web.listen-address", ready="/-/ready",
    )  # fmt: skip


def at_victoria(target: str, expression: str) -> list[dict[str, Any]]:
    """The samples of an instant query at VictoriaMetrics."""
    answer = get(f"http://{target}/api/v1/query?query={expression}&nocache=1")
    found: list[dict[str, Any]] = json.loads(answer)["data"]["result"]
    return found


@pytest.mark.prometheus
def test_an_agent_sends_on_and_the_rules_run_at_victoria_metrics(
    start: Start, attempt: Attempt, training: Writer, tmp_path: Path
) -> None:
    """The agent finds the daemon by file_sd and sends on all that is the monitor's, with the cluster's name; vmalert
    with the shipped rules pages for a deadline that a dead daemon left.
    """
    target = victoria(attempt, tmp_path)
    daemon = start("--set", "detectors.hang.minimum=6s", str(training.path))
    send_on(attempt, tmp_path, target, daemon.address)
    with serving(Receiver()) as receiver, alertmanager(tmp_path, receiver) as address:
        attempt(
            "vmalert", f"-rule={hastened_rules(tmp_path)}", f"-datasource.url=http://{target}",
            f"-remoteWrite.url=http://{target}", f"-remoteRead.url=http://{target}", f"-notifier.url=http://{address}",
            "-evaluationInterval=1s", "-remoteWrite.flushInterval=500ms", listen="-httpListenAddr", ready="/health",
        )  # fmt: skip
        daemon.wait(lambda: training.number >= 12)
        recorded = "run:megatron_hang_deadline_timestamp_seconds:last"
        wait(lambda: bool(at_victoria(target, recorded)), 30.0, "the recorded deadline")
        (sample,) = at_victoria(target, "megatron_iteration")
        assert sample["metric"] == {
            "__name__": "megatron_iteration", "cluster": "cluster-1", "instance": daemon.address,
            "job": "megatron-monitor", "run": "train",
        }  # fmt: skip
        assert 0 < float(sample["value"][1]) <= training.number
        assert at_victoria(target, "megatron_iteration_duration_seconds_bucket")
        assert not at_victoria(target, "python_gc_objects_collected_total")
        daemon.kill()
        training.stop()

        def paged() -> list[str]:
            bodies = [body for path, _, body in list(receiver.received) if path == "/pager"]
            return [body["payload"]["summary"] for body in bodies]

        wait(lambda: bool(paged()), 40.0, "the deadline's alert")
        assert paged()[0] == "train is past its hang deadline and no monitor has reported on it"
