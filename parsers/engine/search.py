"""Where literals stand in a text: many literals in one pass.

Hyperscan (a compiled library, where it has wheels) looks for all of them at memory speed; `plain` takes one pass a
literal, 0.1 s for a megabyte and the rules of all formats. Both give the same hits. Only shapes of lines that are new
are searched, 30 to 200 KB of a usual log: most runs never need Hyperscan, whose start takes 0.07 s and 34 MB.
"""

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

Hits: TypeAlias = list[tuple[int, int]]
"""(offset, index of the literal), by offset: every place where a literal begins."""
Search: TypeAlias = Callable[[bytes], Hits]
_WORTH = 1 << 18
"""Bytes after which Hyperscan is started: `plain` has taken 0.025 s then, and a log that still has new shapes, as those
of HF Trainer do, will have more."""


def plain(literals: Sequence[bytes]) -> Search:
    """One pass a literal: where Hyperscan is not installed, and what it is tested against."""

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


def compiled(literals: Sequence[bytes]) -> Search | None:
    """Hyperscan's pass; None where it is not installed or does not run on this processor."""
    try:
        import hyperscan
    except ImportError:
        return None
    try:
        database = hyperscan.Database()
        database.compile(expressions=[re.escape(literal) for literal in literals], ids=list(range(len(literals))))
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


def best(literals: Sequence[bytes]) -> Search:
    """`plain` while that is cheaper; Hyperscan, where it is here, once there is much to search."""
    searched, search = 0, plain(literals)

    def chosen(data: bytes) -> Hits:
        nonlocal searched, search
        if searched <= _WORTH:
            searched += len(data)
            if searched > _WORTH:
                search = compiled(literals) or search
        return search(data)

    return chosen
