"""Daemons forked from one process that has imported everything: an import takes 0.8 s of processor, a fork 20 ms.

A forked process is a true one, with its own number, environment, streams and end; it is a child of the tests' process,
which waits for it, kills it and gets its exit status as of any other. That the command starts by itself is proved where
a test takes `installed` (conftest.py), and by the tests of the other commands.
"""

import atexit
import ctypes
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from tests.programs import TETHERED, now, slack

_SUBREAPER, _DEATH_SIGNAL = 36, 1  # prctl(2)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


class Process:
    """A child, as `subprocess.Popen` shows one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Its exit status, negative for a signal's number; None while it runs."""
        with self._lock:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self, timeout: float) -> int:
        """Its exit status, once it has one."""
        until = now() + timeout
        while (status := self.poll()) is None:
            if now() > until:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.01)
        return status

    def send_signal(self, number: int) -> None:
        """While it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Forge:
    """The tests' end: starts the program that is forked, and orders the forks."""

    def __init__(self, program: Path, python: str, environment: Mapping[str, str]) -> None:
        _prctl(_SUBREAPER, 1)  # who is forked twice becomes this process's child
        self._channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with other:
            self._program = subprocess.Popen(
                [*TETHERED, python, str(program), str(other.fileno())],
                env=environment, stdin=subprocess.DEVNULL, pass_fds=[other.fileno()],
            )  # fmt: skip
        atexit.register(self.close)

    def start(self, arguments: list[str], environment: Mapping[str, str], output: Path) -> Process:
        """Fork it: from here on it has these arguments, this environment, and this file for what it says."""
        order = {"arguments": arguments, "environment": dict(environment), "output": str(output), "parent": os.getpid()}
        with self._lock:
            self._channel.send(json.dumps(order).encode())
            answer = self._channel.recv(64)
        assert answer, f"{self._program.args} has ended, or cannot be imported"
        return Process(int(answer))

    def close(self) -> None:
        """No more forks; those that were made live on."""
        self._channel.close()
        self._program.wait(timeout=slack(10))


def forked(descriptor: int) -> list[str]:
    """The program's end: comes back in each fork with its arguments, once all else is as a fresh process has it."""
    gc.collect()
    gc.freeze()  # what is shared stays so
    channel = socket.socket(fileno=descriptor)
    while packet := channel.recv(1 << 20):
        between = os.fork()
        if not between:
            break
        os.waitpid(between, 0)
    else:
        sys.exit()
    between = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == between:
        time.sleep(0.001)
    order = json.loads(packet)
    _prctl(_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != order["parent"]:
        sys.exit("the tests have ended")
    with channel:
        channel.send(str(os.getpid()).encode())
    os.environ.clear()
    os.environ.update(order["environment"])
    said = os.open(order["output"], os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(said, stream)
    os.close(said)
    return list(order["arguments"])
