"""What a line is, and the rules and gatherers that read lines."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from megatron_monitor.parsers.engine.prefixes import READS, Prefix
from megatron_monitor.parsers.engine.spans import Span, Spanned, events_of
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
        found: dict[str, Any] = {}
        for name, value in self.origin.items():
            span = self.prefix.spans.get("task" if name == "rank" and self.prefix.rank is None else name)
            if value is not None:
                found[name] = value if span is None else Span(*span, READS[name], value)
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
    def is_own(self) -> bool:
        """True if it is of the rule that has this class: several rules may have one name."""
        return True

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
    own. A digit of an anchor stands for any digit.

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
