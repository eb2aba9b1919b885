"""A line on a terminal for what reads for long: how much of it, and since when. It is gone when the work is done."""

import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from megatron_monitor.detectors.base import duration
from megatron_monitor.system.clock import SystemClock

_FIRST, _EVERY = 1.5, 0.5  # seconds until it is shown, and between two


@contextmanager
def progress(paths: Iterable[str]) -> Iterator[None]:
    """While this lasts, on standard error: the share of these files that this process and its children have read."""
    over, clock, before = threading.Event(), SystemClock(), _read("self")
    total, began = sum(os.path.getsize(path) for path in paths if os.path.isfile(path)), clock.monotonic()

    def show() -> None:
        wait = _FIRST
        while not over.wait(wait):
            wait, share = _EVERY, min(1.0, (_read("self") - before) / max(1, total))
            told = f"{share:.0%} of {total / 1e6:,.0f} MB read, {duration(clock.monotonic() - began)}"
            click.echo(f"{told}\x1b[K\r", err=True, nl=False)  # the output's next line begins where this one does
        click.echo("\x1b[K" * (wait == _EVERY), err=True, nl=False)

    shower = threading.Thread(target=show, daemon=True)
    if sys.stderr.isatty():
        shower.start()
    try:
        yield
    finally:
        over.set()
        if shower.ident is not None:
            shower.join()


def _read(process: str) -> int:
    """Bytes that a process and those that it has started have asked the system for; 0 where it does not tell."""
    try:
        known = int(Path(f"/proc/{process}/io").read_text("ascii").split()[1])
        started = " ".join(one.read_text("ascii") for one in Path(f"/proc/{process}/task").glob("*/children"))
    except OSError:
        return 0
    return known + sum(map(_read, started.split()))
