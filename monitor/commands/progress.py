"""How far work is that takes long: a bar on a terminal, which is gone when the work is done."""

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def tracked(items: Iterable[Item], total: int) -> Iterator[Item]:
    """The items; meanwhile a bar on standard error, where that is a terminal."""
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console  # loaded where it is needed
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, redirect_stdout=sys.stdout.isatty()) as bar:
        yield from bar.track(items, total)
