"""A block of whole lines in, the few lines out that some rule may want. Literal first, regex after.

A training log is mostly noise. Each rule names anchors: literals of which its lines cannot lack all. `search.py` finds
them all in one pass over a whole block, and only the lines that hold one are cut out, decoded and read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from parsers.engine.lines import line_end, line_start
from parsers.engine.prefixes import Prefix
from parsers.engine.search import Hits, Search, best
from parsers.events import Event


@dataclass(slots=True)
class Line:
    """One segment of a line, prefixes stripped. `origin` are the keyword arguments that every event takes."""

    text: str
    prefix: Prefix
    number: int
    origin: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        """Gather what the prefixes told into event arguments."""
        prefix = self.prefix
        self.origin = {"rank": prefix.global_rank, "node": prefix.node, "logged_at": prefix.logged_at}


class Gatherer(Protocol):
    """Reads a fact that takes several lines. A dataclass of plain JSON values, so that a resume can carry it on.

    While it is open it is offered every line, noise too; what it does not take goes to the rules as usual.
    """

    def offer(self, line: Line) -> tuple[list[Event], bool, bool]:
        """(events, whether the line was taken, whether the gatherer is done)."""

    def close(self) -> list[Event]:
        """The source ended: what was gathered so far, if it is worth an event."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`read` gives events (or opens a Gatherer) from a line that holds one of `anchors`; nothing if it is not its line.

    Rules are asked in order; the first that answers has the line.
    """

    name: str
    anchors: tuple[bytes, ...]
    read: Callable[[Line], Iterable[Event | Gatherer]]


class Scanner:
    """Which rules may want which line of a block."""

    def __init__(self, rules: Sequence[Rule], engine: Callable[[Sequence[bytes]], Search] = best) -> None:
        self.rules = tuple(rules)
        wanted: dict[bytes, list[int]] = {}
        for index, rule in enumerate(self.rules):
            for anchor in rule.anchors:
                wanted.setdefault(anchor, []).append(index)
        self._wanted = tuple(tuple(indices) for indices in wanted.values())
        self._search = engine(tuple(wanted))

    def candidates(self, data: bytes) -> Candidates:
        """Start on a block."""
        return Candidates(data, self._search(data), self._wanted)


class Candidates:
    """Walks one block from candidate line to candidate line, forwards."""

    def __init__(self, data: bytes, hits: Hits, wanted: Sequence[tuple[int, ...]]) -> None:
        self.data = data
        self.has_cr = b"\r" in data
        self._wanted = wanted
        self.hits = hits
        self.next = 0

    def after(self, position: int) -> tuple[int, int, tuple[int, ...]] | None:
        """(start, end, rule indices in order) of the first line at or after `position` that a rule may want."""
        hits, data, index = self.hits, self.data, self.next
        count = len(hits)
        while index < count and hits[index][0] < position:
            index += 1
        if index == count:
            self.next = index
            return None
        place, anchor = hits[index]
        if self.has_cr:
            start, end = line_start(data, place, True, position), line_end(data, place, True)
        else:
            start, end = data.rfind(b"\n", position, place) + 1 or position, data.find(b"\n", place)
            if end < 0:
                end = len(data)
        index += 1
        rules = self._wanted[anchor]
        while index < count and hits[index][0] < end:
            if hits[index][1] != anchor:
                rules = _merged(rules, self._wanted[hits[index][1]])
            index += 1
        self.next = index
        return start, end, rules

    def within(self, start: int, end: int) -> tuple[int, ...]:
        """Rule indices in order for the line [start, end), when the caller walks every line."""
        hits, index = self.hits, self.next
        rules: tuple[int, ...] = ()
        while index < len(hits) and hits[index][0] < end:
            if hits[index][0] >= start:
                rules = _merged(rules, self._wanted[hits[index][1]])
            index += 1
        self.next = index
        return rules


def _merged(some: tuple[int, ...], more: tuple[int, ...]) -> tuple[int, ...]:
    return some if some == more else tuple(sorted({*some, *more}))
