"""Standard input: its messages, and the daemon that ends when it does."""

import os
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from megatron_monitor.follow.inbox import Inbox
from megatron_monitor.follow.messages import CaughtUp, Data, Message, Opened, Scanned
from megatron_monitor.follow.pipes import PipeThread
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


def test_messages() -> None:
    """What is in the pipe first is backlog, what comes behind is live; the last writer's end is the stream's."""
    reader, writer = os.pipe()
    inbox, taken = Inbox(64), list[Message]()
    thread = PipeThread(inbox, SystemClock(), threading.Event(), reader)
    thread.start()

    def kinds() -> list[type]:
        taken.extend(inbox.get_some())
        return [type(message) for message in taken]

    os.write(writer, b"one\n")
    _until(lambda: kinds() == [Opened, Data, CaughtUp, Scanned])
    os.write(writer, b"two")
    _until(lambda: kinds() == [Opened, Data, CaughtUp, Scanned, Data])
    assert not thread.over
    os.close(writer)
    thread.join(slack(10.0))
    assert thread.over
    assert [(m.offset, m.data) for m in taken if isinstance(m, Data)] == [(0, b"one\n"), (4, b"two")]
    os.close(reader)


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
