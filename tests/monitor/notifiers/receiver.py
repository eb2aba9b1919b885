"""A message, a receiver on loopback, and how a notifier of a configuration fails."""

import http.server
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from megatron_monitor.config import load
from megatron_monitor.incidents import Transition
from megatron_monitor.notifiers import DeliveryError, Notifier

PATIENCE = 10.0  # seconds that a test waits before it fails; none waits that long when all is well

HANG = Transition(
    run="tr11-176B",
    incident="hang",
    status="firing",
    severity="critical",
    time=1_700_000_000.0,
    summary="hung in training after iteration 4100",
    iteration=4100,
    onset_iteration=4099,
    phase="training",
    evidence={"silence_seconds": 321.5, "last_line": "iteration 4100/ 115311"},
)


class Receiver(http.server.ThreadingHTTPServer):
    """A receiver on loopback that keeps what it was sent and answers as scripted; 0 is: not until the test ends."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Answer)
        self.answers: list[int] = []
        self.judge: Callable[[bytes], tuple[int, str]] = lambda _: (200, "")
        """Status and body of an answer for which nothing is scripted (services.py)."""
        self.headers = dict[str, str]()
        """Further headers of its answers; a redirect leads to its own address."""
        self.says = b""
        """The body of its answers."""
        self.received: list[tuple[str, dict[str, str], Any]] = []
        self.released = threading.Event()

    @property
    def url(self) -> str:
        """The address."""
        return f"http://127.0.0.1:{self.server_address[1]}/hook"

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """What came so far."""
        return [body for _, _, body in list(self.received)]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gave up is what some tests are about."""


class _Answer(http.server.BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        is_json = self.headers["Content-Type"] == "application/json" and "Content-Encoding" not in self.headers
        self.server.received.append((self.path, dict(self.headers.items()), json.loads(body) if is_json else body))
        status, says = self.server.judge(body)
        status, says = (self.server.answers.pop(0), "") if self.server.answers else (status, says)
        if status == 0:
            self.server.released.wait(PATIENCE)
            return
        if status == 1:
            self.wfile.write(b"no HTTP at all\r\n\r\n")
            return
        self.send_response(status)
        redirect = {"Location": self.server.url} if 300 <= status < 400 else {}
        for name, value in (redirect | self.server.headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(says.encode() or self.server.says)

    def do_GET(self) -> None:
        self.server.received.append((self.path, {}, "a GET"))

    def log_message(self, *args: object) -> None:
        pass


def built(text: str) -> Notifier:
    """The notifier of a configuration text."""
    (notifier,) = load(f"notifiers: [{{name: x, {text}}}]").notifiers
    assert isinstance(notifier, Notifier)
    return notifier


def failure(notifier: Notifier) -> tuple[str, bool]:
    """How a delivery fails: message and permanence."""
    with pytest.raises(DeliveryError) as caught:
        notifier.send(HANG)
    return str(caught.value), caught.value.permanent
