"""`forward` as a process, and a real receiver that loses answers: kill -9 of the forwarder, each line once."""

import gzip
import hashlib
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from megatron_monitor.cli import command
from megatron_monitor.config import load
from megatron_monitor.pushed import PATTERN, Agent, run_at
from megatron_monitor.receiver.server import Receiver
from megatron_monitor.serve.exchange import Reply, Request, text_reply
from megatron_monitor.system.clock import SystemClock
from tests.programs import MONITOR, TETHERED, slack, wait

pytestmark = pytest.mark.e2e


class Flaky:
    """A receiver of which each third answer is lost, and which is away from time to time."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        digest = hashlib.sha256(b"5f1c9b2e77d0").hexdigest()
        settings = f"listen: 127.0.0.1:0, directory: {directory}, tenants: {{a: [{digest}]}}"
        self.receiver = Receiver(load(f"receiver: {{{settings}}}"), SystemClock())
        self.requests = 0
        self.away = False
        self.receiver.server._app = self._flaky
        self.receiver.start()

    def _flaky(self, request: Request) -> Reply:
        self.requests += 1
        if self.away and b"heartbeat" not in gzip.decompress(request.body):
            return text_reply(429, "away\n", ("Retry-After", "1"))
        reply = self.receiver(request)
        return text_reply(503, "lost\n") if self.requests % 3 == 0 else reply

    def texts(self, run: str) -> list[str]:
        """The lines of a run's streams."""
        found = (path.read_text().splitlines() for path in self.directory.glob(PATTERN) if run_at(str(path)) == run)
        return [re.sub(r"^\S+ (<14>1 - \S+ log - - - )?", "", line) for lines in found for line in lines]


@pytest.fixture
def forward(tmp_path: Path) -> object:
    """Starts forwarders; they are killed at the end."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(*arguments: str) -> subprocess.Popen[bytes]:
        program = [*TETHERED, *MONITOR, "forward", "--state", str(tmp_path / "state")]
        running.append(subprocess.Popen([*program, *arguments]))
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.wait(timeout=slack(5))


def test_each_line_once(tmp_path: Path, forward: Callable[..., subprocess.Popen[bytes]]) -> None:
    """The file is rotated, the forwarder is killed, answers are lost, the receiver is away: the spool holds what was
    written, in its order; a line without an end waits for it. Heartbeats come meanwhile.
    """
    flaky = Flaky(tmp_path / "spool")
    host, port = flaky.receiver.server.address
    path, written = tmp_path / "logs" / "tr11.out", list[str]()
    path.parent.mkdir()

    def write(count: int) -> None:
        lines = [f"line {len(written) + number}" for number in range(count)]
        written.extend(lines)
        with path.open("a") as stream:
            stream.write("".join(f"{line}\n" for line in lines))

    def begin() -> subprocess.Popen[bytes]:
        return forward(
            "--to", f"http://{host}:{port}", "--heartbeat", "200ms", "--agent", "n7",
            "--token-file", str(tmp_path / "token"), f"{path.parent}/*.out",
        )  # fmt: skip

    (tmp_path / "token").write_text("5f1c9b2e77d0\n")
    write(50)
    os.utime(path, (1.7e9, 1.7e9))  # it comes as one message
    process = begin()
    wait(lambda: len(flaky.texts("a/tr11")) >= 50, 10.0, "the first lines")
    write(20)
    process.kill()
    flaky.away = True
    path.rename(f"{path}.1")
    write(30)
    process = begin()
    before = flaky.requests
    wait(lambda: flaky.requests > before, 10.0, "a push that is refused")
    process.kill()
    flaky.away = False
    process = begin()
    with path.open("a") as stream:
        stream.write("half")
    wait(lambda: len(flaky.texts("a/tr11")) >= 100, 15.0, lambda: str(flaky.texts("a/tr11")))
    with path.open("a") as stream:
        stream.write(" and half\n")
    wait(lambda: flaky.texts("a/tr11")[-1:] == ["half and half"], 10.0, "the last line")
    assert flaky.texts("a/tr11") == [*written, "half and half"]
    assert list(flaky.receiver.agents.report(0.0).agents) == ["a%2Fn7"]
    process.terminate()
    assert process.wait(timeout=slack(10)) == 0
    flaky.receiver.stop(1.0)


def test_it_is_alive_while_its_lines_are_refused(
    tmp_path: Path, forward: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """Its heartbeats say so, and after it nothing is lost."""
    flaky = Flaky(tmp_path / "spool")
    host, port = flaky.receiver.server.address
    (tmp_path / "token").write_text("5f1c9b2e77d0\n")
    (tmp_path / "a.log").write_text("one\n")
    flaky.away = True
    forward(
        "--to", f"http://{host}:{port}", "--heartbeat", "200ms", "--agent", "n7",
        "--token-file", str(tmp_path / "token"), str(tmp_path / "a.log"),
    )  # fmt: skip

    def agent() -> Agent:
        return flaky.receiver.agents.report(SystemClock.wall()).agents.get("a%2Fn7", Agent(0.0))

    wait(lambda: agent().refused, 10.0, "a heartbeat")
    before = agent()
    wait(lambda: agent().refused > before.refused + 1.0, 10.0, "further ones")
    assert agent().seen == before.seen
    flaky.away = False
    wait(lambda: agent().seen > before.seen and flaky.texts("a/a") == ["one"], 10.0, "the lines")
    flaky.receiver.stop(1.0)


def test_what_it_refuses() -> None:
    """A label without a value, an address that is none: exit 2 and a sentence."""
    for arguments, said in (
        (["--to", "http://x", "--label", "run", "a"], "--label run: expected NAME=VALUE"),
        (["--to", "x:1", "a"], "expected an http"),
    ):
        done = CliRunner().invoke(command("forward"), arguments)
        assert (done.exit_code, said in done.output) == (2, True), done.output
