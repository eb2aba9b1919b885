"""Compiles a format to rules of the engine. The more specific mark comes first.

Lines with the same mark are one rule, which reads the line once. A block is gathered. Its event comes with the first
line after the block, or after a silence if the block is complete (`SourceReader.settle`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any, ClassVar

from msgspec import field

from megatron_monitor.parsers.declared.marks import mark_of
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

    of: ClassVar["_RuleReader"]

    head: str
    origin: dict[str, Any]
    lines: list[str] = field(default_factory=list)
    ended: bool = False
    """True if the first line of its last part was read."""
    foreign: int = 0
    """Lines of other writers within the block."""

    @property
    def settles(self) -> bool:
        """True: `close` returns whether the block is complete."""
        return True

    @property
    def is_own(self) -> bool:
        """True if the head line is one of this rule."""
        return self.of.head(Line(self.head, Prefix(**self.origin))) is not None

    @property
    def shown(self) -> str:
        """The head line: the line that ends the block has nothing to do with it."""
        return self.head

    def offer(self, line: Line) -> tuple[list[Event], bool, bool]:
        """Take a line of the block, or return the block's event."""
        spec = self.of.specs[0]
        if line.text.startswith(spec.indent) and len(self.lines) < _MAX_BLOCK:
            text = line.text[len(spec.indent) :].strip()
            if text:
                self.lines.append(text[:_MAX_TEXT])
                self.ended = self.ended or (spec.ends != "" and text.startswith(spec.ends))
            if spec.until and text.startswith(spec.until):
                return self.close(), True, True
            return [], True, False
        begins = self.of.head(line) is not None
        if not spec.ends:
            self.foreign += bool(line.text.strip())
            if begins or self.foreign > _FOREIGN or (self.foreign and self.lines and self.close()):
                return self.close(), False, True
        elif self.ended:
            return self.close(), False, True
        return [], False, begins  # a block that begins again was cut off

    def close(self) -> list[Event]:
        """Return the block's event."""
        spec = self.of.specs[0]
        if spec.ends and not self.ended:
            return []
        line = Line(self.head + spec.separator.join(self.lines), Prefix(**self.origin))
        return [event for said in self.of.read(line) for event in events_of(said)]


class _RuleReader:
    """The lines of one rule. They are made ready when a line first needs them: most logs have few such lines."""

    def __init__(self, log_format: Format, specs: Sequence[LineSpec], make: Callable[[str], Any]) -> None:
        self._of, self.specs = (log_format, make), specs

    @cached_property
    def all(self) -> list[LineReader]:
        log_format, make = self._of
        return [LineReader(log_format, spec, make) for spec in self.specs]

    def head(self, line: Line) -> str | None:
        """Return the text of a block's first line, or None for another line."""
        return self.all[0].head(line)

    def read(self, line: Line) -> Sequence[Event | Spanned]:
        """Return the events of the first pattern that matches. With `every`: of each one, as often as it matches."""
        if not any(spec.every for spec in self.specs):
            places = ((one, next(one.found(line), None)) for one in self.all)
            return next((said for one, found in places if found and (said := one.read(line, found))), ())
        every = [(one, found) for one in self.all for found in one.found(line)]
        every.sort(key=lambda one: one[1][0].start())
        ends = [*(found[0].start() for _, found in every[1:]), len(line.text)]
        return [event for (one, found), end in zip(every, ends, strict=False) for event in one.read(line, found, end)]


def _rule(log_format: Format, specs: Sequence[LineSpec], make: Callable[[str], Any] = lazy) -> Rule:
    """Return the rule for lines with the same mark, or for consecutive expressions with the same name."""
    first, lines = specs[0], _RuleReader(log_format, specs, make)
    name = first.rule or f"{log_format.name}.{first.means}"
    texts = [mark_of(first.line).anchor] if first.line else [text for spec in specs for text in spec.anchors]
    anchors = tuple(text.encode() for text in texts)
    if first.form != "block":
        # a pattern that is not Python's own may time out on a line and match the next one of the same shape
        by_digits = make is not lazy or any(spec.by_digits for spec in specs)
        return Rule(name, anchors, lines.read, by_digits, any(spec.any_width for spec in specs))
    block = type("Block", (BlockRule,), {"of": lines, "__doc__": BlockRule.__doc__})

    def opened(line: Line) -> Iterator[Gatherer]:
        text = lines.head(line)
        if text is not None:
            yield block(text, line.origin)

    return Rule(name, anchors, opened, opens=block)


def rules_of(log_formats: Iterable[Format]) -> tuple[Rule, ...]:
    """Return the rules for lines of these formats with a mark, the most specific first."""
    found: list[tuple[int, Rule]] = []
    for log_format in log_formats:
        by_mark: dict[tuple[str, bool], list[LineSpec]] = {}
        for spec in (spec for spec in log_format.lines if spec.line):
            by_mark.setdefault((spec.line, spec.anywhere), []).append(spec)
        found += [
            (mark_of(text).weight + (not far), _rule(log_format, specs)) for (text, far), specs in by_mark.items()
        ]
    found.sort(key=lambda item: -item[0])
    return tuple(rule for _, rule in found)


def expressions_of(log_format: Format, make: Callable[[str], Any] = lazy) -> tuple[Rule, ...]:
    """Return the rules for lines with a regular expression, in their order. `make` makes a pattern from its text."""
    rows = [spec for spec in log_format.lines if spec.regex]
    named = groupby(rows, lambda spec: spec.rule or f"{log_format.name}.{spec.means}")
    return tuple(_rule(log_format, tuple(specs), make) for _, specs in named)
