"""A running server over a small application, and certificates of our own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from monitor.serve.server import HttpServer, Limits

Serve = Callable[..., HttpServer]


def hello(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    """Says the path; `/large` is 8 MiB, `/bug` raises."""
    if environ["PATH_INFO"] == "/bug":
        raise RuntimeError("a bug in a page")
    body = b"x" * (8 << 20) if environ["PATH_INFO"] == "/large" else environ["PATH_INFO"].encode("latin-1")
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [body]


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
