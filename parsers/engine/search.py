"""Where literals stand in a text: many literals in one pass.

Hyperscan (a compiled library, where it has wheels) looks for all of them at memory speed; `plain` takes one pass a
literal, 0.1 s for a megabyte and the rules of all formats. Both give the same hits. Only shapes of lines that are new
are searched, 30 to 200 KB of a usual log: most runs never need Hyperscan. Compiling takes it 0.07 s, so what it has
compiled is kept for the next start, by its version, the processor and the literals.
"""

import contextlib
import re
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, Protocol, TypeAlias


class Kept(Protocol):
    """What outlives this process, by name. It must be from nobody else: Hyperscan's own code loads it."""

    def read(self, name: str) -> bytes | None:
        """None where nothing is kept."""

    def write(self, name: str, data: bytes) -> None:
        """Never raises."""


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


def compiled(literals: Sequence[bytes], kept: Kept | None = None) -> Search | None:
    """Hyperscan's pass; None where it is not installed or does not run on this processor."""
    try:
        import hyperscan
    except ImportError:
        return None
    try:
        database = _database(hyperscan, [re.escape(literal) for literal in literals], kept)
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


def _database(hyperscan: Any, patterns: list[bytes], kept: Kept | None) -> Any:
    """Raises hyperscan.error."""
    sample, database = hyperscan.Database(), hyperscan.Database()
    sample.compile(expressions=[b"a"], ids=[0])  # it tells the library's version and what it uses of the processor
    name = f"hyperscan-{sha256(repr((sample.info(), patterns)).encode()).hexdigest()}"
    data = kept.read(name) if kept is not None else None
    if data is not None:
        with contextlib.suppress(hyperscan.error):
            database = hyperscan.loadb(data, hyperscan.HS_MODE_BLOCK)
            database.scratch = hyperscan.Scratch(database)
            return database
    database.compile(expressions=patterns, ids=list(range(len(patterns))))
    if kept is not None:
        kept.write(name, hyperscan.dumpb(database))
    return database


def best(literals: Sequence[bytes], kept: Kept | None = None) -> Search:
    """`plain` while that is cheaper; Hyperscan, where it is here, once there is much to search."""
    searched, search = 0, plain(literals)

    def chosen(data: bytes) -> Hits:
        nonlocal searched, search
        if searched <= _WORTH:
            searched += len(data)
            if searched > _WORTH:
                search = compiled(literals, kept) or search
        return search(data)

    return chosen
