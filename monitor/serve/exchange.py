"""What the server and its applications hand each other: requests, replies, and the limits of both."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import h11


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
    """To take the answer: three times the usual scrape timeout."""
    answers: int = 16
    """Answers that are rendered or sent at once: each may be some MB."""
    slow: float = 1.0
    """An answer that has been on its way for longer gives way to a new one when there are too many,"""
    stalled: float = 0.25
    """and so does one of which the client has taken nothing for so long."""
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
    """Unquoted once."""
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


def request_of(head: h11.Request) -> Request:
    """The request whose head this is."""
    target = head.target.decode("latin-1")
    if not target.startswith("/"):  # absolute form, as to a proxy; anything else names no page
        parts = urlsplit(target) if target.startswith(("http://", "https://")) else None
        target = f"{parts.path or '/'}?{parts.query}" if parts else "/*"
    path, _, query = target.partition("?")
    headers: dict[str, str] = {}
    for name, value in head.headers:  # h11 gives the names in lower case
        key, text = name.decode("latin-1"), value.decode("latin-1")
        headers[key] = f"{headers[key]},{text}" if key in headers else text
    return Request(head.method.decode("latin-1"), unquote(path, errors="replace"), query, headers, path)
