"""A progress bar for long commands."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(total: float, text: str = "") -> Iterator[Callable[[float], object]]:
    """Yield a function that advances the bar on standard error; without a terminal there is none.

    What is written to standard error meanwhile appears above the bar.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, redirect_stdout=sys.stdout.isatty()) as drawn:
        task = drawn.add_task(text, total=total)
        yield lambda done: drawn.advance(task, done)
