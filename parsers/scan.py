"""A block of whole lines in, the few lines out that some rule may want. Literal first, regex after.

A training log is mostly noise. Each rule names anchors: literals of which its lines cannot lack all. One `find` an
anchor passes over a whole block at memory speed, and only the lines that hold one are cut out, decoded and read.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from parsers.events import Event
from parsers.lines import line_end, line_start
from parsers.prefixes import Prefix


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

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        wanted: dict[bytes, list[int]] = {}
        for index, rule in enumerate(self.rules):
            for anchor in rule.anchors:
                wanted.setdefault(anchor, []).append(index)
        self._anchors = tuple(wanted)
        self._wanted = tuple(tuple(indices) for indices in wanted.values())

    def candidates(self, data: bytes) -> Candidates:
        """Start on a block."""
        return Candidates(data, self._anchors, self._wanted)


class Candidates:
    """Walks one block from candidate line to candidate line."""

    def __init__(self, data: bytes, anchors: Sequence[bytes], wanted: Sequence[tuple[int, ...]]) -> None:
        self.data = data
        self.has_cr = b"\r" in data
        self._anchors = anchors
        self._wanted = wanted
        self._heap = [(found, index) for index, anchor in enumerate(anchors) if (found := data.find(anchor)) >= 0]
        heapq.heapify(self._heap)

    def after(self, position: int) -> tuple[int, int, tuple[int, ...]] | None:
        """(start, end, rule indices in order) of the first line at or after `position` that a rule may want."""
        heap, data = self._heap, self.data
        while heap and heap[0][0] < position:
            self._advance(position)
        if not heap:
            return None
        start = line_start(data, heap[0][0], self.has_cr, position)
        end = line_end(data, heap[0][0], self.has_cr)
        rules: set[int] = set()
        while heap and heap[0][0] < end:
            rules.update(self._wanted[heap[0][1]])
            self._advance(end)
        return start, end, tuple(sorted(rules))

    def within(self, start: int, end: int) -> tuple[int, ...]:
        """Rule indices in order for the line [start, end), when the caller walks every line."""
        heap = self._heap
        rules: set[int] = set()
        while heap and heap[0][0] < end:
            if heap[0][0] >= start:
                rules.update(self._wanted[heap[0][1]])
                self._advance(end)
            else:
                self._advance(start)
        return tuple(sorted(rules))

    def _advance(self, position: int) -> None:
        index = self._heap[0][1]
        found = self.data.find(self._anchors[index], position)
        if found < 0:
            heapq.heappop(self._heap)
        else:
            heapq.heapreplace(self._heap, (found, index))
