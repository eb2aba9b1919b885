"""A running server over a small application, and certificates of our own."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from megatron_monitor.serve.exchange import Limits, Reply, Request
from megatron_monitor.serve.server import HttpServer

Serve = Callable[..., HttpServer]


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
