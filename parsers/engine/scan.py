"""What a rule is, and which rules may want which line. Literal first, regular expression after.

A training log is mostly noise. Each rule names anchors: literals of which its lines cannot lack all. One pass finds
them all, and only lines that hold one are decoded and read.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ahocorasick_rs import BytesAhoCorasick
from msgspec import Struct

from megatron_monitor.parsers.engine.prefixes import Prefix, iso_time
from megatron_monitor.parsers.engine.spans import SHAPE, Span, Spanned
from megatron_monitor.parsers.events import Event


@dataclass(slots=True)
class Line:
    """One segment of a line, prefixes stripped. `origin` are the keyword arguments that every event takes."""

    text: str
    prefix: Prefix
    start: int = 0
    """Where the text begins in its segment."""
    origin: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Gather what the prefixes told into event arguments."""
        prefix = self.prefix
        self.origin = {"rank": prefix.global_rank, "node": prefix.node, "logged_at": prefix.logged_at}

    def span(self, at: tuple[int, int], read: Callable[[str], Any]) -> Span:
        """The text from `at[0]` to `at[1]` as the value of a field, with `read` as its reading."""
        text = self.text[at[0] : at[1]]
        return Span(self.start + at[0], text, read, read(text))

    @property
    def origin_spans(self) -> dict[str, Any]:
        """Those of `origin` that are told, with spans in place of the values; of a block of lines, which is read when
        it has ended, the values alone.
        """
        reads: dict[str, Callable[[str], Any]] = {"rank": int, "node": str, "logged_at": iso_time}
        found: dict[str, Any] = {}
        for name, value in self.origin.items():
            span = self.prefix.spans.get("task" if name == "rank" and self.prefix.rank is None else name)
            if value is not None:
                found[name] = value if span is None else Span(*span, reads[name], value)
        return found


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
    read: Callable[[Line], Iterable[Event | Spanned | Gatherer]]
    by_shape: bool = False
    """Whether it answers, with which events and which fields depends on no digit of the line. If it answers with spans
    (spans.py), further lines of the shape are read by them; if it does not answer, they are noise to it.
    """
    any_width: bool = False
    """Of a rule `by_shape`: nor does any of that depend on how many digits its numbers have, up to 15."""
    opens: Callable[..., Gatherer] | None = None
    """What it opens, by which a resume carries it on."""

    def items(self, line: Line) -> Iterator[Event | Gatherer]:
        """What it gives, with all values in place."""
        for item in self.read(line):
            if isinstance(item, Spanned):
                yield from item.events()
            else:
                yield item


class Scanner:
    """Which rules may want a line: those of which an anchor stands in it.

    Anchors are looked for in the line's shape (spans.py), their own digits as `0` too: what is found for one line holds
    for all lines of its shape. A rule that is asked in vain answers nothing.
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
        self._find = BytesAhoCorasick(list(wanted)).find_matches_as_indexes

    def rules_of(self, shapes: Sequence[bytes]) -> list[tuple[int, ...]]:
        """For each shape the indices of the rules that may want its lines, in order; most want none."""
        hits = self._find(b"\n".join(shapes), overlapping=True)
        if not hits:
            return [()] * len(shapes)
        found: list[tuple[int, ...]] = []
        at, end = 0, -1
        for shape in shapes:
            end += len(shape) + 1
            rules: set[int] = set()
            while at < len(hits) and hits[at][1] < end:
                rules.update(self._wanted[hits[at][0]])
                at += 1
            found.append(tuple(sorted(rules)))
        return found
