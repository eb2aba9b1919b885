"""What a rule is, and which rules may match a line: literals first, regular expressions after.

Most lines of a training log are noise. Each rule names anchors: literals, at least one of which is in each of its
lines. One pass finds all anchors. Only lines with an anchor are decoded and read.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ahocorasick_rs import BytesAhoCorasick
from msgspec import Struct

from megatron_monitor.parsers.engine.prefixes import Prefix, iso_time
from megatron_monitor.parsers.engine.spans import SHAPE, Span, Spanned, events_of
from megatron_monitor.parsers.events import Event


@dataclass(slots=True)
class Line:
    """One segment of a line without prefixes."""

    text: str
    prefix: Prefix
    start: int = 0
    """Where the text begins in its segment."""

    @property
    def origin(self) -> dict[str, Any]:
        """The keyword arguments that all events take."""
        prefix = self.prefix
        return {"rank": prefix.global_rank, "node": prefix.node, "logged_at": prefix.logged_at}

    def span(self, at: tuple[int, int], read: Callable[[str], Any]) -> Span:
        """Return the text from `at[0]` to `at[1]` as the value of a field, to be converted by `read`."""
        text = self.text[at[0] : at[1]]
        return Span(self.start + at[0], text, read, read(text))

    @property
    def origin_spans(self) -> dict[str, Any]:
        """Return `origin` with spans in place of the values. For a block of lines, which is read after it has ended,
        return the values.
        """
        reads: dict[str, Callable[[str], Any]] = {"rank": int, "node": str, "logged_at": iso_time}
        found: dict[str, Any] = {}
        for name, value in self.origin.items():
            span = self.prefix.spans.get("task" if name == "rank" and self.prefix.rank is None else name)
            if value is not None:
                found[name] = value if span is None else Span(*span, reads[name], value)
        return found


class Gatherer(Struct):
    """Reads a fact that takes several lines. It holds plain JSON values, so that a resume can continue it.

    While it is open it is offered every line, noise included. A line that it does not take goes to the rules.
    """

    @property
    def settles(self) -> bool:
        """True if `close` gives the fact when no line follows for a while."""
        return False

    @property
    def shown(self) -> str:
        """The line to show for its events if the line that ends it has no meaning of its own."""
        return ""

    def offer(self, line: Line) -> tuple[list[Event], bool, bool]:
        """Return (events, whether the line was taken, whether the gatherer is done)."""
        raise NotImplementedError

    def close(self) -> list[Event]:
        """Return the events of the lines so far, because the stream has ended."""
        return []


class Rule(Struct, frozen=True):
    """`read` returns events or an open Gatherer for a line with one of `anchors`, or nothing if the line is not its
    own.

    Rules are asked in order. The first answer is used.
    """

    name: str
    anchors: tuple[bytes, ...]
    read: Callable[[Line], Iterable[Event | Spanned | Gatherer]]
    by_digits: bool = False
    """True if a digit of the line decides whether the rule answers, with which events or which fields. Otherwise spans
    in its answer (spans.py) read further lines of the shape, and a shape without an answer is noise for the rule.
    """
    any_width: bool = False
    """True if the widths of numbers up to 15 digits do not decide that either."""
    opens: Callable[..., Gatherer] | None = None
    """The Gatherer that it opens, by which a resume continues it."""

    def items(self, line: Line) -> Iterator[Event | Gatherer]:
        """Return the answer with all spans converted to values."""
        for item in self.read(line):
            yield from [item] if isinstance(item, Gatherer) else events_of(item)


class Scanner:
    """Finds the rules that may match a line: those with an anchor in it.

    Anchors are searched in the line's shape (spans.py), with the anchors' own digits as `0`. The result for one line is
    valid for all lines of its shape. A rule that does not match returns nothing.
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
        """Return, for each shape, the ordered indices of the rules that may match its lines. Most shapes have none."""
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
