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
from megatron_monitor.parsers.declared.reading import Head, LineReader, pairs_in
from megatron_monitor.parsers.declared.schema import Format
from megatron_monitor.parsers.engine.prefixes import Prefix
from megatron_monitor.parsers.engine.scan import Gatherer, Line, Rule
from megatron_monitor.parsers.engine.spans import Spanned
from megatron_monitor.parsers.events import Event
from megatron_monitor.parsers.patterns import lazy

_MAX_BLOCK = 300  # maximum lines of a block
_MAX_TEXT = 1000  # maximum characters of a line of a block
_FOREIGN = 2  # maximum lines of other ranks in a block that is not complete yet


class BlockRule(Gatherer):
    """A head line and the lines below it. `readings` are the readings of the head line's mark."""

    readings: ClassVar[tuple[LineReader, ...]] = ()
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

    def offer(self, line: Line) -> tuple[list[Event], bool, bool]:
        """Take a line of the block, or return the block's event."""
        first = self.readings[0]
        spec = first.spec
        if line.text.startswith(spec.indent) and len(self.lines) < _MAX_BLOCK:
            text = line.text[len(spec.indent) :].strip()
            if text:
                self.lines.append(text[:_MAX_TEXT])
                self.ended = self.ended or (spec.ends != "" and text.startswith(spec.ends))
            return [], True, False
        begins = first.head(line) is not None
        if not spec.ends:
            self.foreign += bool(line.text.strip())
            whole = begins or self.foreign > (0 if self._enough() else _FOREIGN)
        else:
            whole = self.ended
        if whole:
            return self.close(), False, True
        return [], False, begins  # a block that begins again was cut off

    def _enough(self) -> bool:
        """Return True if the block has all required names."""
        below = self.readings[0].spec.separator.join(self.lines)
        return bool(below) and any(reading.wanted(pairs_in(below, reading.spec)) for reading in self.readings)

    def close(self) -> list[Event]:
        """Return the block's event."""
        if self.readings[0].spec.ends and not self.ended:
            return []
        line = Line(self.head, Prefix(rank=self.rank, node=self.node, logged_at=self.logged_at))
        below = self.readings[0].spec.separator.join(self.lines)
        return [event for said in _answer(self.readings, below, line) for event in said.events()]


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
    """Return the rules for lines with a regular expression, in their order. `make` makes a pattern from its text."""
    found = []
    rows = [spec for spec in log_format.lines if spec.regex]
    for name, several in groupby(rows, lambda spec: spec.rule or f"{log_format.name}.{spec.means}"):
        specs = tuple(several)
        one, anchors = Expressions(specs, make), tuple(anchor.encode() for spec in specs for anchor in spec.anchors)
        found.append(Rule(name, anchors, one.read, one.by_shape, any(spec.any_width for spec in specs)))
    return tuple(found)


def _rule(log_format: Format, readings: tuple[LineReader, ...]) -> Rule:
    first = readings[0]
    name = f"{log_format.name}.{first.spec.means}"
    if any(reading.spec.form == "block" for reading in readings):
        block = type("Block", (BlockRule,), {"readings": readings, "__doc__": BlockRule.__doc__})
        return Rule(name, (first.mark.anchor.encode(),), partial(_opened, readings, block))
    plain = not any(reading.by_digits for reading in readings)
    return Rule(name, (first.mark.anchor.encode(),), partial(_answer, readings, None), by_shape=plain)


def _opened(readings: tuple[LineReader, ...], block: Any, line: Line) -> Iterator[Gatherer]:
    """Return the gatherer for a line that opens a block."""
    if readings[0].head(line) is not None:
        yield block(line.text, [], line.origin["rank"], line.origin["node"], line.origin["logged_at"])


def _answer(readings: tuple[LineReader, ...], below: str | None, line: Line) -> Iterator[Spanned]:
    """Return the answer of the first reading that matches. `below`: the lines of a block. All readings have the same
    mark, which is searched once. Names and values are cut once per way of cutting.
    """
    heads: dict[tuple[bool, bool], Head | None] = {}
    pieces: dict[tuple[object, ...], dict[str, str]] = {}
    for reading in readings:
        at = reading.place
        if at not in heads:
            heads[at] = reading.head(line)
        head = heads[at]
        if head is None:
            continue
        way = (at, *reading.way)
        if way not in pieces:
            pieces[way] = pairs_in(head.rest if below is None else below, reading.spec)
        found = pieces[way]
        if not reading.wanted(found):
            continue
        said = reading.events(head, found, line)
        if said:
            yield from said
            return
