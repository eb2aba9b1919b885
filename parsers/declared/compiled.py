"""A format as rules of the engine: the more specific mark is asked first.

Lines with the same mark are one rule, which reads the line once. A block is gathered: its event comes with the first
line that is none of it, or when it has stood complete at the end of its log for a while (`SourceReader.settle`).
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby
from typing import Any, ClassVar

from msgspec import field

from megatron_monitor.parsers.declared.expressions import Expressions
from megatron_monitor.parsers.declared.marks import LineMark
from megatron_monitor.parsers.declared.reading import Head, LineReader, Piece
from megatron_monitor.parsers.declared.schema import Format
from megatron_monitor.parsers.engine.prefixes import Prefix
from megatron_monitor.parsers.engine.scan import Gatherer, Line, Rule
from megatron_monitor.parsers.engine.spans import Spanned
from megatron_monitor.parsers.events import Event
from megatron_monitor.parsers.patterns import lazy

_MAX_BLOCK = 300  # lines of a block
_MAX_TEXT = 1000  # characters of one
_FOREIGN = 2  # lines of other ranks that may stand in a block before it names what it must


class BlockRule(Gatherer):
    """A head line and the lines below it. `readings` are those of its own mark."""

    readings: ClassVar[tuple[LineReader, ...]] = ()
    head: str
    lines: list[str] = field(default_factory=list)
    rank: int | None = None
    node: str | None = None
    logged_at: str | None = None
    ended: bool = False
    """The line that begins its last part was there."""
    foreign: int = 0
    """Lines of others within it."""

    @property
    def settles(self) -> bool:
        """`close` tells whether it is complete."""
        return True

    def offer(self, line: Line) -> tuple[list[Event], bool, bool]:
        """Takes what belongs to it; else says what it has gathered."""
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
        return [], False, begins  # where it begins anew it was cut off

    def _enough(self) -> bool:
        """Whether its lines name what they must."""
        below = self.readings[0].spec.separator.join(self.lines)
        return bool(below) and any(reading.wanted(reading.pairs(below, range(len(below)))) for reading in self.readings)

    def close(self) -> list[Event]:
        """Its event."""
        if self.readings[0].spec.ends and not self.ended:
            return []
        line = Line(self.head, Prefix(rank=self.rank, node=self.node, logged_at=self.logged_at))
        below = self.readings[0].spec.separator.join(self.lines)
        return [event for said in _answer(self.readings, below, line) for event in said.events()]


def rules_of(log_formats: Iterable[Format]) -> tuple[Rule, ...]:
    """The rules of the lines of these formats that a mark finds, the most specific first."""
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
    """The rules of its lines that regular expressions find, in their order; `make` makes a pattern of its text."""
    found = []
    rows = [spec for spec in log_format.lines if spec.regex]
    for name, several in groupby(rows, lambda spec: spec.rule or f"{log_format.name}.{spec.means}"):
        specs = tuple(several)
        one, anchors = Expressions(specs, make), tuple(anchor.encode() for spec in specs for anchor in spec.anchors)
        found.append(Rule(name, anchors, one.read, one.by_shape))
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
    """Lines that open a block."""
    if readings[0].head(line) is not None:
        yield block(line.text, [], line.origin["rank"], line.origin["node"], line.origin["logged_at"])


def _answer(readings: tuple[LineReader, ...], below: str | None, line: Line) -> Iterator[Spanned]:
    """Of the first reading whose line it is. `below`: the lines of a block. They have one mark, which is looked for
    once; names and values are cut once where they are cut alike.
    """
    heads: dict[tuple[bool, bool], Head | None] = {}
    pieces: dict[tuple[object, ...], dict[str, Piece]] = {}
    for reading in readings:
        at = reading.place
        if at not in heads:
            heads[at] = reading.head(line)
        head = heads[at]
        if head is None:
            continue
        way = (at, *reading.way)
        if way not in pieces:
            pieces[way] = reading.pairs(*(head[1:] if below is None else (below, range(len(below)))))
        found = pieces[way]
        if not reading.wanted(found):
            continue
        said = reading.events(head.values, found, line)
        if said:
            yield from said
            return
