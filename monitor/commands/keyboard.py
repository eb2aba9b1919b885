"""Single keys from a terminal."""

import os
import re
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_NAMES = {
    b"\r": "enter", b"\n": "enter", b"\x1b": "escape", b"\x1b[A": "up", b"\x1bOA": "up", b"k": "up",
    b"\x1b[B": "down", b"\x1bOB": "down", b"j": "down", b"\x1b[5~": "page up", b"\x1b[6~": "page down",
    b" ": "page down", b"q": "quit",
}  # fmt: skip

_KEY = re.compile(rb"\x1b(?:[\[O]\d*[A-Za-z~])?|.", re.DOTALL)

WaitForKey = Callable[[float], str]
"""Wait up to this many seconds for a key; return its name, or an empty text."""


@contextmanager
def keyboard() -> Iterator[WaitForKey]:
    """Yield what waits for a key of the terminal on standard input."""
    terminal = sys.stdin.fileno()
    modes = termios.tcgetattr(terminal)
    pressed: list[bytes] = []

    def wait(seconds: float) -> str:
        if not pressed and select.select([terminal], [], [], max(0.0, seconds))[0]:
            pressed[:] = _KEY.findall(os.read(terminal, 1024)) or [b"q"]  # nothing: the terminal was closed
        return _NAMES.get(pressed.pop(0), "") if pressed else ""

    try:
        tty.setcbreak(terminal)
        yield wait
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, modes)
