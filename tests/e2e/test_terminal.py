"""Commands on a real terminal of 80 columns: `top`, and the progress bars of long commands."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from megatron_monitor.simulate import Scenario
from tests.commands import command, log_of
from tests.e2e.conftest import RunningDaemon, Start
from tests.lines import line
from tests.programs import MONITOR, get, now, slack

pytestmark = pytest.mark.e2e


class Terminal:
    """A program on a pseudo-terminal of 80 by 24."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process, self._master, self._seen = process, master, ""

    def wait(self, words: str, timeout: float = 20.0) -> str:
        """Read until the words have come since the last call. What has come."""
        began = now()
        while words not in self._seen:
            assert now() - began < slack(timeout), f"never: {words}; {self._seen}"
            self._read()
        seen, self._seen = self._seen, ""
        return seen

    def _read(self) -> None:
        if select.select([self._master], [], [], 0.1)[0]:
            self._seen += os.read(self._master, 65536).decode("utf-8", "replace")

    def press(self, key: str) -> None:
        """Press a key."""
        os.write(self._master, key.encode())

    def ended(self, by: signal.Signals | None = None) -> int:
        """The exit status, after a signal. It is sent again: Python ignores an interrupt in a finalizer."""
        began, sent = now(), float("-inf")
        while self.process.poll() is None and now() - began < slack(10.0):
            if by is not None and now() - sent > 3.0:
                self.process.send_signal(by)
                sent = now()
            self._read()
        return int(self.process.wait(timeout=slack(5)))


@contextmanager
def terminal(*arguments: str) -> Iterator[Terminal]:
    """A command on its terminal, which must be as it was when the command has ended."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    modes = termios.tcgetattr(slave)
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
    environment["TERM"] = "xterm-256color"
    with subprocess.Popen([*MONITOR, *arguments], stdin=slave, stdout=slave, stderr=slave, env=environment) as process:
        try:
            yield Terminal(process, master)
            assert termios.tcgetattr(slave) == modes
        finally:
            process.kill()
            os.close(master)
            os.close(slave)


def followed(start: Start, log: Path, *more: str) -> RunningDaemon:
    """A daemon on a log of 40 iterations."""
    log.write_text("".join(line(number) for number in range(1, 41)))
    daemon = start(str(log), *more)
    daemon.wait(lambda: "training" in daemon.get("/api/v1/runs"))
    return daemon


def test_top_follows_a_daemon(start: Start, tmp_path: Path) -> None:
    """The run, its next iteration, then that the daemon has gone; Ctrl-C ends it."""
    log = tmp_path / "train.log"
    daemon = followed(start, log)
    with terminal("top", daemon.address, "--interval", "0.3") as top:
        top.wait("4.0 %")
        with log.open("a") as stream:
            stream.write(line(50))
        top.wait("5.0 %")
        daemon.kill()
        top.wait("not updated")
        assert top.ended(signal.SIGINT) == 0


def test_a_pipe_gets_lines_once(start: Start, tmp_path: Path) -> None:
    """Not a terminal: one table without escape sequences, then the end."""
    daemon = followed(start, tmp_path / "train.log")
    done = command("top", f"http://{daemon.address}")
    assert done.stderr == ""
    assert done.stdout.splitlines()[2].split()[:4] == ["train", "●", "training", "40"]
    assert "\x1b" not in done.stdout


def test_keys_of_top(start: Start, tmp_path: Path) -> None:
    """Enter shows the whole incident with the log around its line, Enter again the list, and q quits."""
    daemon = followed(start, tmp_path / "train.log", "--set", "detectors.hang.minimum=3s")
    with (tmp_path / "train.log").open("a") as stream:
        stream.write(line(50))
    with terminal("top", daemon.address, "--interval", "0.3") as top:
        top.wait("hung in training")
        top.press("\r")
        top.wait("critical while training", 5.0)
        top.press("\x1b[B")
        top.press("\r")
        top.wait("Enter show", 5.0)
        top.press("q")
        assert top.ended() == 0


def test_replay_shows_how_much_is_read(tmp_path: Path) -> None:
    """Two files of one run are one bar, by their bytes; it is gone when the result stands there."""
    log_of(tmp_path / "a.out", Scenario(iterations=4000))
    (tmp_path / "a.err").write_text("a warning\n" * 200_000)
    with terminal("replay", str(tmp_path)) as replay:
        replay.wait("100%")
        replay.wait("= a: finished after iteration 4000")
        assert replay.ended() == 0
    assert command("replay", tmp_path).stderr == ""


def test_the_demo_shows_its_run_and_its_hang() -> None:
    """It prints the address of the page. The bar stops where the training hangs; the page and the log say so."""
    with terminal("demo", "--iterations", "24", "--listen", "127.0.0.1:0") as demo:
        seen = demo.wait(" 46%")
        demo.wait("level=warning run=demo-1B3 incident=hang", 30.0)
        demo.wait(" 46%")
        address = re.search(r"page +(http://[^/]+/)", seen)
        assert address is not None
        page = get(address[1])
        assert "demo-1B3" in page
        assert "hung in training" in page
        assert demo.ended(signal.SIGINT) == 0
