"""Where literals stand in a block: many literals in one pass. Each engine gives the same hits.

Hyperscan (a compiled library, there where it has wheels) looks for all of them at memory speed. Without it,
`remembered` pays for what is new alone: most lines of a log are others with other numbers.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

Hits: TypeAlias = list[tuple[int, int]]
"""(offset, index of the literal), by offset: every place where a literal begins."""
Search: TypeAlias = Callable[[bytes], Hits]

_VARIES = b"0123456789abcdef"  # what numbers, counters, addresses and hashes are made of
_MAX_SHAPES = 20_000  # remembered; a log of 500 MB has some hundred. Some 3 MB, then all are forgotten
_MAX_SHAPE = 1000  # bytes; longer lines are rare and looked through each time


def plain(literals: Sequence[bytes]) -> Search:
    """One pass a literal: what the other engines are measured and tested against."""

    def search(data: bytes) -> Hits:
        found: Hits = []
        for index, literal in enumerate(literals):
            place = data.find(literal)
            while place >= 0:
                found.append((place, index))
                place = data.find(literal, place + 1)
        found.sort()
        return found

    return search


def remembered(literals: Sequence[bytes]) -> Search:
    """Lines that differ in digits and hexadecimal letters alone are looked through once.

    Sound: if a literal stands in a line, then what is left of the literal stands in what is left of the line.
    """
    reduced = [literal.translate(None, _VARIES) for literal in literals]
    shapes: dict[bytes, tuple[int, ...]] = {}

    def may_hold(shape: bytes) -> tuple[int, ...]:
        found = tuple(index for index, rest in enumerate(reduced) if rest in shape)
        if len(shape) <= _MAX_SHAPE:
            if len(shapes) >= _MAX_SHAPES:
                shapes.clear()
            shapes[shape] = found
        return found

    def search(data: bytes) -> Hits:
        # A line's shape -> the literals that may stand in it; most shapes hold none.
        lines = data.translate(None, _VARIES).split(b"\n")
        known = list(map(shapes.get, lines))
        suspects = [index for index, indices in enumerate(known) if indices is None or indices]
        if not suspects:
            return []
        starts = list(itertools.accumulate((len(line) + 1 for line in data.split(b"\n")), initial=0))
        found: Hits = []
        for line in suspects:
            indices = known[line]
            if indices is None:
                shape = lines[line]
                indices = shapes.get(shape) if shape in shapes else may_hold(shape)
            here: Hits = []
            for index in indices or ():
                place = data.find(literals[index], starts[line], starts[line + 1])
                while place >= 0:
                    here.append((place, index))
                    place = data.find(literals[index], place + 1, starts[line + 1])
            found.extend(sorted(here))
        return found

    return search


def compiled(literals: Sequence[bytes]) -> Search | None:
    """Hyperscan's pass; None where it is not installed or does not run on this processor."""
    try:
        import hyperscan
    except ImportError:
        return None
    try:
        database = hyperscan.Database()
        database.compile(expressions=[_escaped(literal) for literal in literals], ids=list(range(len(literals))))
    except hyperscan.error:
        return None
    lengths = [len(literal) for literal in literals]
    otherwise = plain(literals)

    def search(data: bytes) -> Hits:
        found: Hits = []

        def on_match(index: int, _start: int, end: int, _flags: int, _context: object) -> None:
            found.append((end - lengths[index], index))

        try:
            database.scan(data, match_event_handler=on_match)
        except hyperscan.error:  # its working memory serves one thread at a time
            return otherwise(data)
        found.sort()
        return found

    return search


def _escaped(literal: bytes) -> bytes:
    return re.escape(literal)


def best(literals: Sequence[bytes]) -> Search:
    """The fastest engine that is here."""
    return compiled(literals) or remembered(literals)
