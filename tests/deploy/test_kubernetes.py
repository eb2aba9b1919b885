"""The Helm chart, by Helm itself: its usual values make the plain manifest, and each value reaches its place."""

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import loaded
from tests.deploy.conftest import DEPLOY, RULES
from tests.deploy.test_files import MANIFEST, Objects, objects
from tests.deploy.test_rules import rules, tool

pytestmark = pytest.mark.helm
MONITOR = ("Deployment", "megatron-monitor", "megatron-monitor")
RECEIVER = ("Deployment", "megatron-monitor", "megatron-monitor-receiver")
RECEIVING = ("--set", "receiver.enabled=true")
BARE = ("--set", "dashboards.enabled=false,prometheusRule.enabled=false")
BOARDS = sorted((DEPLOY.parent / "grafana" / "dashboards").glob("*.json"))


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With rules and dashboards in it, as deploy/README.md has it."""
    folder = tmp_path_factory.mktemp("site") / "chart"
    shutil.copytree(DEPLOY / "helm", folder)
    shutil.copytree(RULES, folder / "rules")
    shutil.copytree(BOARDS[0].parent, folder / "dashboards")
    return folder


def rendered(chart: Path, *values: str) -> Objects:
    """`helm template` of it."""
    done = tool("helm", "template", "megatron", chart, "--namespace", "megatron-monitor", *values)
    assert done.returncode == 0, done.stderr
    return objects(done.stdout)


def test_the_chart_is_the_plain_manifest(chart: Path) -> None:
    """`helm lint --strict` is content; with the receiver the objects are the same, but for the namespace,
    which Helm makes itself, and for how the configuration is written.
    """
    lint = tool("helm", "lint", "--strict", chart)
    assert lint.returncode == 0, lint.stdout
    plain, made = objects(MANIFEST), rendered(chart, *BARE, *RECEIVING, "--set", "podMonitor.enabled=false")
    del plain["Namespace", "", "megatron-monitor"]
    for deployment in (MONITOR, RECEIVER):
        del made[deployment]["spec"]["template"]["metadata"]["annotations"]
    for kind in (plain, made):
        data = kind["ConfigMap", "megatron-monitor", "megatron-monitor"]["data"]
        data["config.yaml"] = loaded(data["config.yaml"])
    assert made == plain
    about, values = (loaded((chart / name).read_text()) for name in ("Chart.yaml", "values.yaml"))
    assert {about["version"], about["appVersion"]} == {values["image"].rpartition(":")[2]}


def test_the_chart_holds_the_rules_and_the_dashboards(chart: Path, tmp_path: Path) -> None:
    """All that are shipped, and Prometheus takes the rules; without them nothing is installed."""
    made = rendered(chart)
    groups = made["PrometheusRule", "megatron-monitor", "megatron-monitor"]["spec"]["groups"]
    assert [rule for group in groups for rule in group["rules"]] == rules()
    posts = rendered(chart, "--set=prometheusRule.incidents=false")
    fewer = posts["PrometheusRule", "megatron-monitor", "megatron-monitor"]["spec"]["groups"]
    assert [group for group in groups if group not in fewer] == [groups[2]]
    assert groups[2]["name"] == "megatron-incidents"
    boards = {key[2]: one["data"] for key, one in made.items() if key[2].startswith("megatron-dashboard-")}
    assert {name: {file: json.loads(text) for file, text in one.items()} for name, one in boards.items()} == {
        f"megatron-dashboard-{path.stem}": {f"megatron-{path.name}": json.loads(path.read_text())} for path in BOARDS
    }
    incomplete = tool("helm", "template", "megatron", DEPLOY / "helm")
    assert (incomplete.returncode, "deploy/prometheus/rules" in incomplete.stderr) == (1, True)


def test_what_a_cluster_asks_for_is_a_value(chart: Path) -> None:
    """Labels by which Prometheus selects, secrets, volumes, a priority, a folder."""
    made = rendered(
        chart, "--set", "podMonitor.labels.release=kps,priorityClassName=high",
        "--set", "imagePullSecrets[0].name=pull,extraVolumes[0].name=hook,extraVolumes[0].secret.secretName=hook",
        "--set", "extraVolumeMounts[0].name=hook,extraVolumeMounts[0].mountPath=/hook,podAnnotations.a=b",
        "--set", "dashboards.annotations.grafana_folder=Ours",
    )  # fmt: skip
    monitor = made["PodMonitor", "megatron-monitor", "megatron-monitor"]
    assert monitor["metadata"]["labels"] == {"release": "kps"}
    template = made[MONITOR]["spec"]["template"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    pod = template["spec"]
    assert pod["priorityClassName"] == "high"
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    assert template["metadata"]["annotations"]["a"] == "b"
    assert {"name": "hook", "secret": {"secretName": "hook"}} in pod["volumes"]
    assert {"name": "hook", "mountPath": "/hook"} in pod["containers"][0]["volumeMounts"]
    board = made["ConfigMap", "megatron-monitor", "megatron-dashboard-fleet"]
    assert board["metadata"]["annotations"] == {"grafana_folder": "Ours"}
    other = rendered(chart, *BARE, "--set", "config.poll_interval=2s")
    changed = other[MONITOR]["spec"]["template"]["metadata"]["annotations"]
    # another configuration: the pods are started anew
    assert changed["checksum/config"] != template["metadata"]["annotations"]["checksum/config"]


@pytest.mark.parametrize(
    ("value", "named"),
    [("podMonitr.enabled=false", "podMonitr"), ("podMonitor.lables.release=kps", "lables"),
     ("podMonitor.enabled=never", "enabled")],
)  # fmt: skip
def test_a_misspelt_value_is_an_error(chart: Path, value: str, named: str) -> None:
    """It is named, and nothing is installed that lacks it."""
    done = tool("helm", "template", "megatron", chart, "--set", value)
    assert done.returncode != 0
    assert named in done.stderr


def test_values_reach_what_they_are_for(chart: Path) -> None:
    """Addresses with characters that YAML and templates mind, another image, nodes, logs; what is off is gone."""
    address = 'https://g.example/"{{x}}"?a=b&c'
    made = rendered(
        chart, "--set-literal", f"grafana={address}", "--set", "image=r.example/m:2,runbook=https://r.example/book",
        "--set-json", 'monitor.nodeSelector={"gpu": "yes"}',
        "--set-json", 'config.runs=[{"paths": ["/a/*.log"], "name": "x"}]',
        "--set", "podMonitor.enabled=false,dashboards.label=mine",
    )  # fmt: skip
    rules = made["PrometheusRule", "megatron-monitor", "megatron-monitor"]["spec"]["groups"]
    links = [one["annotations"]["dashboard_url"] for group in rules for one in group["rules"] if "alert" in one]
    assert all(link.startswith(address + "/d/megatron-") for link in links)
    assert "runbooks.example" not in json.dumps([*made.values()])
    pod = made[MONITOR]["spec"]["template"]["spec"]
    assert (pod["containers"][0]["image"], pod["nodeSelector"]) == ("r.example/m:2", {"gpu": "yes"})
    config = made["ConfigMap", "megatron-monitor", "megatron-monitor"]["data"]["config.yaml"]
    assert loaded(config)["runs"] == [{"paths": ["/a/*.log"], "name": "x"}]
    assert not [key for key in made if key[0] == "PodMonitor"]
    boards = [one for key, one in made.items() if key[2].startswith("megatron-dashboard-")]
    assert len(boards) == len(BOARDS)
    assert all(one["metadata"]["labels"]["mine"] == "1" for one in boards)
    off = rendered(chart, "--set", "prometheusRule.enabled=false,dashboards.enabled=false")
    assert {key[0] for key in off} == {
        "ConfigMap", "Deployment", "PersistentVolumeClaim", "PodMonitor", "Service",
    }  # fmt: skip


def test_the_notes_say_where_the_agent_pushes(chart: Path) -> None:
    """The Service's name in the namespace of the release."""
    notes = tool("helm", "install", "--dry-run=client", "x", chart, "-n", "ml", *RECEIVING)
    assert "http://megatron-monitor-receiver.ml:9844" in notes.stdout
    notes = tool("helm", "install", "--dry-run=client", "x", chart, "-n", "ml")
    assert "9844" not in notes.stdout.partition("NOTES:")[2]


def test_the_receiver_is_a_pod_of_its_own(chart: Path) -> None:
    """On the node of the monitor, with which it shares one volume and nothing else; Prometheus scrapes it. It is off
    unless a site asks for it, and not beside Kafka.
    """
    made = rendered(chart, *BARE, *RECEIVING, "--set", "config.web.tls_server_config.cert_file=/x")
    own, observer = (made[name]["spec"]["template"]["spec"] for name in (RECEIVER, MONITOR))
    shared = {"name": "pushed", "persistentVolumeClaim": {"claimName": "megatron-monitor-receiver"}}
    assert shared in own["volumes"]
    assert shared in observer["volumes"]
    assert "state" not in {volume["name"] for volume in own["volumes"]}
    assert own["containers"][0]["livenessProbe"]["tcpSocket"] == {"port": "receiver"}
    assert made["PodMonitor", "megatron-monitor", "megatron-monitor-receiver"]
    assert RECEIVER not in rendered(chart, *BARE)
    refused = tool("helm", "template", "x", chart, *RECEIVING, "--set", "config.kafka.bootstrap={broker:9092}")
    assert "write to the topic" in refused.stderr


def test_several_monitors_share_a_topic(chart: Path) -> None:
    """None has a volume, each has a page of its own; without Kafka there is one."""
    made = rendered(chart, *BARE, "--set", "replicas=3,config.kafka.topic=logs,config.kafka.bootstrap={broker:9092}")
    assert not {key[0] for key in made} & {"PersistentVolumeClaim"}
    deployment = made[MONITOR]["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (3, {"type": "RollingUpdate"})
    pod = deployment["template"]["spec"]
    assert "--set=external_url=http://$(POD_IP):9843/" in pod["containers"][0]["args"]
    assert {"name": "state", "emptyDir": {}} in pod["volumes"]
    refused = tool("helm", "template", "megatron", chart, "--set", "replicas=2")
    assert (refused.returncode, "needs config.kafka" in refused.stderr) == (1, True)


def test_who_may_push_is_asked(chart: Path) -> None:
    """Tenants: the configuration is a Secret. A claim of the site's own, and where the monitor runs; probes have no
    password.
    """
    made = rendered(
        chart, "--set", "secretConfig=true,config.receiver.tenants.a={0f},storage.claim=mine",
        "--set", "monitor.nodeSelector.a=b", *BARE,
    )  # fmt: skip
    config = loaded(made["Secret", "megatron-monitor", "megatron-monitor"]["stringData"]["config.yaml"])
    assert config["receiver"]["tenants"] == {"a": ["0f"]}
    judge = made[MONITOR]["spec"]["template"]["spec"]
    assert judge["nodeSelector"] == {"a": "b"}
    assert {"name": "state", "persistentVolumeClaim": {"claimName": "mine"}} in judge["volumes"]
    assert {"name": "config", "secret": {"secretName": "megatron-monitor"}} in judge["volumes"]
    assert not {key[0] for key in made} & {"PersistentVolumeClaim"}
    assert judge["containers"][0]["livenessProbe"]["httpGet"]["path"] == "/-/healthy"  # the page asks nobody
    closed = rendered(chart, *BARE, "--set", "config.web.basic_auth_users.me=$2y$hash")
    (container,) = closed[MONITOR]["spec"]["template"]["spec"]["containers"]
    assert all("tcpSocket" in container[probe] for probe in ("livenessProbe", "readinessProbe"))
