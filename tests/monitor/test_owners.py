"""Whose a container's log is: by what its operator writes on the pod, and by the pod's name alone."""

import pytest

from megatron_monitor.config import load
from megatron_monitor.identity.naming import named
from megatron_monitor.owners import by_host, owner, owner_at, plain
from megatron_monitor.receiver.labels import plain_labels, run_of

JOB, SET = "batch.kubernetes.io/job-name", "jobset.sigs.k8s.io/jobset-name"
KUBEFLOW, RAY = "training.kubeflow.org/job-name", "ray.io/cluster"
PROJECT, NAME, TASK = "k8s.dstack.ai/project", "k8s.dstack.ai/name", "determined.ai/task_id"
LONG = "a" * 57
PODS = [
    # pod, container, labels, owner by them, owner by the name, is that sure
    ("mixtral-b9wdq", "main", {JOB: "mixtral"}, "mixtral", "mixtral", "likely"),
    ("mixtral-tp8pp-b9wdq", "main", {JOB: "mixtral-tp8pp"}, "mixtral-tp8pp", "mixtral-tp8pp", "likely"),
    ("ablation-2-b9wdq", "main", {JOB: "ablation-2"}, "ablation-2", "ablation-2", "no"),
    ("ablation-2-k4hdq", "main", {JOB: "ablation", "job-name": "ablation"}, "ablation", "ablation-2", "no"),
    ("ablation-2-x2hdq", "main", {"job-name": "ablation-2"}, "ablation-2", "ablation-2", "no"),
    ("phi.3-mini-b9wdq", "main", {JOB: "phi.3-mini"}, "phi.3-mini", "phi.3-mini", "likely"),
    (f"{LONG}-b9wdq", "main", {JOB: f"{LONG}xyz"}, f"{LONG}xyz", f"{LONG}-b9wdq", "no"),
    ("phi-w-0-3-p9c2z", "main", {SET: "phi", JOB: "phi-w-0"}, "phi", "phi-w-0-3", "no"),
    ("phi-workload-1-3-p9c2z", "workload", {SET: "phi", JOB: "phi-workload-1"}, "phi", "phi", "yes"),
    ("sft-node-0-1-9xv4j", "node", {SET: "sft", JOB: "sft-node-0"}, "sft", "sft", "yes"),
    ("sft-launcher-0-0-9xv4j", "node", {SET: "sft", JOB: "sft-launcher-0"}, "sft", "sft", "yes"),
    ("olmo-worker-3", "pytorch", {KUBEFLOW: "olmo"}, "olmo", "olmo", "yes"),
    ("olmo-worker-worker-3", "pytorch", {KUBEFLOW: "olmo-worker"}, "olmo-worker", "olmo-worker", "yes"),
    ("olmo-chief-0", "tensorflow", {KUBEFLOW: "olmo"}, "olmo", "olmo", "yes"),
    ("opt-launcher-9xv4j", "main", {KUBEFLOW: "opt", JOB: "opt-launcher"}, "opt", "opt", "no"),
    ("opt-worker-0", "main", {KUBEFLOW: "opt"}, "opt", "opt", "no"),
    ("opt1-launcher", "mpi", {KUBEFLOW: "opt1"}, "opt1", "opt1", "yes"),
    ("dpo-t6nwr", "ray-job-submitter", {"ray.io/originated-from-cr-name": "dpo", JOB: "dpo"}, "dpo", "dpo", "yes"),
    ("dpo-k7x2p-head-vz5jl", "ray-job-submitter", {RAY: "dpo-k7x2p"}, "dpo", "dpo", "yes"),
    ("dpo-k7x2p-g-worker-vz5jl", "ray-worker", {RAY: "dpo-k7x2p"}, "", "", "yes"),
    ("dpo-head-vz5jl", "main", {RAY: "dpo"}, "dpo", "dpo-head", "likely"),
    ("phi-b9wdq", "megatron-monitor", {JOB: "phi"}, "", "", "yes"),  # a sidecar: what it says of a run is no training
    ("serve-0-2", "main", {"leaderworkerset.sigs.k8s.io/name": "serve"}, "serve", "serve-0-2", "no"),
    ("v-worker-1", "main", {"volcano.sh/job-name": "v"}, "v", "v", "no"),
    ("v-default0-1", "main", {"volcano.sh/job-name": "v"}, "v", "v", "yes"),
    ("v-step-1", "main", {"volcano.sh/job-name": "v"}, "v", "v-step-1", "no"),
    ("set-7-3", "main", {"statefulset.kubernetes.io/pod-name": "set-7-3"}, "set-7", "set-7-3", "no"),
    ("grp-a", "main", {"kueue.x-k8s.io/pod-group-name": "grp"}, "grp", "grp-a", "likely"),
    ("x-b9wdq", "main", {"pod-group-name": "pg-top-0b7d6c0e-1111-2222-3333-444455556666"}, "top", "x", "likely"),
    ("api-6c45f8d6f6-x7k2p", "main", {"pod-template-hash": "6c45f8d6f6"}, "api", "api-6c45f8d6f6", "likely"),
    ("flow-9x-tr-1263847563", "main", {"workflows.argoproj.io/workflow": "flow-9x"}, "flow-9x-tr-1263847563",
     "flow-9x-tr-1263847563", "no"),
    ("f98e4-n0-1", "f98e4-n0-1", {"execution-id": "f98e4", "node-id": "n0"}, "f98e4.n0", "f98e4-n0-1", "no"),
    ("r1-a0-1", "r1-a0-1", {"run": "r1", "action": "a0", "attempt": "1"}, "r1.a0", "r1-a0-1", "no"),
    ("ft-3f2a-1", "main", {"skypilot-managed-job-name": "ft-3f2a"}, "ft-3f2a", "ft-3f2a-1", "no"),
    ("dstack-p-q-1-0-a1b2c3d4", "dstack-p-q-1-0-a1b2c3d4-container", {PROJECT: "p", NAME: "q-1-0"},
     "p.q", "dstack-p-q", "yes"),
    ("det-1c2d-exp-5-trial-7-attempt-2-nk9wz", "determined-container", {TASK: "5.8f1c", JOB: "det-1c2d"},
     "5.8f1c", "det-1c2d-exp-5-trial-7", "yes"),
    ("worker-0", "slurmd", {"nodeset.slinky.slurm.net/pod-index": "0"}, "", "", "yes"),
    ("x-b9wdq", "main", {"megatron-monitor/run": "mine", SET: "x"}, "mine", "x", "likely"),
    ("x-0", "main", {"pod_owner": "StatefulSet/x"}, "x", "x-0", "no"),
]  # fmt: skip


@pytest.mark.parametrize(("pod", "container", "labels", "by_labels", "by_name", "sure"), PODS)
def test_the_owner_of_each_operators_pods(
    pod: str, container: str, labels: dict[str, str], by_labels: str, by_name: str, sure: str
) -> None:
    """The outer owner before the inner one; an attempt and a restart change nothing, numbers are no attempts."""
    reported = owner({plain(name): value for name, value in labels.items()}, "ml", pod, container)
    assert reported is not None
    assert reported.name == (f"ml/{by_labels}" if by_labels else "")
    for path in (f"/var/log/pods/ml_{pod}_6f1c-22/{container}/3.log",
                 f"/var/log/containers/{pod}_ml_{container}-{'0a' * 32}.log"):  # fmt: skip
        single = owner_at(path)
        assert single is not None
        assert (single.name, single.sure) == (f"ml/{by_name}" if by_name else "", sure)
    assert owner_at(f"/logs/{pod}/main.log") is None


@pytest.mark.parametrize(
    ("pod", "host", "domain", "reported"),
    [
        ("grid-2-7cdln", "grid-2", "", "grid"), ("grid-2-4m8xk", "grid-2-4m8xk", "", "grid-2"),
        ("grid-2-0-vq6gs", "grid-2-0", "", "grid-2"), ("ab-1-0-nw2lp", "ab-1-0-nw2lp", "", "ab-1-0"),
        ("phi-w-0-3-p9c2z", "phi-w-0-3", "phi", "phi"), ("phi-w-0-3-p9c2z", "phi-w-0-3", "", None),
        ("phi-w-a-0-0-p9c2z", "phi-w-a-0-0", "phi-w", "phi-w"), ("opt-launcher-hq2xs", "opt-launcher", "opt", "opt"),
        (f"{'a' * 54}-12-g6lrt", f"{'a' * 57}-4a-12", "", f"{'a' * 57}-4a"), ("set-7-3", "set-7-3", "svc", None),
        ("grid-2-7cdln", "node07", "", None), ("grid-2-7cdln", "grid-3", "", None),
        ("phi-w-0-3-p9c2z", "", "phi", None),
    ],
)  # fmt: skip
def test_the_host_that_a_log_prints(pod: str, host: str, domain: str, reported: str | None) -> None:
    """It tells an Indexed Job from a Job with a number, and a JobSet by its subdomain; the node's own tells nothing."""
    assert by_host(pod, host, domain) == reported


def test_a_pods_log_is_its_owners_run() -> None:
    """Two namespaces are two runs; why says what cannot be told, and the label that would. The operator's name wins."""
    watches = load("", ["runs=[{paths: ['/var/log/pods/*/*/*.log']}]"]).runs
    path = "/var/log/pods/{}_6f1c-22/{}/0.log"
    assert named(path.format("ml_olmo-worker-3", "pytorch"), watches).name == "ml/olmo"
    assert named(path.format("exp_olmo-master-0", "pytorch"), watches).name == "exp/olmo"
    unsure = named(path.format("ml_ablation-2-b9wdq", "main"), watches)
    assert (unsure.name, unsure.why.rpartition(": ")[2]) == ("ml/ablation-2", "label it megatron-monitor/run")
    none = path.format("slurm_worker-0", "slurmd")
    assert named(none, watches).name == "slurm_worker-0_6f1c-22/slurmd/0"
    own = load("", ["runs=[{paths: ['/var/log/pods/*/*/*.log'], name_from: '_(?P<run>[^_]+)-[a-z]+-[0-9]+_'}]"]).runs
    assert named(path.format("ml_olmo-worker-3", "pytorch"), own).name == "olmo"


def test_the_network_names_runs_by_the_same_table() -> None:
    """With the cluster before it. A pod whose name leaves its owner open is no run, and none that trains nothing."""
    agent = {"namespace": "ml", "pod": "olmo-worker-3", "container": "pytorch"}
    assert run_of(plain_labels({**agent, "training_kubeflow_org_job_name": "olmo"}), ()) == "ml/olmo"
    assert run_of(plain_labels({**agent, "cluster": "west"}), ()) == "west/ml/olmo"
    assert run_of(plain_labels({**agent, "container": "main", "service_name": "main"}), ()) == ""
    assert run_of(plain_labels({"service.name": "olmo", "service.namespace": "ml"}), ()) == "ml/olmo"
    assert run_of(plain_labels({"service.name": "unknown_service:python", "service.namespace": "ml"}), ()) == ""
    assert run_of(plain_labels({**agent, "container": "ray-worker", "ray_io_cluster": "x"}), ()) == ""
