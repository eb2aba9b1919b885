"""`top` on a real terminal of 80 columns, and through a pipe."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
from pathlib import Path

import pytest

from tests.e2e.conftest import Start
from tests.lines import line
from tests.programs import MONITOR, now, slack

pytestmark = pytest.mark.e2e


class Terminal:
    """A program on a pseudo-terminal of 80 by 24."""

    def __init__(self, *arguments: str) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.modes = termios.tcgetattr(slave)
        self._slave = slave
        environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [*MONITOR, *arguments], stdin=slave, stdout=slave, stderr=slave,
            env={**environment, "TERM": "xterm-256color"},
        )  # fmt: skip
        self.seen = ""

    def wait(self, words: str, timeout: float = 20.0) -> None:
        """Read until the words have come since the last call."""
        began = now()
        while words not in self.seen:
            assert now() - began < slack(timeout), f"never: {words}; {self.seen}"
            if select.select([self.master], [], [], 0.1)[0]:
                self.seen += os.read(self.master, 65536).decode("utf-8", "replace")
        self.seen = ""

    def press(self, key: str) -> None:
        """Press a key."""
        os.write(self.master, key.encode())

    def quit(self) -> int:
        """Press Ctrl-C; the exit status."""
        self.process.send_signal(signal.SIGINT)
        return self.ended()

    def ended(self) -> int:
        """The exit status. The terminal must be as it was."""
        began = now()
        while self.process.poll() is None and now() - began < slack(10.0):
            if select.select([self.master], [], [], 0.1)[0]:
                os.read(self.master, 65536)
        assert termios.tcgetattr(self._slave) == self.modes
        return int(self.process.wait(timeout=slack(5)))

    def close(self) -> None:
        """End it."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(timeout=slack(5))
        os.close(self.master)
        os.close(self._slave)


def test_a_terminal_follows_a_daemon(start: Start, tmp_path: Path) -> None:
    """The run, its next iteration, then that the daemon has gone; Ctrl-C ends it."""
    log = tmp_path / "train.log"
    log.write_text("".join(line(number) for number in range(1, 41)))
    daemon = start(str(log))
    daemon.wait(lambda: "training" in daemon.get("/api/v1/runs"))
    terminal = Terminal("top", daemon.address, "--interval", "0.3")
    try:
        terminal.wait("4.0 %")
        with log.open("a") as stream:
            stream.write(line(50))
        terminal.wait("5.0 %")
        daemon.kill()
        terminal.wait("not updated")
        assert terminal.quit() == 0
    finally:
        terminal.close()


def test_a_pipe_gets_lines_once(start: Start, tmp_path: Path) -> None:
    """Not a terminal: one table without escape sequences, then the end."""
    log = tmp_path / "train.log"
    log.write_text("".join(line(number) for number in range(1, 41)))
    daemon = start(str(log))
    daemon.wait(lambda: "training" in daemon.get("/api/v1/runs"))
    command = [*MONITOR, "top", f"http://{daemon.address}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=slack(20))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[2].split()[:4] == ["train", "●", "training", "40"]
    assert "\x1b" not in done.stdout


def test_keys_on_a_terminal(start: Start, tmp_path: Path) -> None:
    """Enter shows the whole incident with the log around its line, Enter again the list, and q quits."""
    log = tmp_path / "train.log"
    log.write_text("".join(line(number) for number in range(1, 41)))
    daemon = start(str(log), "--set", "detectors.hang.minimum=3s")
    with log.open("a") as stream:
        stream.write(line(50))
    terminal = Terminal("top", daemon.address, "--interval", "0.3")
    try:
        terminal.wait("hung in training")
        terminal.press("\r")
        terminal.wait("critical while training", 5.0)
        terminal.press("\x1b[B")
        terminal.press("\r")
        terminal.wait("Enter show", 5.0)
        terminal.press("q")
        assert terminal.ended() == 0
    finally:
        terminal.close()
