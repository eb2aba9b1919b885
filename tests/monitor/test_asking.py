"""Who answers for the daemon on this host."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from megatron_monitor.commands.asking import DaemonError, ask

ANSWER = """
import http.server, os, sys
class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = sys.argv[2]
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")
    def log_message(self, *_):
        pass
server = http.server.HTTPServer(("127.0.0.1", 0), Answer)
os.setuid(int(sys.argv[1]))
print(server.server_address[1], flush=True)
server.serve_forever()
"""


@contextmanager
def answering(uid: int, version: str = "HTTP/1.1") -> Iterator[str]:
    """A server of that user; its address."""
    command = [sys.executable, "-c", ANSWER, str(uid), version]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.kill()


def test_the_daemon_belongs_to_its_owner() -> None:
    """An answer of another user is none, because the port may be taken while the daemon is down. So is one whose sender
    has left before it could be looked at.
    """
    own = os.geteuid()
    with answering(own) as address:
        assert ask(address, "/x", owners={own}) == {}
        with pytest.raises(DaemonError, match=f"is answered by uid {own}, who does not own"):
            ask(address, "/x", owners={own + 1})
    with answering(own, "HTTP/1.0") as address:
        assert ask(address, "/x") == {}
        with pytest.raises(DaemonError, match="uid -1"):
            ask(address, "/x", owners={own})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_port_that_another_user_has_taken() -> None:
    """Root asks, and the daemon may be root's or its own user's."""
    with answering(65533) as address:
        assert ask(address, "/x", owners={0, 65533}) == {}
        with pytest.raises(DaemonError, match="is answered by uid 65533"):
            ask(address, "/x", owners={0})
