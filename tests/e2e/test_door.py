"""The real daemon's door while others hold it open."""

import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.e2e.conftest import Start
from tests.lines import line
from tests.programs import slack

pytestmark = pytest.mark.e2e

ASKED = b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_who_does_not_read_holds_no_scrape_up(start: Start, tmp_path: Path) -> None:
    """400 clients that ask again and again for all pages and take nothing: health and metrics within a second each."""
    for number in range(5):
        (tmp_path / f"{number}.log").write_text("".join(map(line, range(1, 200))))
    daemon = start(f"{tmp_path}/*.log")
    host, port = daemon.address.rsplit(":", 1)
    with ExitStack() as stack:
        for number in range(400):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            client.connect((host, int(port)))
            client.setblocking(False)
            with suppress(OSError):
                client.send(ASKED % (b"metrics", b"api/v1/runs", b"", b"-/healthy")[number % 4] * 100)
        took = []
        for path in ["/-/healthy", "/metrics"] * 5:
            began = time.monotonic()  # noqa: TID251
            assert daemon.status(path) == 200
            took.append(time.monotonic() - began)  # noqa: TID251
    assert max(took) < slack(1.0)
