"""What the server and its applications hand each other: requests, replies, and the limits of both."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, bytes and counts."""

    connections: int = 512
    """At once; fewer where the process may not open four times as many files."""
    head_bytes: int = 16 * 1024
    """A request line with its headers: browsers and Prometheus stay below 2 KiB."""
    handshake: float = 5.0
    """For a TLS handshake: three round trips."""
    head: float = 10.0
    """From a request's first byte to its last: all of it fits one packet."""
    idle: float = 75.0
    """Between two requests of one connection: Prometheus's usual scrape interval is 15 s to 60 s."""
    answer: float = 30.0
    """To make an answer, and to take it once the connection is to end: three times the usual scrape timeout."""
    unread: int = 64 << 20
    """Bytes of all answers that their clients have not read: eight scrapes of 1,000 runs."""
    send_buffer: int = 256 * 1024
    """Of the system, for each connection: so much is rendered for a client that pipelines and never reads."""
    threads: int = 4
    """That render. Python runs one at a time in any case."""
    body: int = 0
    """Bytes of a request's body; 0: none has one."""
    bodies: int = 256 << 20
    """Of all bodies that are held at once."""
    upload: float = 60.0
    """For a body to come whole."""
    certificates: float = 1.0
    """Between two looks at the certificate's files, which a new connection triggers."""


class Request(NamedTuple):
    """A GET or HEAD without a body; where bodies are read another method, which the application may refuse."""

    method: str = "GET"
    path: str = "/"
    """Unquoted once. Empty: the request names none that can be understood."""
    query: str = ""
    headers: Mapping[str, str] = MappingProxyType({})
    """By lower-case name."""
    raw_path: str = ""
    """As the client wrote it, still quoted."""
    peer: str = ""
    """The client's address."""
    body: bytes = b""


class Reply(NamedTuple):
    """What goes back; for HEAD the server leaves the body out."""

    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


Application = Callable[[Request], Reply]


def text_reply(status: int, text: str, *headers: tuple[str, str]) -> Reply:
    """A short answer in words."""
    return Reply(status, "text/plain; charset=utf-8", text.encode(), headers)


def too_large(request: Request) -> Reply:
    """What who sends a body is told where none is read."""
    if request.method in ("GET", "HEAD"):
        return text_reply(413, "a request has no body here\n")
    return text_reply(405, "only GET and HEAD are served here\n")


def request_of(scope: Mapping[str, Any]) -> Request:
    """The request of an ASGI scope, still without its body."""
    raw, query = scope["raw_path"].decode("latin-1"), scope["query_string"].decode("latin-1")
    if not raw.startswith("/"):  # absolute form, as to a proxy; anything else names no page
        try:
            raw = (urlsplit(raw).path or "/") if raw.startswith(("http://", "https://")) else "/*"
        except ValueError:  # a host that is none
            raw = ""
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:  # in lower case
        key, text = name.decode("latin-1"), value.decode("latin-1")
        headers[key] = f"{headers[key]},{text}" if key in headers else text
    peer = str(scope["client"][0]) if scope["client"] else ""
    return Request(scope["method"], unquote(raw, errors="replace"), query, headers, raw, peer)
