"""The Helm chart, by Helm itself: its usual values make the plain manifest, and each value reaches its place."""

import json
from typing import Any

import pytest

from megatron_monitor.config import Config, load
from tests.conftest import loaded
from tests.deploy.conftest import DEPLOY
from tests.deploy.test_files import MANIFEST, Objects, objects
from tests.deploy.test_rules import rules, tool

pytestmark = pytest.mark.helm
CHART = DEPLOY / "helm"
NAMES = MONITOR, RECEIVER, REMEDIATOR = [
    ("Deployment", "megatron-monitor", f"megatron-monitor{suffix}") for suffix in ("", "-receiver", "-remediator")
]
RECEIVING = ("--set", "receiver.enabled=true")
REMEDIATING = (
    "--set", "remediator.enabled=true,remediator.image.repository=r.example/slurm",
    "--set-json", 'config.remediations=[{"name": "a", "incidents": ["hang"], "actions": [{"type": "requeue"}]}]',
)  # fmt: skip
OPERATOR = [f"--api-versions=monitoring.coreos.com/v1/{kind}" for kind in ("PodMonitor", "PrometheusRule")]
BARE = ("--set", "dashboards.enabled=false,prometheusRule.enabled=false")
BOARDS = sorted((DEPLOY.parent / "grafana" / "dashboards").glob("*.json"))


def rendered(*values: str, name: str = "megatron-monitor") -> Objects:
    """`helm template` of it, for a cluster with Prometheus Operator."""
    done = tool("helm", "template", name, CHART, "--namespace", "megatron-monitor", *OPERATOR, *values)
    assert done.returncode == 0, done.stderr
    return objects(done.stdout)


def refused(*values: str) -> str:
    """Why `helm template` fails."""
    done = tool("helm", "template", "megatron-monitor", CHART, *values)
    assert done.returncode == 1
    return done.stderr


def test_the_chart_is_the_plain_manifest() -> None:
    """`helm lint --strict` is content; with the receiver the objects are the same, except the namespace, which Helm
    makes itself, what only Helm needs, and how the configuration is written.
    """
    lint = tool("helm", "lint", "--strict", CHART)
    assert lint.returncode == 0, lint.stdout
    made = rendered(*BARE, *RECEIVING, "--set", "podMonitor.enabled=false")
    assert made.pop(("ServiceAccount", "megatron-monitor", "megatron-monitor"))
    plain = objects(MANIFEST)
    del plain["Namespace", "", "megatron-monitor"]
    ours = {"app.kubernetes.io/instance", "annotations", "imagePullPolicy", "labels", "serviceAccountName"}

    def alike(manifest: Objects) -> list[Any]:
        data = manifest["ConfigMap", "megatron-monitor", "megatron-monitor"]["data"]
        data["config.yaml"] = loaded(data["config.yaml"])
        text = json.dumps(sorted(manifest.items(), key=lambda item: item[0]))
        found: list[Any] = json.loads(text, object_hook=lambda one: {key: one[key] for key in one if key not in ours})
        return found

    assert alike(made) == alike(plain)


def test_every_object_has_the_names_and_labels_of_its_release() -> None:
    """Two releases share no name, and the selector of one does not select the pods of the other."""
    options = (*RECEIVING, *REMEDIATING, "--set=networkPolicy.enabled=true")
    one, other = (rendered(*options, name=name) for name in ("prod", "megatron-monitor-test"))
    assert {kind for kind, *_ in one} == {
        "ConfigMap", "Deployment", "NetworkPolicy", "PersistentVolumeClaim", "PodMonitor", "PrometheusRule", "Service",
        "ServiceAccount",
    }  # fmt: skip
    for made, full in ((one, "prod-megatron-monitor"), (other, "megatron-monitor-test")):
        assert all(name.startswith(full) for *_, name in made)
        labels = [item["metadata"]["labels"] for item in made.values()]
        assert {(each["app.kubernetes.io/name"], each["app.kubernetes.io/managed-by"]) for each in labels} == {
            ("megatron-monitor", "Helm")
        }
        parts = [item for key, item in made.items() if key[0] == "Deployment"]
        selectors = [item["spec"]["selector"]["matchLabels"] for item in parts]
        pods = [item["spec"]["template"]["metadata"]["labels"] for item in parts]
        assert [[wanted.items() <= pod.items() for pod in pods] for wanted in selectors] == [
            [row == column for column in range(3)] for row in range(3)
        ]
        assert {pod["app.kubernetes.io/instance"] for pod in pods} == {full.removesuffix("-megatron-monitor")}
    short = rendered(*BARE, "--set=nameOverride=mm", name="x")
    assert {name for *_, name in short} == {"x-mm"}
    assert {name for *_, name in rendered(*BARE, "--set=fullnameOverride=mm")} == {"mm"}


def test_every_workload_may_do_little_and_is_probed() -> None:
    """The pod security standard `restricted`, bounded memory, a group that can write the volume, three probes."""
    made = rendered(*RECEIVING, *REMEDIATING)
    for name in NAMES:
        pod = made[name]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert pod["securityContext"].items() >= {"runAsNonRoot": True, "fsGroup": 65532}.items()
        assert container["securityContext"] == {
            "readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        }  # fmt: skip
        assert not pod["automountServiceAccountToken"]
        assert {"configMap", "emptyDir", "persistentVolumeClaim"} >= {key for one in pod["volumes"] for key in one} - {
            "name"
        }
        (port,) = container["ports"]
        probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
        assert [probe["port"] for probe in probes] == [port["name"]] * 3
        assert "memory" in container["resources"]["limits"]


def test_the_remediator_is_a_pod_of_its_own() -> None:
    """It runs as the user of the jobs, asks the monitor, and writes a record that the monitor reads. It is off unless
    a site enables it, and needs an image with Slurm's clients and a remediation.
    """
    made = rendered(*BARE, *REMEDIATING, "--set", "config.listen=0.0.0.0:9000,remediator.user=1000")
    own, observer = (made[name]["spec"]["template"]["spec"] for name in (REMEDIATOR, MONITOR))
    assert own["securityContext"]["runAsUser"] == 1000
    (container,) = own["containers"]
    assert container["image"] == "r.example/slurm:0.1.0"
    assert container["env"] == [{"name": "MEGATRON_MONITOR_URL", "value": "http://megatron-monitor:9843"}]
    record = {"name": "record", "persistentVolumeClaim": {"claimName": "megatron-monitor-remediator"}}
    assert record in own["volumes"]
    assert record in observer["volumes"]
    mount = {"name": "record", "mountPath": "/state-remediator"}
    assert mount in container["volumeMounts"]
    assert {**mount, "readOnly": True} in observer["containers"][0]["volumeMounts"]
    assert observer["containers"][0]["ports"] == [{"name": "metrics", "containerPort": 9000}]
    claim = made["PersistentVolumeClaim", "megatron-monitor", "megatron-monitor-remediator"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    config = load(made["ConfigMap", "megatron-monitor", "megatron-monitor"]["data"]["config.yaml"])
    assert [one.name for one in config.remediations] == ["a"]
    assert REMEDIATOR not in rendered(*BARE)
    assert "Slurm's clients" in refused("--set=remediator.enabled=true")
    assert "needs at least one" in refused(*REMEDIATING[:2])


def test_the_pod_has_time_to_stop() -> None:
    """`shutdown_grace_period` and 40 s; its default is that of the program."""

    def seconds(*options: str) -> int:
        return int(rendered(*BARE, *options)[MONITOR]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"])

    assert seconds() == Config().shutdown_grace_period + 40
    assert [seconds("--set", f"config.shutdown_grace_period={text}") for text in ("1m30s", "45", "500ms")] == [
        130,
        85,
        40,
    ]
    assert "unknown unit" in refused("--set=config.shutdown_grace_period=1d")


def test_without_the_operator_its_objects_are_left_out() -> None:
    """A cluster that lacks the API would refuse the release. The notes say so."""
    plain = tool("helm", "install", "--dry-run=client", "x", CHART, "-n", "ml")
    assert "monitoring.coreos.com" not in plain.stdout
    assert "no Prometheus Operator" in plain.stdout
    assert "pod-security.kubernetes.io/enforce=restricted" in plain.stdout


def test_a_network_policy_names_who_may_connect() -> None:
    """To the port of each pod; the pods of the release always may, and the receiver connects to nobody."""
    made = rendered(
        *BARE, *RECEIVING, "--set=networkPolicy.enabled=true,networkPolicy.from[0].namespaceSelector.matchLabels.a=b"
    )
    policies = {name: item["spec"] for (kind, _, name), item in made.items() if kind == "NetworkPolicy"}
    for name, port in (("megatron-monitor", "metrics"), ("megatron-monitor-receiver", "receiver")):
        (rule,) = policies[name]["ingress"]
        assert rule["ports"] == [{"port": port}]
        assert rule["from"][1]["podSelector"]["matchLabels"] == {
            "app.kubernetes.io/name": "megatron-monitor", "app.kubernetes.io/instance": "megatron-monitor",
        }  # fmt: skip
    assert policies["megatron-monitor-receiver"]["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in policies["megatron-monitor-receiver"]


def test_the_chart_holds_the_rules_and_the_dashboards() -> None:
    """All that are shipped, from the folders that the chart links to."""
    made = rendered()
    groups = made["PrometheusRule", "megatron-monitor", "megatron-monitor"]["spec"]["groups"]
    assert [rule for group in groups for rule in group["rules"]] == rules()
    posts = rendered("--set=prometheusRule.incidents=false")
    fewer = posts["PrometheusRule", "megatron-monitor", "megatron-monitor"]["spec"]["groups"]
    assert [group for group in groups if group not in fewer] == [groups[2]]
    assert groups[2]["name"] == "megatron-incidents"
    boards = {key[2]: one["data"] for key, one in made.items() if "grafana_dashboard" in one["metadata"]["labels"]}
    assert {name: {file: json.loads(text) for file, text in one.items()} for name, one in boards.items()} == {
        f"megatron-monitor-{path.stem}": {f"megatron-{path.name}": json.loads(path.read_text())} for path in BOARDS
    }


def test_what_a_cluster_asks_for_is_a_value() -> None:
    """Labels by which Prometheus selects, secrets, volumes, a priority, a folder."""
    made = rendered(
        "--set", "podMonitor.labels.release=kps,priorityClassName=high",
        "--set", "imagePullSecrets[0].name=pull,extraVolumes[0].name=hook,extraVolumes[0].secret.secretName=hook",
        "--set", "extraVolumeMounts[0].name=hook,extraVolumeMounts[0].mountPath=/hook,podAnnotations.a=b",
        "--set", "dashboards.annotations.grafana_folder=Ours,podMonitor.endpoint.scheme=https", name="prod",
    )  # fmt: skip
    made = {(kind, space, name.removeprefix("prod-")): one for (kind, space, name), one in made.items()}
    monitor = made["PodMonitor", "megatron-monitor", "megatron-monitor"]
    assert monitor["metadata"]["labels"]["release"] == "kps"
    job = {"targetLabel": "job", "replacement": "megatron-monitor"}  # as the rules ask, however the release is called
    assert monitor["spec"]["podMetricsEndpoints"] == [
        {"port": "metrics", "interval": "15s", "scheme": "https", "relabelings": [job]}
    ]
    template = made[MONITOR]["spec"]["template"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    pod = template["spec"]
    assert pod["priorityClassName"] == "high"
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    assert template["metadata"]["annotations"]["a"] == "b"
    assert {"name": "hook", "secret": {"secretName": "hook"}} in pod["volumes"]
    assert {"name": "hook", "mountPath": "/hook"} in pod["containers"][0]["volumeMounts"]
    board = made["ConfigMap", "megatron-monitor", "megatron-monitor-fleet"]
    assert board["metadata"]["annotations"] == {"grafana_folder": "Ours"}
    other = rendered(*BARE, "--set", "config.poll_interval=2s")
    changed = other[MONITOR]["spec"]["template"]["metadata"]["annotations"]
    # another configuration: the pods are started anew
    assert changed["checksum/config"] != template["metadata"]["annotations"]["checksum/config"]


@pytest.mark.parametrize(
    ("value", "named"),
    [("podMonitr.enabled=false", "podMonitr"), ("podMonitor.lables.release=kps", "lables"),
     ("podMonitor.enabled=never", "enabled"), ("config.listn=0.0.0.0:1", "listn"),
     ("config.detectors.hang.factr=2", "factr"), ("config.log_level=loud", "log_level"),
     ("config.notifiers[0].type=webhook,config.notifiers[0].urll=x", "urll")],
)  # fmt: skip
def test_a_misspelt_value_is_an_error(value: str, named: str) -> None:
    """It is named, and nothing is installed that lacks it."""
    assert named in refused("--set", value)


def test_null_is_no_value() -> None:
    """A site takes back what values.yaml states, or what its own first file states."""
    names = ("nodeSelector", "tolerations", "affinity", "resources", "podAnnotations", "podMonitor.labels",
             "podMonitor.endpoint", "prometheusRule.labels", "networkPolicy.from", "config.receiver.max_runs",
             "extraVolumes", "imagePullSecrets", "dashboards.annotations", "remediator.env")  # fmt: skip
    options = ("--set", ",".join(f"{name}=null" for name in names), "--set=networkPolicy.enabled=true")
    assert rendered(*RECEIVING, *REMEDIATING, *options)
    assert tool("helm", "install", "--dry-run=client", "x", CHART, *options).returncode == 0


def test_values_reach_what_they_are_for() -> None:
    """Addresses with characters that YAML and templates mind, another image, nodes, logs; what is off is gone."""
    address = 'https://g.example/"{{x}}"?a=b&c'
    made = rendered(
        "--set-literal", f"grafana={address}", "--set", "image.repository=r.example/m,runbook=https://r.example/book",
        "--set-string", "image.tag=2",
        "--set-json", 'nodeSelector={"gpu": "yes"}',
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
    assert len([one for one in made.values() if one["metadata"]["labels"].get("mine") == "1"]) == len(BOARDS)
    off = rendered("--set", "prometheusRule.enabled=false,dashboards.enabled=false")
    assert {key[0] for key in off} == {
        "ConfigMap", "Deployment", "PersistentVolumeClaim", "PodMonitor", "Service", "ServiceAccount",
    }  # fmt: skip


def test_the_notes_say_where_the_agent_pushes() -> None:
    """The Service's name in the namespace of the release."""
    notes = tool("helm", "install", "--dry-run=client", "x", CHART, "-n", "ml", *RECEIVING)
    assert "http://x-megatron-monitor-receiver.ml:9844" in notes.stdout
    notes = tool("helm", "install", "--dry-run=client", "x", CHART, "-n", "ml")
    assert "9844" not in notes.stdout.partition("NOTES:")[2]


def test_the_receiver_is_a_pod_of_its_own() -> None:
    """On the node of the monitor, with which it shares one volume and nothing else; Prometheus scrapes it. It is off
    unless a site asks for it, and not beside Kafka.
    """
    made = rendered(*BARE, *RECEIVING, "--set", "config.web.tls_server_config.cert_file=/x")
    own, observer = (made[name]["spec"]["template"]["spec"] for name in (RECEIVER, MONITOR))
    shared = {"name": "pushed", "persistentVolumeClaim": {"claimName": "megatron-monitor-receiver"}}
    assert shared in own["volumes"]
    assert shared in observer["volumes"]
    assert "state" not in {volume["name"] for volume in own["volumes"]}
    assert own["containers"][0]["livenessProbe"]["tcpSocket"] == {"port": "receiver"}
    assert made["PodMonitor", "megatron-monitor", "megatron-monitor-receiver"]
    assert RECEIVER not in rendered(*BARE)
    assert "write to the topic" in refused(*RECEIVING, "--set", "config.kafka.bootstrap={broker:9092}")


def test_several_monitors_share_a_topic() -> None:
    """None has a volume, each has a page of its own; without Kafka there is one."""
    made = rendered(*BARE, "--set", "replicaCount=3,config.kafka.topic=logs,config.kafka.bootstrap={broker:9092}")
    assert not {key[0] for key in made} & {"PersistentVolumeClaim"}
    deployment = made[MONITOR]["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (3, {"type": "RollingUpdate"})
    pod = deployment["template"]["spec"]
    assert "--set=external_url=http://$(POD_IP):9843/" in pod["containers"][0]["args"]
    assert {"name": "state", "emptyDir": {}} in pod["volumes"]
    assert "needs config.kafka" in refused("--set", "replicaCount=2")


def test_who_may_push_is_asked() -> None:
    """Tenants: the configuration is a Secret. A claim of the site's own, and where the monitor runs; probes have no
    password.
    """
    made = rendered(
        "--set", "secretConfig=true,config.receiver.tenants.a={0f},persistence.existingClaim=mine",
        "--set", "nodeSelector.a=b", *BARE,
    )  # fmt: skip
    config = loaded(made["Secret", "megatron-monitor", "megatron-monitor"]["stringData"]["config.yaml"])
    assert config["receiver"]["tenants"] == {"a": ["0f"]}
    judge = made[MONITOR]["spec"]["template"]["spec"]
    assert judge["nodeSelector"] == {"a": "b"}
    assert {"name": "state", "persistentVolumeClaim": {"claimName": "mine"}} in judge["volumes"]
    assert {"name": "config", "secret": {"secretName": "megatron-monitor"}} in judge["volumes"]
    assert not {key[0] for key in made} & {"PersistentVolumeClaim"}
    claim = rendered(*BARE)["PersistentVolumeClaim", "megatron-monitor", "megatron-monitor"]
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert judge["containers"][0]["livenessProbe"]["httpGet"]["path"] == "/-/healthy"  # the page asks nobody
    closed = rendered(*BARE, "--set", "config.web.basic_auth_users.me=$2y$hash")
    (container,) = closed[MONITOR]["spec"]["template"]["spec"]["containers"]
    assert all("tcpSocket" in container[probe] for probe in ("livenessProbe", "readinessProbe"))
