"""Compiles a format to rules of the engine. The more specific mark comes first.

Lines with the same mark are one rule, which reads the line once. A block is gathered. Its event comes with the first
line after the block, or after a silence if the block is complete (`SourceReader.settle`).
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby
from typing import Any, ClassVar

from msgspec import field

from megatron_monitor.parsers.declared.expressions import Expressions
from megatron_monitor.parsers.declared.marks import LineMark
from megatron_monitor.parsers.declared.reading import LineReader
from megatron_monitor.parsers.declared.schema import Format, LineSpec
from megatron_monitor.parsers.engine.prefixes import Prefix
from megatron_monitor.parsers.engine.scan import Gatherer, Line, Rule
from megatron_monitor.parsers.engine.spans import Spanned, events_of
from megatron_monitor.parsers.events import Event
from megatron_monitor.parsers.patterns import lazy

_MAX_BLOCK = 300  # maximum lines of a block
_MAX_TEXT = 1000  # maximum characters of a line of a block
_FOREIGN = 2  # maximum lines of other ranks in a block that is not complete yet


class BlockRule(Gatherer):
    """A head line and the lines below it. They are read as one line: the head, then the other lines, separated by
    `spec.separator`.
    """

    spec: ClassVar[LineSpec]
    head_of: ClassVar[Callable[[Line], str | None]]
    """Returns the text of a head line, None for another line."""
    read: ClassVar[Callable[[Line], Iterable[Event | Spanned]]]

    head: str
    lines: list[str] = field(default_factory=list)
    rank: int | None = None
    node: str | None = None
    logged_at: str | None = None
    ended: bool = False
    """True if the first line of its last part was read."""
    foreign: int = 0
    """Lines of other writers within the block."""

    @property
    def settles(self) -> bool:
        """True: `close` returns whether the block is complete."""
        return True

    @property
    def shown(self) -> str:
        """The head line: the line that ends the block has nothing to do with it."""
        return self.head

    def offer(self, line: Line) -> tuple[list[Event], bool, bool]:
        """Take a line of the block, or return the block's event."""
        spec = self.spec
        if line.text.startswith(spec.indent) and len(self.lines) < _MAX_BLOCK:
            text = line.text[len(spec.indent) :].strip()
            if text:
                self.lines.append(text[:_MAX_TEXT])
                self.ended = self.ended or (spec.ends != "" and text.startswith(spec.ends))
            if spec.until and text.startswith(spec.until):
                return self.close(), True, True
            return [], True, False
        begins = type(self).head_of(line) is not None
        if not spec.ends:
            self.foreign += bool(line.text.strip())
            if begins or self.foreign > _FOREIGN or (self.foreign and self.lines and self.close()):
                return self.close(), False, True
        elif self.ended:
            return self.close(), False, True
        return [], False, begins  # a block that begins again was cut off

    def close(self) -> list[Event]:
        """Return the block's event."""
        if self.spec.ends and not self.ended:
            return []
        text = self.head + self.spec.separator.join(self.lines)
        line = Line(text, Prefix(rank=self.rank, node=self.node, logged_at=self.logged_at))
        return [event for said in type(self).read(line) for event in events_of(said)]


def _block(name: str, anchors: tuple[bytes, ...], spec: LineSpec, head_of: Any, read: Any) -> Rule:
    """Return the rule that gathers blocks and reads each one as a line."""
    members = {"spec": spec, "head_of": staticmethod(head_of), "read": staticmethod(read), "__doc__": BlockRule.__doc__}
    block = type("Block", (BlockRule,), members)

    def opened(line: Line) -> Iterator[Gatherer]:
        head = head_of(line)
        if head is not None:
            yield block(head, [], line.origin["rank"], line.origin["node"], line.origin["logged_at"])

    return Rule(name, anchors, opened)


def rules_of(log_formats: Iterable[Format]) -> tuple[Rule, ...]:
    """Return the rules for lines of these formats with a mark, the most specific first."""
    found: list[tuple[int, Rule]] = []
    for log_format in log_formats:
        prefixes = tuple(LineMark(text) for text in log_format.prefixes)
        by_mark: dict[tuple[str, bool], list[LineReader]] = {}
        for spec in (spec for spec in log_format.lines if spec.line):
            by_mark.setdefault((spec.line, spec.anywhere), []).append(LineReader(log_format, spec, prefixes))
        for readings in by_mark.values():
            weight = readings[0].mark.weight + (0 if readings[0].spec.anywhere else 1)
            found.append((weight, _rule(log_format, tuple(readings))))
    found.sort(key=lambda item: -item[0])
    return tuple(rule for _, rule in found)


def expressions_of(log_format: Format, make: Callable[[str], Any] = lazy) -> tuple[Rule, ...]:
    """Return the rules for lines with a regular expression, in their order. `make` makes a pattern from its text. A
    pattern that is not Python's own may time out on a line and match the next one of the same shape.
    """
    found = []
    rows = [spec for spec in log_format.lines if spec.regex]
    for name, several in groupby(rows, lambda spec: spec.rule or f"{log_format.name}.{spec.means}"):
        specs = tuple(several)
        one, anchors = Expressions(specs, make), tuple(anchor.encode() for spec in specs for anchor in spec.anchors)
        if specs[0].form == "block":
            found.append(_block(name, anchors, specs[0], partial(_head_with, specs[0]), one.read))
        else:
            by_digits = make is not lazy or any(spec.by_digits for spec in specs)
            found.append(Rule(name, anchors, one.read, by_digits, any(spec.any_width for spec in specs)))
    return tuple(found)


def _head_with(spec: LineSpec, line: Line) -> str | None:
    return f"{line.text}{spec.separator}" if any(anchor in line.text for anchor in spec.anchors) else None


def _rule(log_format: Format, readings: tuple[LineReader, ...]) -> Rule:
    first = readings[0]
    name, anchors, read = (
        f"{log_format.name}.{first.spec.means}",
        (first.mark.anchor.encode(),),
        partial(_answer, readings),
    )
    if first.spec.form == "block":
        return _block(name, anchors, first.spec, lambda line: _head_text(first, line), read)
    return Rule(name, anchors, read, by_digits=any(reading.spec.by_digits for reading in readings))


def _head_text(reading: LineReader, line: Line) -> str | None:
    head = reading.head(line)
    return None if head is None else line.text[: head.start]


def _answer(readings: tuple[LineReader, ...], line: Line) -> list[Spanned]:
    """Return the answer of the first reading that matches."""
    return next((said for reading in readings if (said := reading.read(line))), [])
