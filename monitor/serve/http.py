"""HTTP: a small WSGI router around prometheus_client's app, in cheroot's bounded thread pool.

The stock server of prometheus_client answers every path with the metrics, keeps one thread an idle connection and has
no timeout. Here threads, header bytes and idle time are bounded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from cheroot.wsgi import Server
from prometheus_client import make_wsgi_app

from monitor.clock import Clock
from monitor.metrics import Snapshot
from monitor.serve.collector import build_registry
from monitor.serve.views import reply_to

StartResponse = Callable[[str, list[tuple[str, str]]], Any]
_HEALTHY_WITHIN = (
    30.0  # seconds since the loop last turned; a turn takes milliseconds, a full disk or swap may stall it
)
_THREADS = 8
_TIMEOUT = 10  # seconds that a client may take to send a request
_MAX_HEADER_BYTES = 16 * 1024
_SECURITY = [
    ("X-Content-Type-Options", "nosniff"),
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("Referrer-Policy", "no-referrer"),
]


class App:
    """The WSGI application. Reads `snapshot()` once a request."""

    def __init__(self, snapshot: Callable[[], Snapshot], clock: Clock) -> None:
        self._snapshot = snapshot
        self._clock = clock
        self._metrics = make_wsgi_app(build_registry(snapshot))

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Route one request."""
        path, method = environ.get("PATH_INFO", "/") or "/", environ.get("REQUEST_METHOD", "GET")
        if method not in ("GET", "HEAD"):
            return _text(start_response, "405 Method Not Allowed", "only GET and HEAD are served here\n", method)
        if path == "/metrics":
            body = self._metrics({**environ, "REQUEST_METHOD": "GET"}, start_response)
            return [] if method == "HEAD" else body
        if path == "/-/healthy":
            return self._healthy(start_response, method)
        snapshot = self._snapshot()
        if path == "/-/ready":
            status = "200 OK" if snapshot.ready else "503 Service Unavailable"
            return _text(start_response, status, "ready\n" if snapshot.ready else "reading the backlog\n", method)
        reply = reply_to(path, environ, snapshot, self._clock.wall())
        if reply is None:
            return _text(start_response, "404 Not Found", "no such page; try / or /metrics\n", method)
        return _answer(start_response, reply.status, reply.content_type, reply.body, method, reply.headers)

    def _healthy(self, start_response: StartResponse, method: str) -> Iterable[bytes]:
        idle = self._clock.wall() - self._snapshot().loop_turned_at
        if idle < _HEALTHY_WITHIN:
            return _text(start_response, "200 OK", "healthy\n", method)
        return _text(start_response, "503 Service Unavailable", f"the loop has not turned for {idle:.0f} s\n", method)


def _answer(
    start_response: StartResponse,
    status: str,
    content_type: str,
    body: bytes,
    method: str,
    more: tuple[tuple[str, str], ...] = (),
) -> Iterable[bytes]:
    headers = [("Content-Type", content_type), ("Content-Length", str(len(body))), *more]
    if "Cache-Control" not in dict(more):
        headers.append(("Cache-Control", "no-store"))
    start_response(status, headers + _SECURITY)
    return [] if method == "HEAD" else [body]


def _text(start_response: StartResponse, status: str, text: str, method: str) -> Iterable[bytes]:
    return _answer(start_response, status, "text/plain; charset=utf-8", text.encode(), method)


class HttpServer:
    """Binds at once (OSError if the address is taken), serves from a thread of its own."""

    def __init__(self, host: str, port: int, app: App) -> None:
        self._server = Server(
            (host, port), app, numthreads=_THREADS, max=4 * _THREADS, request_queue_size=64, timeout=_TIMEOUT,
            server_name="megatron-monitor", shutdown_timeout=2,
        )  # fmt: skip
        self._server.max_request_header_size = _MAX_HEADER_BYTES
        self._server.max_request_body_size = 1
        self._server.prepare()
        self._thread = threading.Thread(target=self._server.serve, name="http", daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens; the port is the real one if 0 was asked for."""
        host, port = self._server.bind_addr[:2]
        return str(host), int(port)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Close the socket and end the threads."""
        self._server.stop()
        self._thread.join(timeout=3)
