"""HTTP: a small WSGI router around prometheus_client's app. server.py brings the requests.

Law: a request reads one Snapshot and a clock, nothing else: no file, no state of the loop's. The loop makes the
Snapshot when it is asked; who asks waits for a moment at most (latest.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from monitor.clock import Clock
from monitor.metrics import Snapshot
from monitor.serve.exposition import Exposition
from monitor.serve.views import reply_to

StartResponse = Callable[[str, list[tuple[str, str]]], Any]
_HEALTHY_WITHIN = (
    30.0  # seconds since the loop last turned; a turn takes milliseconds, a full disk or swap may stall it
)
_NOTHING = Snapshot(at=0.0)  # what a static file shows of the runs: nobody is asked for it
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

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        clock: Clock,
        turned: Callable[[], float] | None = None,
        figures: Callable[[], Snapshot] | None = None,
    ) -> None:
        """`turned` gives the monotonic second of the loop's last turn; without it the snapshot's wall clock serves.
        `figures` gives a snapshot of which no page is asked for.
        """
        self._snapshot = snapshot
        self._figures = figures or snapshot
        self._clock = clock
        self._turned = turned
        self._metrics = Exposition(self._figures)

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
        if path == "/-/ready":
            ready = self._figures().ready
            status = "200 OK" if ready else "503 Service Unavailable"
            return _text(start_response, status, "ready\n" if ready else "reading the backlog\n", method)
        snapshot = _NOTHING if path.startswith("/static/") else self._snapshot()
        reply = reply_to(path, environ, snapshot, self._clock.wall())
        if reply is None:
            return _text(start_response, "404 Not Found", "no such page; try / or /metrics\n", method)
        return _answer(start_response, reply.status, reply.content_type, reply.body, method, reply.headers)

    def _healthy(self, start_response: StartResponse, method: str) -> Iterable[bytes]:
        if self._turned is not None:  # the wall clock may jump; a stalled loop must not look alive for that
            idle = self._clock.monotonic() - self._turned()
        else:
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
