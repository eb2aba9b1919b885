"""Which run, agent and file a stream's labels name."""

from fnmatch import fnmatchcase

import pytest

from megatron_monitor.config import load
from megatron_monitor.identity.naming import named
from megatron_monitor.parsers.engine.prefixes import strip_prefixes
from megatron_monitor.pushed import agent_at
from megatron_monitor.receiver.labels import agent_of, followed, plain_labels, run_of, stream_file


@pytest.mark.parametrize(
    ("labels", "run"),
    [
        (
            {"namespace": "ml", "jobset.sigs.k8s.io/jobset-name": "gpt", "batch.kubernetes.io/job-name": "gpt-0"},
            "ml/gpt",
        ),
        ({"namespace": "ml", "training_kubeflow_org_job_name": "gpt"}, "ml/gpt"),  # as Prometheus takes names
        ({"__meta_kubernetes_pod_label_volcano_sh_job_name": "vc"}, "vc"),
        ({"k8s.namespace.name": "ml", "k8s.job.name": "gpt"}, "ml/gpt"),
        ({"run": "tr11", "job": "loki.source.file"}, "tr11"),
        ({"job": "fluent-bit", "namespace": "ml", "pod": "gpt-0"}, ""),  # names no run: a pod is none
        ({"namespace": "ml", "run": ""}, ""),
    ],
)
def test_the_run_is_the_owner_by_default(labels: dict[str, str], run: str) -> None:
    """The labels that operators write on their pods, whoever has changed their names on the way."""
    assert run_of(plain_labels(labels), ()) == run


def test_runs_of_the_configuration() -> None:
    """The first entry of which all patterns match names the run; others are not watched then."""
    config = load(
        "receiver: {listen: 127.0.0.1:1}\nruns:\n- labels: {namespace: 'train-*', job: '*'}\n"
        "  name: '{namespace}/{job_name|job}'\n- labels: {app: sweep}\n- paths: [/logs/*.out]\n"
    )
    named = {
        "train-a/x": {"namespace": "train-a", "job": "x"},
        "train-a/y": {"namespace": "train-a", "job": "x", "job_name": "y"},
        "z": {"app": "sweep", "run": "z"},
    }
    for run, labels in named.items():
        assert run_of(plain_labels(labels), config.runs) == run
    assert run_of(plain_labels({"namespace": "serve", "job": "x"}), config.runs) == ""
    assert run_of(plain_labels({"namespace": "train-a"}), config.runs) == ""


@pytest.mark.parametrize(
    "run",
    ["ml/gpt", "gpt-err", "../../etc/x.log", "a//.b", ".hidden", "node_modules", "x.log", "a~b", "%41", "ü" * 300],
)
def test_the_file_is_found_and_gives_the_run_back(run: str) -> None:
    """Whatever labels say, the file lies two folders below the directory, a search finds it, and its path gives back
    the run, and the agent. No folder can be taken for a file.
    """
    config = followed(load("receiver: {listen: 127.0.0.1:1}"), "/spool")
    agent = agent_of({"agent": "node~/7"}, "")
    place = stream_file({"pod": "p"}, run, "", agent)
    path = f"/spool/{place.name}"
    tenant, folder, file = place.name.split("/")
    assert tenant == "_"
    assert fnmatchcase(file, "*.log")
    assert not folder.startswith(".")
    assert ".log" not in folder[-4:]
    assert max(len(folder), len(file)) < 255
    assert named(path, config.runs).name == place.run
    assert agent_at(path) == agent == "node%7E%2F7"
    assert place.run == run if len(run) < 50 else place.run.startswith("üüü")


def test_runs_of_long_names_are_apart() -> None:
    """By what is not shown of them."""
    first, second = (stream_file({}, "x" * 300 + end, "", "").name for end in "ab")
    assert first != second


def test_streams_are_writers() -> None:
    """A container's two outputs are two streams; a label that changes from line to line makes none of its own. Tenants
    share nothing.
    """
    labels = {"pod": "gpt-0", "container": "t", "run": "gpt"}
    first = stream_file(labels, "gpt", "", "node7")
    assert stream_file(labels | {"trace": "4711", "level": "info"}, "gpt", "", "node7") == first
    others = [
        stream_file(labels | {"stream": "stderr"}, "gpt", "", "node7"),
        stream_file(labels | {"pod": "gpt-1"}, "gpt", "", "node7"),
        stream_file(labels, "gpt", "team-a", "node7"),
    ]
    assert len({first.name, *(one.name for one in others)}) == 4
    assert others[-1].run == "team-a/gpt"
    assert agent_of(labels | {"agent": "n"}, "team-a") != agent_of({"agent": "n"}, "")


def test_the_head_tells_who_wrote_the_line() -> None:
    """The parsers read pod and node from it; a name that is none is left out."""
    head = stream_file({"pod": "gpt-0", "container": "t", "k8s_node_name": "node7"}, "gpt", "", "").head
    prefix, text = strip_prefixes(f"2026-05-01T12:00:00.123456789Z {head} iteration 5")
    assert (prefix.pod, prefix.node, prefix.logged_at) == ("gpt-0", "node7", "2026-05-01T12:00:00.123456789Z")
    assert text == " iteration 5"
    assert stream_file({"pod": "a b\n", "host": "x]y"}, "gpt", "", "").head == ""
