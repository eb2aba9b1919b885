"""A progress bar for long commands."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from rich.progress import Progress

Item = TypeVar("Item")


class Bar:
    """A progress bar on standard error; without a terminal it does nothing."""

    def __init__(self, drawn: "Progress | None" = None) -> None:
        self._drawn = drawn

    def update(self, **values: Any) -> None:
        """Change what is shown: `completed`, or `advance` by so much."""
        if self._drawn is not None:
            self._drawn.update(self._drawn.task_ids[0], **values)

    def reading(self, stream: IO[bytes]) -> IO[bytes]:
        """Return the stream so that each byte read from it advances the bar."""
        if self._drawn is None:
            return stream
        return cast("IO[bytes]", self._drawn.wrap_file(cast("Any", stream), task_id=self._drawn.task_ids[0]))


@contextmanager
def progress_bar(total: float, text: str = "") -> Iterator[Bar]:
    """Show a bar on standard error if that is a terminal. What is written to it meanwhile appears above the bar."""
    if not sys.stderr.isatty():
        yield Bar()
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, redirect_stdout=sys.stdout.isatty()) as drawn:
        drawn.add_task(text, total=total)
        yield Bar(drawn)


def tracked(items: Iterable[Item], total: int) -> Iterator[Item]:
    """Yield the items and show how many of them were processed."""
    with progress_bar(total) as bar:
        for item in items:
            yield item
            bar.update(advance=1)
