"""Tables on standard output: fitted to a terminal in colour, or plain at full width for files and pipes."""

import io
import sys
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from rich.console import Console, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from megatron_monitor.scalars import one_line

UNBOUNDED = 100_000  # columns for a file or a pipe

Cell: TypeAlias = str | Text


def grid(headers: Sequence[str], rows: Iterable[Sequence[Cell]], right: Sequence[bool], gap: int = 2) -> Table:
    """Return a table without rules; texts that are too wide are wrapped, and control characters are escaped.

    `right` marks right-aligned columns, `gap` is the number of blanks between two columns.
    """
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="bold")
    for header, figures in zip(headers, right, strict=True):
        side: JustifyMethod = "right" if figures else "left"
        table.add_column(Text(one_line(header)), justify=side, overflow="fold")
    for row in rows:
        table.add_row(*(Text(one_line(cell)) if isinstance(cell, str) else cell for cell in row))
    return table


def fitting(headers: Sequence[str], widths: Sequence[int], first: Sequence[str], room: int, gap: int = 2) -> list[int]:
    """Return the indexes of the columns that fit into `room`; columns named in `first` are chosen before others."""
    kept = []
    for name in sorted(headers, key=lambda header: (*first, header).index(header)):
        place = headers.index(name)
        room -= widths[place] + gap
        if room + gap < 0:
            break
        kept.append(place)
    return sorted(kept)


def width() -> int:
    """Return the number of columns of standard output."""
    return Console().width if sys.stdout.isatty() else UNBOUNDED


def show(*parts: RenderableType) -> None:
    """Print on standard output."""
    if sys.stdout.isatty():
        Console().print(*parts, sep="\n", highlight=False)
        return
    drawn = io.StringIO()
    Console(file=drawn, width=UNBOUNDED, color_system=None, force_terminal=False).print(*parts, sep="\n")
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in drawn.getvalue().split("\n")[:-1])
    sys.stdout.flush()
