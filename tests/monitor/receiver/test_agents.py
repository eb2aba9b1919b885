"""The agents' configurations in deploy/agents: what they push names the run, the agent and its heartbeat here."""

import re
from pathlib import Path

import pytest

from megatron_monitor.receiver.labels import agent_of, is_heartbeat, plain_labels, run_of, stream_file
from tests.conftest import loaded

AGENTS = Path(__file__).parents[3] / "deploy" / "agents"
POD = {"namespace": "ml", "pod": "gpt-0-abcde", "container": "trainer", "node_name": "n7"}
COLLECTOR = loaded((AGENTS / "otel-collector.yaml").read_text())
OWNERS = [one["key"] for one in COLLECTOR["processors"]["k8sattributes"]["extract"]["labels"]]


def labels_of(agent: str, owner: str, container: str = "trainer") -> dict[str, str]:
    """What the agent puts on a line of a pod with that label of its owner, by its file."""
    values = {**POD, "container": container, owner: "gpt"}
    if agent == "alloy.alloy":
        text = (AGENTS / agent).read_text()
        found = {name: values[name] for name in re.findall(r'target_label  = "(\w+)"', text) if name in values}
        (kept,) = re.findall(r'"__meta_kubernetes_pod_label_\((.*)\)"', text)
        found |= {name: "gpt" for name in kept.split("|") if name == re.sub(r"\W", "_", owner)}
        (names, pattern) = re.findall(r'source_labels = \[(.*)\]\n +regex         = "(.*)"', text)[0]
        joined = ";".join(found.get(name, "") for name in re.findall(r'"(\w+)"', names))
        return {**found, "agent": "n7"} if re.fullmatch(pattern, joined) else {}
    config = COLLECTOR if agent == "otel-collector.yaml" else loaded((AGENTS / agent).read_text())
    if agent == "fluent-bit.yaml":
        pairs = (pair.strip().partition("=") for pair in config["pipeline"]["outputs"][0]["labels"].split(","))
        reported = {"namespace_name": "ml", "pod_name": "gpt-0-abcde", "container_name": container, owner: "gpt"}
        fields = {name: value.rpartition("['")[2].removesuffix("']") for name, _, value in pairs}
        reported["${NODE_NAME}"] = "n7"
        return {name: reported[field] for name, field in fields.items() if field in reported}
    if agent == "vector.yaml":
        labels = dict(config["sinks"]["megatron_monitor"]["labels"])
        assert labels.pop("pod_labels_*") == "{{ kubernetes.pod_labels }}"
        reported = {"pod_namespace": "ml", "pod_name": "gpt-0-abcde", "container_name": container, "stream": "stdout"}
        filled = {
            name: "n7" if "NODE" in text else reported[text.strip("{ }").rpartition(".")[2]]
            for name, text in labels.items()
        }
        return filled | {f"pod_labels_{re.sub(r'[^a-zA-Z0-9_]', '_', owner)}": "gpt"}
    extract = config["processors"]["k8sattributes"]["extract"]
    reported = {"k8s.namespace.name": "ml", "k8s.pod.name": "gpt-0-abcde", "k8s.node.name": "n7"}
    owners = {one["tag_name"]: "gpt" for one in extract["labels"] if one["key"] == owner}
    agent = {one["key"]: "n7" for one in config["processors"]["resource/megatron_monitor"]["attributes"]}
    return {name: reported[name] for name in extract["metadata"]} | owners | agent | {"k8s.container.name": container}


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("agent", ["alloy.alloy", "fluent-bit.yaml", "vector.yaml", "otel-collector.yaml"])
def test_an_agent_names_the_run(agent: str, owner: str) -> None:
    """By the label of each operator: the owner in its namespace, the agent, the pod."""
    labels = plain_labels(labels_of(agent, owner))
    agent = agent_of(labels, "")
    assert (run_of(labels, ()), agent, is_heartbeat(labels)) == ("ml/gpt", "n7", False)
    assert stream_file(labels, "ml/gpt", "", agent).head == "[pod/gpt-0-abcde/trainer] <14>1 - n7 log - - - "


def test_agents_send_heartbeats_and_try_again_without_a_limit() -> None:
    """Two by themselves, two by a container beside them."""
    fluent = loaded((AGENTS / "fluent-bit.yaml").read_text())["pipeline"]
    lines, beat = fluent["outputs"]
    assert (lines["retry_limit"], fluent["inputs"][0]["storage.type"]) == ("no_limits", "filesystem")
    assert is_heartbeat(plain_labels(dict(pair.strip().split("=") for pair in beat["labels"].split(","))))
    assert fluent["inputs"][1]["interval_sec"] == 5
    vector = loaded((AGENTS / "vector.yaml").read_text())
    assert is_heartbeat(plain_labels(vector["sinks"]["megatron_monitor_heartbeat"]["labels"]))
    assert vector["sources"]["beat"]["interval"] == 5.0
    (container,) = loaded((AGENTS / "heartbeat.yaml").read_text())
    assert (container["name"], "sleep 5" in container["command"][-1]) == ("heartbeat", True)
    for agent in ("alloy.alloy", "otel-collector.yaml"):
        assert is_heartbeat(plain_labels(labels_of(agent, "none", "heartbeat")))
    assert labels_of("alloy.alloy", "none", "coredns") == {}
    otel = loaded((AGENTS / "otel-collector.yaml").read_text())["exporters"]["otlphttp/megatron_monitor"]
    assert otel["retry_on_failure"]["max_elapsed_time"] == 0
    assert "max_backoff_retries = 0" in (AGENTS / "alloy.alloy").read_text()
