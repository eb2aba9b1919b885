"""Finds the owner of a container's log in Kubernetes: `NAMESPACE/OWNER` from labels or the pod's name. Pure.

`operators.csv` describes how each operator labels and names its pods. The first matching row decides: containers that
are not a training, then labels from the outer owner to the inner one, then the pod's name. Numbers are never removed
without proof: the Jobs sweep-1 and sweep-2 are two owners. A pod without a known owner is a run by itself.
"""

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Final, Literal, NamedTuple

from megatron_monitor.parsers.patterns import lazy
from megatron_monitor.parsers.tables import rows_of

_RANDOM: Final = "[b-df-hj-np-tv-xz2456789]{5}"  # apimachinery's random names: neither vowels nor 0, 1 and 3
_MAX_POD_NAME: Final = 63  # characters of a pod's name; longer ones are cut
_ODD: Final = lazy(r"\W", re.ASCII)
_KEY: Final = lazy(r"\{([^{}]+)\}")
# /var/log/pods/NAMESPACE_POD_UID/CONTAINER/N.log, /var/log/containers/POD_NAMESPACE_CONTAINER-ID.log
_PATHS: Final = (
    lazy(r"/(?P<space>[^_/]+)_(?P<pod>[^_/]+)_(?P<uid>[^_/]+)/(?P<container>[^/]+)/\d+\.log[^/]*$"),
    lazy(r"/(?P<pod>[^_/]+)_(?P<space>[^_/]+)_(?P<container>[^_/]+)-(?P<uid>)[0-9a-f]{64}\.log$"),
)


_PUSHED: Final = lazy(r"~[0-9a-f]{16}~(?P<pod>[^/~]+)\.log$")


class PodLog(NamedTuple):
    """The pod and container that wrote a file."""

    space: str
    pod: str
    container: str
    uid: str
    """The pod's uid; empty if the path does not contain it."""


class Owner(NamedTuple):
    """The owner of a pod."""

    name: str
    """`NAMESPACE/OWNER`; empty: the container is not a training."""
    sure: Literal["yes", "likely", "no"]
    why: str


class _Row(NamedTuple):
    by: Literal["none", "label", "pod"]
    operator: str
    container: str | None
    needs: str | None
    form: str | None
    owner: str | None
    sure: Literal["yes", "likely", "no"]

    def holds(self, labels: Mapping[str, str], pod: str, container: str) -> bool:
        """Return True if the row applies to this container and the needed labels exist."""
        named = self.container is None or container in self.container.replace("{pod}", pod).split()
        return named and all(labels.get(plain(key)) for key in (self.needs or "").split())


@cache
def _table() -> list[tuple[_Row, re.Pattern[str] | None]]:
    rows = rows_of("megatron_monitor", "operators.csv", _Row)
    return [(row, re.compile(row.form.replace("{R5}", _RANDOM)) if row.form else None) for row in rows]


def plain(label: str) -> str:
    """Return a label's name as Prometheus writes it, so that each spelling has one name."""
    return _ODD.sub("_", label)


def owner(labels: Mapping[str, str], namespace: str, pod: str, container: str) -> Owner | None:
    """Return a container's owner by its labels and annotations (plain names) or its pod's name; None if unknown."""
    attributes = {**labels, "pod": pod}
    for row, form in _table():
        if not row.holds(attributes, pod, container):
            continue
        if row.by == "none":
            return Owner("", "yes", f"a container {container} prints {row.operator}")
        if row.by == "label":
            name = _KEY.sub(lambda key: attributes.get(plain(key[1]), ""), row.owner or "")
            name = form.sub("", name) if form is not None else name
            why = f"the labels of {row.operator}"
        else:
            found = form.fullmatch(pod) if form is not None and pod else None
            if found is None:
                continue
            name, why = found[1], f"the pod's name, as {row.operator}"
            if row.sure == "no":
                why = (
                    f"the pod's name ({row.operator}), which does not contain its owner: label it megatron-monitor/run"
                )
        if name:
            return Owner("/".join(filter(None, (namespace, name))), row.sure, why)
    return None


@lru_cache(maxsize=64)  # called several times when a stream begins
def pod_at(path: str) -> PodLog | None:
    """Return the pod whose log is at `path`; None if the path does not name a pod."""
    match = next((found for form in _PATHS if (found := form.search(path))), None) if "_" in path else None
    return PodLog(**match.groupdict()) if match is not None else None


def by_host(pod: str, host: str, domain: str) -> str | None:
    """Return the owner of a pod by the host name that its program prints and the subdomain of the attempt's hosts.

    For pods whose name does not contain the owner. The hosts of an Indexed Job are named by the Job and the index; a
    JobSet is the subdomain of its hosts; the host of a plain Job's pod has the pod's name. None if unknown.
    """
    end = re.fullmatch(rf"(.+)-{_RANDOM}", pod)
    if end is None:
        return None
    stem, index = end[1], re.fullmatch(r"(.+)-(\d+)", host)
    if host == pod:
        return stem
    launched = host == f"{domain}-launcher" or re.fullmatch(rf"{re.escape(domain)}-.+-\d+-\d+", host)
    if domain and host == stem and launched:
        return domain
    name, _, number = stem.rpartition("-")
    truncated = len(pod) == _MAX_POD_NAME and host.startswith(name)
    if index is None or index[2] != number or not (host == stem or truncated):
        return None
    return None if re.fullmatch(r".+-.+-\d+-\d+", host) else index[1]  # such a host may belong to a JobSet


def unsure_pod(path: str) -> str:
    """Return the pod that wrote a file if the pod's name does not contain its owner; otherwise empty."""
    log, found = pod_at(path), owner_at(path)
    return log.pod if log is not None and found is not None and found.sure == "no" else ""


def in_spool(pod: str) -> str:
    """Return the pod's part of a file name in the spool."""
    return f"~{pod[:64]}" if re.fullmatch(r"[\w.-]+", pod, re.ASCII) else ""


def pod_of(path: str) -> str | None:
    """Return the pod that wrote a file or a stream in the spool."""
    if (log := pod_at(path)) is not None:
        return f"{log.pod} {log.uid}"
    match = _PUSHED.search(path)
    return match["pod"] if match is not None else None


def owner_at(path: str) -> Owner | None:
    """Return the owner of the pod whose log is at `path`; None if the path does not name a pod."""
    log = pod_at(path)
    return owner({}, log.space, log.pod, log.container) if log is not None else None
