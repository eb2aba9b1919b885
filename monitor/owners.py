"""Whose a container's log is in Kubernetes: labels, or a pod's name, to `NAMESPACE/OWNER`. Pure.

`operators.csv` has how each operator labels and calls its pods, the first row that holds decides: what is no training,
then labels from the outer owner to the inner one, then the pod's name. Numbers are never taken off without proof: pods
of the Jobs sweep-1 and sweep-2 are of two owners. What a name cannot tell is a run of its own.
"""

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Final, Literal, NamedTuple

from megatron_monitor.model.tables import rows_of
from megatron_monitor.parsers.patterns import lazy

_RANDOM: Final = "[b-df-hj-np-tv-xz2456789]{5}"  # apimachinery's random names: neither vowels nor 0, 1 and 3
_LONGEST: Final = 63  # characters of a pod's name; longer ones are cut
_ODD: Final = lazy(r"\W", re.ASCII)
_KEY: Final = lazy(r"\{([^{}]+)\}")
# /var/log/pods/NAMESPACE_POD_UID/CONTAINER/N.log, /var/log/containers/POD_NAMESPACE_CONTAINER-ID.log
_PATHS: Final = (
    lazy(r"/(?P<space>[^_/]+)_(?P<pod>[^_/]+)_(?P<uid>[^_/]+)/(?P<container>[^/]+)/\d+\.log[^/]*$"),
    lazy(r"/(?P<pod>[^_/]+)_(?P<space>[^_/]+)_(?P<container>[^_/]+)-(?P<uid>)[0-9a-f]{64}\.log$"),
)


_PUSHED: Final = lazy(r"~[0-9a-f]{16}~(?P<pod>[^/~]+)\.log$")


class PodLog(NamedTuple):
    """Whose output a file is."""

    space: str
    pod: str
    container: str
    uid: str
    """The pod's; empty where the path does not say it."""


class Owner(NamedTuple):
    """Who owns a pod."""

    name: str
    """`NAMESPACE/OWNER`; empty: its lines are no training's."""
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
        """Is it for this container, with all that it needs?"""
        named = self.container is None or container in self.container.replace("{pod}", pod).split()
        return named and all(labels.get(plain(key)) for key in (self.needs or "").split())


@cache
def _table() -> list[tuple[_Row, re.Pattern[str] | None]]:
    rows = rows_of("megatron_monitor", "operators.csv", _Row)
    return [(row, re.compile(row.form.replace("{R5}", _RANDOM)) if row.form else None) for row in rows]


def plain(label: str) -> str:
    """A label's name as Prometheus writes it: however it was sent, it is one name."""
    return _ODD.sub("_", label)


def owner(labels: Mapping[str, str], namespace: str, pod: str, container: str) -> Owner | None:
    """Of a container with these labels and annotations, by their plain names; None where nothing tells, not even the
    pod's name.
    """
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
                why = f"the pod's name ({row.operator}), which does not tell its owner: label it megatron-monitor/run"
        if name:
            return Owner("/".join(filter(None, (namespace, name))), row.sure, why)
    return None


@lru_cache(maxsize=64)  # asked for several times as a stream begins
def pod_at(path: str) -> PodLog | None:
    """The pod whose log lies at `path`; None where the path names none."""
    match = next((found for form in _PATHS if (found := form.search(path))), None) if "_" in path else None
    return PodLog(**match.groupdict()) if match is not None else None


def by_host(pod: str, host: str, domain: str) -> str | None:
    """The owner of a pod whose name does not tell it, by the host name that its program prints, and the subdomain of
    the hosts of its attempt: an Indexed Job calls its hosts by its whole name and the index, a JobSet has its own as
    the subdomain, pods of a plain Job are hosts of their own names. None where that does not tell either.
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
    truncated = len(pod) == _LONGEST and host.startswith(name)
    if index is None or index[2] != number or not (host == stem or truncated):
        return None
    return None if re.fullmatch(r".+-.+-\d+-\d+", host) else index[1]  # else it may be a JobSet's


def unsure_pod(path: str) -> str:
    """The pod whose output a file is, if its name does not tell its owner."""
    if (log := pod_at(path)) is None:
        return ""
    found = owner({}, log.space, log.pod, log.container)
    return log.pod if found is not None and found.sure == "no" else ""


def in_spool(pod: str) -> str:
    """What the name of a stream's file in the spool says of its pod."""
    return f"~{pod[:64]}" if re.fullmatch(r"[\w.-]+", pod, re.ASCII) else ""


def pod_of(path: str) -> str | None:
    """The pod whose output a file, or a stream in the spool, is."""
    if (log := pod_at(path)) is not None:
        return f"{log.pod} {log.uid}"
    match = _PUSHED.search(path)
    return match["pod"] if match is not None else None


def owner_at(path: str) -> Owner | None:
    """Of the pod whose log lies at `path`, as its name and its container tell; None where the path names no pod."""
    log = pod_at(path)
    return owner({}, log.space, log.pod, log.container) if log is not None else None
