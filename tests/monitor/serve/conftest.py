"""A running server over a small application, and certificates of our own."""

import http.client
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trustme

from megatron_monitor.serve.exchange import Limits, Reply, Request
from megatron_monitor.serve.server import HttpServer
from tests.programs import slack

Serve = Callable[..., HttpServer]


def ask(
    server: HttpServer, path: str = "/", method: str = "GET", *, tls: ssl.SSLContext | None = None, **headers: str
) -> http.client.HTTPResponse:
    """One request on a connection of its own, its body read."""
    kind = http.client.HTTPConnection if tls is None else partial(http.client.HTTPSConnection, context=tls)
    with closing(kind(*server.address, timeout=slack(10))) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        answer.text = answer.read()  # type: ignore[attr-defined]
        return answer


def hello(request: Request) -> Reply:
    """Answers with the path; `/large` is 8 MiB, `/bug` raises."""
    if request.path == "/bug":
        raise RuntimeError("a bug in a page")
    return Reply(200, "text/plain", b"x" * (8 << 20) if request.path == "/large" else request.path.encode())


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers on a free port; they are stopped at the end."""
    servers: list[HttpServer] = []

    def begin(app: Any = hello, **limits: Any) -> HttpServer:
        server = HttpServer("127.0.0.1", 0, app, Limits(**limits))
        servers.append(server)
        server.start()
        return server

    yield begin
    for server in servers:
        server.stop()


class Certificates:
    """An authority, a server's certificate in two files that can be renewed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = trustme.CA()
        self.cert, self.key, self.ca = directory / "tls.crt", directory / "tls.key", directory / "ca.crt"
        self.authority.cert_pem.write_to_path(str(self.ca))
        self.renew()

    def renew(self) -> bytes:
        """A new certificate in the same files; gives its text."""
        issued = self.authority.issue_cert("127.0.0.1", "localhost")
        issued.private_key_pem.write_to_path(str(self.key))
        issued.cert_chain_pems[0].write_to_path(str(self.cert))
        return issued.cert_chain_pems[0].bytes()


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    """For 127.0.0.1."""
    return Certificates(tmp_path)
