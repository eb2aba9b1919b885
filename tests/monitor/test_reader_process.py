"""Two processes at work: what signals, exits and buffers do to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.monitor.logs import log, simulated

_SCRIPT = """
import atexit, os, signal, sys
from monitor import once, reader_process
from monitor.core import Core
from monitor.ahead import Parsed
from monitor.commands.run import _once
from monitor.commands.settings import configured

once.WORTH_LINES = 1
reader_process.may_part = lambda: True
reader_process._PIPE_BYTES = 4096
parsed = Core._HANDLERS[Parsed]

def waiting(core, message, now):
    os.write(2, b"parted\\n")
    if sys.argv[2] == "wait":
        signal.pause()
    parsed(core, message, now)

Core._HANDLERS[Parsed] = waiting
atexit.register(print, "exit")
print("begin")
sys.exit(_once(configured(None, (), [sys.argv[1]])))
"""


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """A reading of several turns in a process group of its own, as a terminal has it; its output is buffered."""
    log(tmp_path / "run.log", simulated(iterations=16_000))
    started: list[subprocess.Popen[bytes]] = []

    def start(how: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", _SCRIPT, str(tmp_path / "run.log"), how],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
        )  # fmt: skip
        started.append(process)
        assert process.stderr is not None
        assert process.stderr.readline() == b"parted\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_nothing_is_written_twice(begin: Callable[[str], subprocess.Popen[bytes]]) -> None:
    """What the parent had in its buffers and has to do at its exit is its own."""
    process = begin("go")
    out, err = process.communicate()
    assert process.returncode == 0
    assert set(err.splitlines()) <= {b"parted"}
    assert (out.count(b"begin\n"), out.count(b"exit\n")) == (1, 1)
    assert out.count(b"# TYPE megatron_iteration gauge") == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_other_process_never_outlives_the_first(
    number: signal.Signals, begin: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    """Its end of the output pipe is open for as long as it lives."""
    process = begin("wait")
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (-number, b"")


def test_interrupt(begin: Callable[[str], subprocess.Popen[bytes]]) -> None:
    """Ctrl-C comes to both."""
    process = begin("wait")
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert out == b"begin\nexit\n"
    assert err.count(b"KeyboardInterrupt") == 1
