"""A push of the forwarder: which answers confirm lines."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from megatron_monitor.forward import Target


class Answering(ThreadingHTTPServer):
    """Answers with `status` and `headers`, and notes what is asked."""

    def __init__(self) -> None:
        self.status, self.headers, self.asked = 204, dict[str, str](), list[tuple[str, str | None]]()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", "0")))
                outer.asked.append((self.command, self.headers.get("Authorization")))
                self.send_response(outer.status)
                for name, value in outer.headers.items():
                    self.send_header(name, value)
                self.end_headers()

            def do_GET(self) -> None:
                self.do_POST()

            def log_message(self, *_arguments: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_address[1]}/loki/api/v1/push"


@pytest.fixture
def receiver() -> Iterator[Answering]:
    """One that accepts at first."""
    with Answering() as server:
        yield server
        server.shutdown()


@pytest.mark.parametrize(
    ("status", "retry_after", "wait"),
    [(204, None, None), (400, None, None), (413, None, None), (415, None, None), (200, None, 0.0), (401, None, 0.0),
     (404, None, 0.0), (429, "7", 7.0), (503, "86400", 30.0), (503, "²", 0.0), (503, "soon", 0.0)],
)  # fmt: skip
def test_only_a_receiver_confirms_lines(
    receiver: Answering, status: int, retry_after: str | None, wait: float | None
) -> None:
    """204 does, and lines that can never be read are dropped; a page of another server is no confirmation."""
    receiver.status, receiver.headers = status, {} if retry_after is None else {"Retry-After": retry_after}
    assert Target(receiver.url).push(b"lines") == wait


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(receiver: Answering, status: int) -> None:
    """The lines would not be sent with it, its answer would confirm them, and the token would go to another server."""
    with Answering() as other:
        receiver.status, receiver.headers = status, {"Location": other.url}
        assert Target(receiver.url).push(b"lines") == 0.0
        assert (len(receiver.asked), other.asked) == (1, [])
        other.shutdown()
