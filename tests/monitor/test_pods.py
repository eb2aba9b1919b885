"""Whose a pod is by the API server: a stand-in that answers as Kubernetes does, over TLS, and who cannot ask it."""

import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme

from megatron_monitor.config import load
from megatron_monitor.follow.messages import Opened
from megatron_monitor.forward import Forwarder, Intake
from megatron_monitor.identity import named
from megatron_monitor.intake.labels import followed, known, written
from megatron_monitor.system.clock import SystemClock

UID = "0b7d6c0e-1111-2222-3333-444455556666"
LABELS = {
    "batch.kubernetes.io/controller-uid": "9f86", "batch.kubernetes.io/job-completion-index": "1",
    "batch.kubernetes.io/job-name": "phi-w-0", "jobset.sigs.k8s.io/jobset-name": "phi",
}  # fmt: skip
STATIC = {"kubernetes.io/config.hash": UID, "kubernetes.io/config.source": "file"}


class ApiServer(ThreadingHTTPServer):
    """`GET /api/v1/namespaces/ml/pods/NAME`, with a token; its answers are `metadata` by name, or a status's code."""

    daemon_threads = True

    def __init__(self, account: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.pods: dict[str, dict[str, object] | int] = {}
        self.asked: list[str] = []
        authority = trustme.CA()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        authority.cert_pem.write_to_path(account / "ca.crt")
        (account / "token").write_text("projected.token\n")
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    server: ApiServer

    def do_GET(self) -> None:
        assert self.headers["Accept"] == "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
        name = self.path.removeprefix("/api/v1/namespaces/ml/pods/")
        self.server.asked.append(name)
        found = self.server.pods.get(name, 404)
        if self.headers["Authorization"] != "Bearer projected.token":
            found = 401
        reason = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 500: "InternalError"}
        body: dict[str, object] = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": found}
        if isinstance(found, int):
            body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": found,
                    "message": f'pods "{name}"', "reason": reason[found]}  # fmt: skip
        self.send_response(found if isinstance(found, int) else 200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


def metadata(name: str, uid: str = UID, **more: object) -> dict[str, object]:
    """As the API server gives it."""
    return {"name": name, "namespace": "ml", "uid": uid, "creationTimestamp": "2026-05-01T12:00:00Z",
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "phi-w-0", "controller": True}],
            **more}  # fmt: skip


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """Known by the environment of a pod."""
    api = ApiServer(tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(api.server_address[1]))
    monkeypatch.setattr("megatron_monitor.forward.pods.ACCOUNT", tmp_path)
    yield api
    api.shutdown()
    api.server_close()


@pytest.fixture
def forwarder(server: ApiServer, tmp_path: Path) -> Iterator[Forwarder]:
    """One that asks it."""
    target, beat = Intake("http://127.0.0.1:1/loki/api/v1/push"), ("carrier", "n7", 5.0)
    found = Forwarder([], target, {}, tmp_path / "state", SystemClock(), beat, kubernetes=True)
    yield found
    found._store.release()


def labels_of(forwarder: Forwarder, pod: str) -> dict[str, str]:
    """What it puts on the lines of a container."""
    path = f"/var/log/pods/ml_{pod}_{UID}/main/0.log"
    forwarder._take(Opened(path, path, None, 0, 0.0, resumed=False))
    return forwarder._tails[path].labels


def test_labels_name_the_run(server: ApiServer, forwarder: Forwarder) -> None:
    """Of a JobSet's pod, of a bare one, of one that a newer one has replaced, of a static one."""
    server.pods = {
        "phi-w-0-3-p9c2z": metadata("phi-w-0-3-p9c2z", labels=LABELS),
        "gpt-tp4pp": metadata("gpt-tp4pp", labels={"app": "x"}),
        "moe-0": metadata("moe-0", "another", labels={"leaderworkerset.sigs.k8s.io/name": "moe"}),
        "top-n7": metadata("top-n7", "api", annotations=STATIC | {"megatron-monitor/run": "mine"}),
    }
    told = {pod: labels_of(forwarder, pod) for pod in (*server.pods, "ablation-2-k4hdq")}
    assert {pod: (labels["run"], labels.get("unsure")) for pod, labels in told.items()} == {
        "phi-w-0-3-p9c2z": ("ml/phi", None),
        "gpt-tp4pp": ("ml/gpt-tp4pp", None),
        "moe-0": ("ml/moe-0", "yes"),
        "top-n7": ("ml/mine", None),
        "ablation-2-k4hdq": ("ml/ablation-2", "yes"),  # gone: 404
    }
    labels_of(forwarder, "phi-w-0-3-p9c2z")
    assert server.asked.count("phi-w-0-3-p9c2z") == 1  # it is kept with the positions


def test_who_may_not_ask_goes_by_the_name(
    server: ApiServer, forwarder: Forwarder, caplog: pytest.LogCaptureFixture
) -> None:
    """Said once, and not asked again for a while; what cannot be told says so where the run is shown."""
    server.pods = {"ablation-2-k4hdq": 403, "olmo-b9wdq": metadata("olmo-b9wdq", labels={"job-name": "x"})}
    labels = labels_of(forwarder, "ablation-2-k4hdq")
    assert labels_of(forwarder, "olmo-b9wdq")["run"] == "ml/olmo"
    assert server.asked == ["ablation-2-k4hdq"]
    assert caplog.text.count("cannot be read: 403 Forbidden") == 1
    file = written(known(labels), labels["run"], "", "n7")
    watches = followed(load("runs: [{paths: [/x]}]"), "/spool").runs
    told = named(f"/spool/{file.name}.log", watches)
    assert (told.name, "label it megatron-monitor/run" in told.why) == ("ml/ablation-2", True)
    sure = written(known(labels_of(forwarder, "olmo-b9wdq")), "ml/olmo", "", "n7")
    assert named(f"/spool/{sure.name}.log", watches).why == "labels"


def test_a_server_that_is_restarted_is_waited_for(
    server: ApiServer, forwarder: Forwarder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has no answer yet is asked again, for half a minute in all: another name would be another run."""
    answers = iter([500, 500, metadata("moe-0", labels={"leaderworkerset.sigs.k8s.io/name": "moe"})])
    monkeypatch.setattr(forwarder._stopping, "wait", lambda _: server.pods.update({"moe-0": next(answers)}))
    server.pods["moe-0"] = 500
    assert labels_of(forwarder, "moe-0")["run"] == "ml/moe"
    assert len(server.asked) == 4


@pytest.mark.parametrize("missing", ["KUBERNETES_SERVICE_HOST", "token"])
def test_outside_of_a_cluster(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, missing: str
) -> None:
    """Nobody is asked, and that is said: no account is mounted, or there is no cluster."""
    monkeypatch.delenv(missing, raising=False)
    (tmp_path / missing).unlink(missing_ok=True)
    beat = ("carrier", "n7", 5.0)
    forwarder = Forwarder([], Intake("http://x/y"), {}, tmp_path / "other", SystemClock(), beat, kubernetes=True)
    forwarder._store.release()
    assert "labels of pods cannot be read" in caplog.text
