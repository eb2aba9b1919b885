"""Requests, replies and limits: the interface between the HTTP server and its applications."""

import gzip
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

_MIN_GZIP_BYTES = 1000
_GZIP_LEVEL = 1  # ten times as fast as 9, and a page of metrics still shrinks to a tenth


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the HTTP server; times are in seconds."""

    connections: int = 512
    """Open connections; at most a quarter of the process's limit of open files."""
    head_bytes: int = 16 * 1024
    """Size of a request line with its headers; browsers and Prometheus stay below 2 KiB."""
    handshake: float = 5.0
    """Time for a TLS handshake, which takes three round trips."""
    head: float = 10.0
    """Time from the first to the last byte of a request's head, which fits one packet."""
    idle: float = 75.0
    """Time between two requests of a connection, and to read an answer; Prometheus scrapes every 15 s to 60 s."""
    unread: int = 64 << 20
    """Bytes of all answers that clients have not read: eight scrapes of 1,000 runs."""
    threads: int = 4
    """Threads that render; Python runs one at a time."""
    body: int = 0
    """Bytes of a request's body; 0: requests with a body are refused."""
    bodies: int = 256 << 20
    """Bytes of all bodies that are held at the same time."""
    upload: float = 60.0
    """Time for a body to arrive."""
    certificates: float = 1.0
    """Minimum time between two checks of the certificate files; a new connection triggers a check."""


class Request(NamedTuple):
    """A request. It is a GET or HEAD without a body unless `Limits.body` is set."""

    method: str = "GET"
    path: str = "/"
    """Unquoted once; empty if it cannot be parsed."""
    query: str = ""
    headers: Mapping[str, str] = MappingProxyType({})
    """Keys are in lower case."""
    raw_path: str = ""
    """The path as received, still quoted."""
    peer: str = ""
    """The client's address."""
    body: bytes = b""


class Reply(NamedTuple):
    """An answer; the server omits the body for HEAD."""

    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


Application = Callable[[Request], Reply]


def text_reply(status: int, text: str, *headers: tuple[str, str]) -> Reply:
    """Return a plain-text reply."""
    return Reply(status, "text/plain; charset=utf-8", text.encode(), headers)


def packed(reply: Reply, request: Request) -> Reply:
    """Return the reply with its body compressed, if that is long and the client accepts gzip."""
    accepts = "gzip" in request.headers.get("accept-encoding", "")
    if not accepts or len(reply.body) < _MIN_GZIP_BYTES or "Content-Encoding" in dict(reply.headers):
        return reply
    headers = (*reply.headers, ("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding"))
    return reply._replace(body=gzip.compress(reply.body, _GZIP_LEVEL, mtime=0), headers=headers)


def request_of(scope: Mapping[str, Any]) -> Request:
    """Return the request of an ASGI scope, without its body."""
    raw, query = scope["raw_path"].decode("latin-1"), scope["query_string"].decode("latin-1")
    if not raw.startswith("/"):  # absolute form, as sent to a proxy; anything else is unknown
        try:
            raw = (urlsplit(raw).path or "/") if raw.startswith(("http://", "https://")) else "/*"
        except ValueError:  # an invalid host
            raw = ""
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1"), value.decode("latin-1")
        headers[key] = f"{headers[key]},{text}" if key in headers else text
    peer = str(scope["client"][0]) if scope["client"] else ""
    return Request(scope["method"], unquote(raw, errors="replace"), query, headers, raw, peer)
