"""Labels of a pushed stream to the run that they name, the agent that sent it, and its file. Pure.

Senders write a name unchanged (`jobset.sigs.k8s.io/jobset-name`), with `_` for characters that Prometheus does not
accept, or after `__meta_kubernetes_pod_label_` (Prometheus) or `pod_labels_` (Vector). All of these are one name here.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from msgspec.structs import replace

from megatron_monitor.config import Config, Watch
from megatron_monitor.owners import in_spool, owner, plain, pod_at
from megatron_monitor.parsers.patterns import lazy
from megatron_monitor.parsers.redaction import masked_path
from megatron_monitor.pushed import PATTERN, path_of, quoted, shortened
from megatron_monitor.scalars import one_line

AGENT = "agent"
"""The label with the agent's name on all that it sends; its heartbeats also have a label `heartbeat`."""
_TEMPLATE = lazy(r"\{([^{}]*)\}")
_NAME = lazy(r"[\w.-]{1,253}", re.ASCII)
_PODS = ("pod", "k8s_pod_name", "pod_name")
_NAMESPACES = ("namespace", "k8s_namespace_name", "pod_namespace", "service_namespace")
_CLUSTERS = ("cluster", "k8s_cluster_name")
_CONTAINERS = ("container", "k8s_container_name", "container_name")
_NODES = ("node_name", "k8s_node_name", "node", "host_name", "hostname", "host")
_WRITER_LABELS = ("filename", "log_file_path", "stream", "log_iostream", "rank")  # these also distinguish writers


class StreamFile(NamedTuple):
    """The file to which the lines of a stream are written."""

    run: str  # the run as the path names it
    name: str  # the path below the directory
    head: str  # text between time and line that names the writer, in a form which parsers/wrappers.py reads


class Origin(NamedTuple):
    """What the labels of a stream state."""

    file: StreamFile | None  # None: the labels name no run that is watched
    agent: str  # the sender; empty if no label names it
    is_heartbeat: bool


def origin_of(labels: Mapping[str, str], tenant: str, watches: Sequence[Watch], default_run: str = "") -> Origin:
    """Return run, file and agent of lines with these labels. `default_run`: the run if the labels name none."""
    labels = plain_labels(labels)
    agent = agent_of(labels, tenant)
    beats = bool(agent) and is_heartbeat(labels)
    run = "" if beats else run_of(labels, watches)
    if default_run and not (beats or run):
        run = run_of({**labels, "run": default_run}, watches)
    return Origin(stream_file(labels, run, tenant, agent) if run else None, agent, beats)


def plain_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that are not empty, with the plain form of each name."""
    return {
        plain(name).removeprefix("__meta_kubernetes_pod_label_").removeprefix("pod_labels_"): value
        for name, value in labels.items()
        if value
    }


def run_of(labels: Mapping[str, str], watches: Sequence[Watch]) -> str:
    """Return the run that these plain labels name; empty if they name none that is watched."""
    templates = [watch for watch in watches if watch.labels and not watch.paths]
    if not templates:
        return _owner_of(labels)
    for watch in templates:
        if all(fnmatchcase(labels.get(plain(name), ""), glob) for name, glob in watch.labels.items()):
            return _fill_template(watch.name, labels) if watch.name else _owner_of(labels)
    return ""


def _owner_of(labels: Mapping[str, str]) -> str:
    """Return the owner that the labels or the pod's name state for certain (monitor/owners.py), after the name of the
    cluster. Without a certain owner there is no run, because a cluster has many other pods.
    """
    space, pod, container = (_first(labels, names) for names in (_NAMESPACES, _PODS, _CONTAINERS))
    found = owner(labels, space, pod, container)
    if found is None or found.sure != "yes":
        return ""
    cluster = _first(labels, _CLUSTERS)
    return one_line(f"{cluster}/{found.name}").strip("/ ") if found.name else ""


def _fill_template(template: str, labels: Mapping[str, str]) -> str:
    """Return the template with labels for `{name|other}`; empty if one has no value and no empty alternative."""
    missing = False

    def value(match: re.Match[str]) -> str:
        nonlocal missing
        names = match[1].split("|")
        text = _first(labels, [plain(name) for name in names])
        missing = missing or not (text or "" in names)
        return text

    name = _TEMPLATE.sub(value, template)
    return "" if missing else one_line(name).strip("/ ")


def agent_of(labels: Mapping[str, str], tenant: str) -> str:
    """Return the agent's name by its label, distinct per tenant; empty if there is none."""
    name = labels.get(AGENT, "")
    return quoted(shortened(f"{tenant}/{name}" if tenant else name)) if name else ""


def is_heartbeat(labels: Mapping[str, str]) -> bool:
    """Return True for lines with a label `heartbeat`, or from a container of that name. Other lines of an agent may
    pause for hours.
    """
    return "heartbeat" in labels or _first(labels, _CONTAINERS) == "heartbeat"


def stream_file(labels: Mapping[str, str], run: str, tenant: str, agent: str) -> StreamFile:
    """Return the file of the stream. A stream is one output of one container, or one file; other labels do not divide
    it. Runs of two tenants are distinct.
    """
    run = shortened(masked_path(run))
    pod, container, node = (_first(labels, names) for names in (_PODS, _CONTAINERS, _NODES))
    identity = "\0".join([pod, container, node, *(labels.get(name, "") for name in _WRITER_LABELS)])
    digest = hashlib.blake2s(f"{tenant}\0{identity}".encode("utf-8", "replace"), digest_size=8).hexdigest()
    head = ""
    if _NAME.fullmatch(pod):
        head = f"[pod/{pod}/{container[:63] if _NAME.fullmatch(container) else 'container'}] "
    if _NAME.fullmatch(node):
        head += f"<14>1 - {node} log - - - "
    log = pod_at(labels.get("filename", ""))
    stream = f"{agent}~{digest}{in_spool(pod or (log.pod if log is not None else ''))}"
    return StreamFile(f"{tenant}/{run}" if tenant else run, path_of(tenant, run, stream), head)


def _first(labels: Mapping[str, str], names: Sequence[str]) -> str:
    return next((labels[name] for name in names if name in labels), "")


def followed(config: Config, directory: str) -> Config:
    """Return the configuration with the files in `directory` added to those that are followed."""
    return replace(config, runs=(*config.runs, Watch(paths=(f"{directory}/{PATTERN}",), labels={"": ""})))
