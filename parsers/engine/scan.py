"""What a rule is, and which rules may want which line. Literal first, regular expression after.

A training log is mostly noise. Each rule names anchors: literals of which its lines cannot lack all. All are found
in one pass, and only lines that hold one are decoded and read.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ahocorasick_rs import BytesAhoCorasick
from msgspec import Struct

from megatron_monitor.parsers.engine.prefixes import Prefix
from megatron_monitor.parsers.engine.templates import SHAPE
from megatron_monitor.parsers.events import Event


@dataclass(slots=True)
class Line:
    """One segment of a line, prefixes stripped. `origin` are the keyword arguments that every event takes."""

    text: str
    prefix: Prefix
    origin: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Gather what the prefixes told into event arguments."""
        prefix = self.prefix
        self.origin = {"rank": prefix.global_rank, "node": prefix.node, "logged_at": prefix.logged_at}


class Gatherer(Struct):
    """Reads a fact that takes several lines. A record of plain JSON values, so that a resume can carry it on.

    While it is open it is offered every line, noise too; what it does not take goes to the rules as usual.
    """

    @property
    def settles(self) -> bool:
        """What it holds is told if nothing follows for a while."""
        return False

    @property
    def shown(self) -> str:
        """The line that tells its events, if the one that ends it says nothing."""
        return ""

    def offer(self, line: Line) -> tuple[list[Event], bool, bool]:
        """(events, whether the line was taken, whether the gatherer is done)."""
        raise NotImplementedError

    def close(self) -> list[Event]:
        """The source ended: what was gathered so far, if it is worth an event."""
        return []


class Rule(Struct, frozen=True):
    """`read` gives events (or opens a Gatherer) from a line that holds one of `anchors`; nothing if it is not its line.

    Rules are asked in order; the first that answers has the line.
    """

    name: str
    anchors: tuple[bytes, ...]
    read: Callable[[Line], Iterable[Event | Gatherer]]
    templated: bool = False
    """True where numbers in a line only fill fields: which event it is, and which fields that has, depends on none of
    them. Such lines are read by template (templates.py) once a shape has come twice.
    """
    opens: Callable[..., Gatherer] | None = None
    """What it opens, by which a resume carries it on."""


class Scanner:
    """Which rules may want a line: those of which an anchor stands in it.

    Anchors are looked for in the line's shape (templates.py), their own digits as `0` too: what is found for one line
    holds for all lines of its shape. A rule that is asked in vain answers nothing.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        wanted: dict[bytes, list[int]] = {}
        for index, rule in enumerate(self.rules):
            for anchor in rule.anchors:
                wanting = wanted.setdefault(anchor.translate(SHAPE), [])
                if index not in wanting:
                    wanting.append(index)
        self._wanted = tuple(wanted.values())
        self._search = BytesAhoCorasick(list(wanted))

    def rules_of(self, shapes: Sequence[bytes]) -> list[tuple[int, ...]]:
        """For each shape the indices of the rules that may want its lines, in order; most want none."""
        hits = self._search.find_matches_as_indexes(b"\n".join(shapes), overlapping=True)  # by where they end
        if not hits:
            return [()] * len(shapes)
        found: list[tuple[int, ...]] = []
        at, end = 0, -1
        for shape in shapes:
            end += len(shape) + 1
            rules: set[int] = set()
            while at < len(hits) and hits[at][2] <= end:
                rules.update(self._wanted[hits[at][0]])
                at += 1
            found.append(tuple(sorted(rules)))
        return found
