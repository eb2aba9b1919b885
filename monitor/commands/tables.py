"""Tables on standard output: fitted to a terminal in colour, or plain at full width for files and pipes."""

import sys
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from megatron_monitor.scalars import one_line

UNBOUNDED = 100_000  # columns for a file or a pipe

Cell: TypeAlias = str | Text


def fitted(
    headers: Sequence[str], rows: Iterable[Sequence[Cell]], right: Sequence[bool], first: Sequence[str], room: int,
    name: int, gap: int = 2,
) -> tuple[Table, list[str]]:  # fmt: skip
    """Return a table without rules, of the columns that fit into `room`, and the names of the others.

    Columns named in `first` are chosen before others, the first column as if its texts had `name` characters at most.
    Of a text that is longer than its room the end is shown. Control characters are escaped. `right`: columns of
    figures. `gap`: blanks between two columns.
    """
    texts = [[Text(one_line(cell)) if isinstance(cell, str) else cell for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *texts, strict=True)]
    widths[0] = min(widths[0], name)
    kept, left = list[int](), room + gap
    for place in sorted(range(len(headers)), key=lambda at: (*first, headers[at]).index(headers[at])):
        left -= widths[place] + gap
        if left < 0:
            break
        kept.append(place)
    kept.sort()
    longest = room - sum(widths[place] + gap for place in kept if place)
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="bold")
    for place in kept:
        table.add_column(headers[place], justify="right" if right[place] else "left")
    for row in texts:
        if len(row[0]) > longest:
            row[0] = Text(f"…{row[0].plain[1 - longest :]}")
        table.add_row(*(row[place] for place in kept))
    return table, [header for place, header in enumerate(headers) if place not in kept]


def width() -> int:
    """Return the number of columns of standard output."""
    return Console().width if sys.stdout.isatty() else UNBOUNDED


def show(*parts: RenderableType) -> None:
    """Print on standard output."""
    Console(width=width()).print(*parts, sep="\n", highlight=False)
