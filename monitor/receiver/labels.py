"""The labels of a stream to the run that they name, to the agent that sent it, and to its file. Pure.

Senders write a name as it is (`jobset.sigs.k8s.io/jobset-name`), with `_` for all that Prometheus does not take, or
below `__meta_kubernetes_pod_label_` (Prometheus) or `pod_labels_` (Vector): all of these are one name here.
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
"""The label that names the agent on all that it sends; heartbeats have a label `heartbeat` besides."""
_TEMPLATE = lazy(r"\{([^{}]*)\}")
_NAME = lazy(r"[\w.-]{1,253}", re.ASCII)
_PODS = ("pod", "k8s_pod_name", "pod_name")
_NAMESPACES = ("namespace", "k8s_namespace_name", "pod_namespace", "service_namespace")
_CLUSTERS = ("cluster", "k8s_cluster_name")
_CONTAINERS = ("container", "k8s_container_name", "container_name")
_NODES = ("node_name", "k8s_node_name", "node", "host_name", "hostname", "host")
_WRITER_LABELS = ("filename", "log_file_path", "stream", "log_iostream", "rank")  # more that keeps two writers apart


class Written(NamedTuple):
    """Where the lines of a stream are written."""

    run: str
    """As the path names it."""
    name: str
    """Its file, below the directory."""
    head: str
    """Between the time and the text of each line: who wrote it, in a form that parsers/wrappers.py reads."""


class Address(NamedTuple):
    """What the labels of lines say."""

    written: Written | None
    """None: they name no run that is watched."""
    agent: str
    """Who sent them. Empty: no label says so."""
    beats: bool
    """They are heartbeats of the agent."""


def address(labels: Mapping[str, str], tenant: str, watches: Sequence[Watch], key: str = "") -> Address:
    """Of lines with these labels. `key`: the run if they name none."""
    plain = known(labels)
    agent = agent_of(plain, tenant)
    beats = bool(agent) and is_heartbeat(plain)
    run = "" if beats else run_of(plain, watches) or (run_of({**plain, "run": key}, watches) if key else "")
    return Address(written(plain, run, tenant, agent) if run else None, agent, beats)


def known(labels: Mapping[str, str]) -> dict[str, str]:
    """By the plain form of each name; empty values are none."""
    return {
        plain(name).removeprefix("__meta_kubernetes_pod_label_").removeprefix("pod_labels_"): value
        for name, value in labels.items()
        if value
    }


def run_of(labels: Mapping[str, str], watches: Sequence[Watch]) -> str:
    """The run that these (plain) labels name; empty where they name none that is to be watched."""
    templates = [watch for watch in watches if watch.labels and not watch.paths]
    if not templates:
        return _usual(labels)
    for watch in templates:
        if all(fnmatchcase(labels.get(plain(name), ""), glob) for name, glob in watch.labels.items()):
            return _filled(watch.name, labels) if watch.name else _usual(labels)
    return ""


def _usual(labels: Mapping[str, str]) -> str:
    """The owner that the labels or the pod's name tell for sure (monitor/owners.py), else no run: a cluster has many
    pods. Before it the cluster where that is known: two are never one.
    """
    space, pod, container = (_first(labels, names) for names in (_NAMESPACES, _PODS, _CONTAINERS))
    found = owner(labels, space, pod, container)
    if found is None or found.sure != "yes":
        return ""
    cluster = _first(labels, _CLUSTERS)
    return one_line(f"{cluster}/{found.name}").strip("/ ") if found.name else ""


def _filled(template: str, labels: Mapping[str, str]) -> str:
    missing = False

    def value(match: re.Match[str]) -> str:
        nonlocal missing
        names = match[1].split("|")
        found = next((labels[key] for key in map(plain, names) if key in labels), "")
        missing = missing or not (found or "" in names)
        return found

    name = _TEMPLATE.sub(value, template)
    return "" if missing else one_line(name).strip("/ ")


def agent_of(labels: Mapping[str, str], tenant: str) -> str:
    """The agent by its label; empty if there is none. Agents of two tenants are two."""
    name = labels.get(AGENT, "")
    return quoted(shortened(f"{tenant}/{name}" if tenant else name)) if name else ""


def is_heartbeat(labels: Mapping[str, str]) -> bool:
    """Is it what an agent says of itself: by a label `heartbeat`, or as the output of a container of that name beside
    it? Other lines that name no run may stay away for hours.
    """
    return "heartbeat" in labels or _first(labels, _CONTAINERS) == "heartbeat"


def written(labels: Mapping[str, str], run: str, tenant: str, agent: str) -> Written:
    """A stream is what one container writes on one of its two outputs, or one file; other labels make none of their
    own. Another tenant's run is another run.
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
    return Written(f"{tenant}/{run}" if tenant else run, path_of(tenant, run, stream), head)


def _first(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((labels[name] for name in names if name in labels), "")


def followed(config: Config, directory: str) -> Config:
    """The configuration by which the files are read: those in `directory` are followed beside what it names."""
    return replace(config, runs=(*config.runs, Watch(paths=(f"{directory}/{PATTERN}",), labels={"": ""})))
