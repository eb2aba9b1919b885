"""Standard input and FIFOs: their messages, and the daemon that ends when they do."""

import os
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from megatron_monitor.follow.follower import Follower
from megatron_monitor.follow.inbox import Inbox
from megatron_monitor.follow.messages import CaughtUp, Data, Message, Opened, Scanned, Unreadable
from megatron_monitor.follow.os_layer import OsLayer
from megatron_monitor.follow.patterns import WatchedPath
from megatron_monitor.follow.pipes import STDIN, PipeThread, is_pipe
from megatron_monitor.system.clock import SystemClock
from tests.e2e.conftest import TETHERED
from tests.programs import MONITOR, slack

_ITERATION = (
    " iteration {0:8d}/     500 | consumed samples: {0:12d} | elapsed time per iteration (ms): 905.5 | lm loss: 2.1 |\n"
)
_CRASH = """\
Traceback (most recent call last):
  File "/work/pretrain_gpt.py", line 215, in <module>
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""


def _until(holds: Callable[[], bool]) -> None:
    for _ in range(2000):
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError


class Pipe:
    """A FIFO with the thread that reads it."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path, self.inbox, self.stopping = str(path), Inbox(64), threading.Event()
        self.thread = PipeThread(self.path, self.inbox, SystemClock(), self.stopping)
        self.taken: list[Message] = []
        self.thread.start()

    def take(self) -> list[Message]:
        """All messages so far."""
        self.taken += self.inbox.get_some()
        return self.taken

    def has(self, kind: type[Message]) -> bool:
        """Has one of that kind come?"""
        return any(isinstance(message, kind) for message in self.take())


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Pipe]:
    """One of a test."""
    pipe = Pipe(tmp_path / "log")
    yield pipe
    pipe.stopping.set()
    pipe.thread.join(slack(10.0))
    assert not pipe.thread.is_alive()


def test_messages(pipe: Pipe) -> None:
    """What is in the pipe first is backlog, what comes behind is live; the last writer's end is the stream's."""
    with open(pipe.path, "wb", buffering=0) as writer:
        writer.write(b"one\n")
        _until(lambda: pipe.has(CaughtUp) and pipe.has(Scanned))
        writer.write(b"two")
        _until(lambda: sum(isinstance(message, Data) for message in pipe.take()) == 2)
        assert not pipe.thread.over
    pipe.thread.join(slack(10.0))
    assert pipe.thread.over
    kinds = [type(message) for message in pipe.take()]
    assert kinds == [Opened, Data, CaughtUp, Scanned, Data]
    assert [(m.offset, m.data) for m in pipe.taken if isinstance(m, Data)] == [(0, b"one\n"), (4, b"two")]


def test_the_first_writer_is_waited_for(pipe: Pipe) -> None:
    """A FIFO without a writer is no stream that has ended."""
    _until(lambda: pipe.has(Scanned))
    assert not pipe.thread.over


def test_a_stream_that_is_not_there(tmp_path: Path) -> None:
    """It is said, and it is over."""
    inbox = Inbox(64)
    thread = PipeThread(str(tmp_path / "none"), inbox, SystemClock(), threading.Event())
    thread.run()
    assert isinstance(inbox.get_some()[0], Unreadable)
    assert thread.over


def test_what_is_a_stream(tmp_path: Path) -> None:
    """Standard input, and a FIFO that is named; no file, no pattern, nothing that is absent."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").touch()
    found = [path for path in (STDIN, *map(str, (tmp_path / "fifo", tmp_path / "file", tmp_path / "none")))
             if is_pipe(path, OsLayer())]  # fmt: skip
    assert found == [STDIN, str(tmp_path / "fifo")]
    assert not is_pipe(str(tmp_path / "fif*"), OsLayer())


def test_files_beside_a_stream_go_on(tmp_path: Path) -> None:
    """The follower is over only where nothing but streams is followed."""
    os.mkfifo(tmp_path / "fifo")
    for patterns, over in (([tmp_path / "fifo"], True), ([tmp_path / "fifo", tmp_path / "file"], False)):
        follower = Follower([WatchedPath(str(path)) for path in patterns], {}, Inbox(64))
        follower.start()
        with open(tmp_path / "fifo", "wb", buffering=0) as writer:
            writer.write(b"x\n")
            _until(lambda follower=follower: any(one.file_system == "pipe" for one in follower.status()))  # type: ignore[misc]
        if over:
            _until(lambda follower=follower: follower.over)  # type: ignore[misc]
        else:
            time.sleep(0.3)
            assert not follower.over
        assert follower.stop(10.0)


def test_the_daemon_on_standard_input(tmp_path: Path) -> None:
    """It shows and judges what comes, tells of the crash that ends it, and ends with a message."""
    log = tmp_path / "log"
    with log.open("w") as errors:
        daemon = subprocess.Popen(
            [*TETHERED, *MONITOR, "run", "--listen", "127.0.0.1:0", "-"],
            stdin=subprocess.PIPE, stderr=errors, env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
        )  # fmt: skip
    assert daemon.stdin is not None
    try:
        daemon.stdin.write("".join(map(_ITERATION.format, range(1, 20))).encode())
        daemon.stdin.flush()
        _until(lambda: "listening on" in log.read_text())
        url = log.read_text().split("listening on ")[1].split()[0].strip('"') + "metrics"

        def metrics() -> str:
            with urllib.request.urlopen(url, timeout=slack(10)) as answer:
                return str(answer.read().decode())

        _until(lambda: 'megatron_iteration{run="stdin"} 19.0' in metrics())
        assert daemon.poll() is None
        daemon.stdin.write((_ITERATION.format(20) + _CRASH).encode().removesuffix(b"\n"))
        daemon.stdin.close()
        assert daemon.wait(30.0) == 0
    finally:
        daemon.kill()
        daemon.wait()
    assert "incident=crash status=firing" in log.read_text()
    assert "the input has ended after 23 lines" in log.read_text()
