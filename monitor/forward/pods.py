"""What Kubernetes' API server says of a pod: its labels and annotations, asked once when its log appears.

The least that answers: `get` of one pod as PartialObjectMetadata, which leaves out the pod's specification, where
values of its environment stand. The address, the token and the CA are those that each pod of the cluster is given; a
token is read anew each time, as it is changed every hour. A server that refuses, or does not answer, is left alone for
a while: pods have then what their names tell.
"""

import http.client
import logging
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from threading import Event
from typing import Final
from urllib.parse import quote

import msgspec

from megatron_monitor.parsers.json_text import read_json
from megatron_monitor.system.clock import Clock

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_CONFIG = "kubernetes.io/config.hash"  # of a pod that the kubelet has from a file: its directory is called by it
_TIMEOUT = 5.0  # of an answer
_PATIENCE = 30.0  # seconds for which a pod's lines wait for its labels: a server is restarted in less
_ALONE = 300.0  # seconds for which a server is not asked any more
_LARGEST = 1 << 20  # bytes; etcd takes no more of a whole pod
_log = logging.getLogger(__name__)


class _Metadata(msgspec.Struct):
    uid: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class _Pod(msgspec.Struct):
    metadata: _Metadata


class Pods:
    """The API server of the cluster that this process runs in."""

    def __init__(self, clock: Clock, stopping: Event) -> None:
        """`stopping` ends every wait. OSError where there is no cluster: no address in the environment, no account."""
        host, port = (os.environ.get(f"KUBERNETES_SERVICE_{name}", "") for name in ("HOST", "PORT"))
        if not host:
            raise OSError("KUBERNETES_SERVICE_HOST is not set: this is no pod of a cluster")
        self._base = f"https://{f'[{host}]' if ':' in host else host}:{port or 443}/api/v1/namespaces"
        self._token = ACCOUNT / "token"
        self._token.read_bytes()
        self._clock, self._stopping = clock, stopping
        tls = ssl.create_default_context(cafile=ACCOUNT / "ca.crt")
        proxies = urllib.request.ProxyHandler({})  # none: the server is in the cluster
        self._opener = urllib.request.build_opener(proxies, urllib.request.HTTPSHandler(context=tls))
        self._asks_at = 0.0

    def labels(self, namespace: str, pod: str, uid: str) -> Mapping[str, str] | None:
        """Its labels and annotations; None where that is not known, or the pod with this `uid` (if given) is gone."""
        began = self._clock.monotonic()
        while self._clock.monotonic() >= self._asks_at and not self._stopping.is_set():
            try:
                found = self._ask(namespace, pod)
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return None
                trouble, hopeless = f"{error.code} {error.reason}", error.code in (401, 403)
            except (OSError, http.client.HTTPException, msgspec.MsgspecError) as error:
                trouble, hopeless = str(error), False
            else:
                same = uid in ("", found.uid, found.annotations.get(_CONFIG))
                return found.annotations | found.labels if same else None
            if hopeless or self._clock.monotonic() - began > _PATIENCE:
                self._asks_at = self._clock.monotonic() + _ALONE
                _log.warning("the labels of pods cannot be read: %s; their names tell whose they are", trouble)
            else:
                self._stopping.wait(1.0)
        return None

    def _ask(self, namespace: str, pod: str) -> _Metadata:
        headers = {"Accept": _METADATA, "Authorization": f"Bearer {self._token.read_text('utf-8').strip()}"}
        request = urllib.request.Request(f"{self._base}/{quote(namespace)}/pods/{quote(pod)}", headers=headers)  # noqa: S310 - of this process's environment
        with self._opener.open(request, timeout=_TIMEOUT) as answer:
            return read_json(answer.read(_LARGEST), msgspec.json.Decoder(_Pod).decode).metadata
