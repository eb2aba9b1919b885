"""Remembers what is known about line shapes: noise, the rules to ask, or the layout that reads the line.

Most lines of a training log are noise. Each rule names anchors: literals, at least one of which is in each of its
lines. One pass finds the anchors in new shapes. Only lines with an anchor are decoded and read. All streams share one
memo. It changes how fast a line is read, never what is read from it.
"""

import re
from collections.abc import Callable, Sequence
from copy import copy
from itertools import repeat
from typing import TypeAlias

from ahocorasick_rs import BytesAhoCorasick

from megatron_monitor.parsers.engine.scan import Rule
from megatron_monitor.parsers.engine.spans import SHAPE, Layout, NoLayoutError, Spanned
from megatron_monitor.parsers.events import Event
from megatron_monitor.parsers.wrappers import may_carry

_MAX_BYTES = 4 << 20  # of remembered shapes; above it all are forgotten. A log of 500 MB has some thousand
_LAYOUT = 1000  # bytes of a layout
_MAX_SHAPE = 4000  # bytes; longer lines are rare (the longest real iteration line has 700) and searched each time
_WIDTHS = re.compile(b"0{1,15}")  # longer numbers may be out of bounds
_MAX_TRIES = 20  # lines of a shape after which no further layout is tried


class Shape:
    """Lines of one shape: the rules that may match them, and the layout that reads them once it is known."""

    __slots__ = ("answer", "key", "layout", "rules", "tries")

    def __init__(self, key: bytes, rules: tuple[Rule, ...]) -> None:
        self.key = key
        self.rules = rules
        self.tries = 0
        self.layout: Layout | None = None
        """None: there may be one."""
        self.answer: tuple[bytes, str, list[Spanned | Event]] | None = None
        """The first line, and the rule that reads it with its answer, until a second line of the shape comes."""


Known: TypeAlias = Shape | None
"""None: noise, which no rule matches."""


class Memo:
    """The shapes known so far."""

    def __init__(self, rules: Sequence[Rule], used: Callable[[Event], bool] | None = None) -> None:
        """Create a memo. `used` returns True if the reader's caller needs an event. It may use the event's type and
        names, not its numbers: if a shape gives no needed event, its lines are not read again. None: all events are
        needed.
        """
        self.rules = tuple(rules)
        wanted: dict[bytes, dict[int, None]] = {}
        for index, rule in enumerate(self.rules):
            for anchor in rule.anchors:
                wanted.setdefault(anchor.translate(SHAPE), {})[index] = None
        self._wanted = tuple(wanted.values())
        self._find = BytesAhoCorasick(list(wanted)).find_matches_as_indexes
        self.used = used
        self._shapes: dict[bytes, Known] = {}
        self._carrying = set[bytes]()
        """Shapes of lines that may carry other lines or parts of them."""
        self._any_width: dict[bytes, Shape] = {}
        """The first of the shapes that differ only in the widths of their numbers, by the shape with one digit per
        number."""
        self._bytes = 0

    def known(self, data: bytes) -> tuple[list[Known], bool]:
        r"""Return what is known about each line of `data`, cut at `\n`, and whether one of them may carry other lines.
        New shapes are searched for anchors.
        """
        shapes = data.translate(SHAPE).split(b"\n")
        known = list(map(self._shapes.get, shapes, repeat(_NEW)))
        carries = bool(self._carrying) and not self._carrying.isdisjoint(shapes)
        if _NEW in known:
            new = [index for index, entry in enumerate(known) if entry is _NEW]
            carries |= self._search(shapes, known, new)
        return known, carries

    def _search(self, shapes: Sequence[bytes], known: list[Known], new: Sequence[int]) -> bool:
        """Search the shapes at the indices `new`. Return True if one of their lines may carry others."""
        found = False
        distinct: dict[bytes, Known] = dict.fromkeys([shapes[index] for index in new])
        for shape, rules in zip(distinct, self.rules_of(list(distinct)), strict=True):
            distinct[shape] = entry = Shape(shape, rules) if rules else None
            carries = may_carry(shape)
            found |= carries
            if len(shape) <= _MAX_SHAPE:
                self._count(len(shape))
                self._shapes[shape] = entry
                if carries:
                    self._carrying.add(shape)
        for index in new:
            known[index] = distinct[shapes[index]]
        return found

    def rules_of(self, shapes: Sequence[bytes]) -> list[tuple[Rule, ...]]:
        """Return, for each shape, the rules that may match its lines, in order. Most shapes have none."""
        hits = self._find(b"\n".join(shapes), overlapping=True)
        if not hits:
            return [()] * len(shapes)
        found: list[tuple[Rule, ...]] = []
        at, end = 0, -1
        for shape in shapes:
            end += len(shape) + 1
            rules: set[int] = set()
            while at < len(hits) and hits[at][1] < end:
                rules.update(self._wanted[hits[at][0]])
                at += 1
            found.append(tuple([self.rules[index] for index in sorted(rules)]))
        return found

    def _count(self, size: int) -> None:
        self._bytes += size
        if self._bytes > _MAX_BYTES:
            self._shapes.clear()
            self._any_width.clear()
            self._carrying.clear()
            self._bytes = size

    def learn(self, shape: Shape, raw: bytes, asked: int, answer: Sequence[object]) -> None:
        """Remember how to read lines of this shape, unless a digit decides that. The first `asked` rules gave `answer`
        for `raw`, a line of one segment. An empty answer means that the shape is noise. Lines of a shape without digits
        are equal, so any event is an answer for them.
        """
        shape.tries += 1
        key = shape.key
        if shape.tries > _MAX_TRIES or key not in self._shapes or shape.layout is not RULES:
            return
        same = b"0" not in key
        if any(rule.by_digits for rule in shape.rules[:asked]) and not (same and answer):
            return
        if not answer:
            self._shapes[key] = None
            shape.layout = NOTHING  # the block that is being read knows only the shape
            return
        kept = (Spanned, Event) if same else Spanned
        known = [item for item in answer if isinstance(item, kept)]
        if len(known) < len(answer):
            return
        self._count(_LAYOUT)
        rule = shape.rules[asked - 1]
        shape.answer, shape.layout = (raw, rule.name, known), None
        if rule.any_width:
            self._any_width.setdefault(_WIDTHS.sub(b"0", key), shape)

    def layout(self, shape: Shape) -> Layout:
        """Return the layout of a shape whose first line is known, or that of a shape with other widths of numbers, or
        RULES.
        """
        first = shape
        if shape.answer is None:
            first = self._any_width.get(_WIDTHS.sub(b"0", shape.key), shape)
        try:
            if first.answer is not None:
                answer, first.answer = first.answer, None
                first.layout = Layout(*answer, self.used)
            known = first.layout or RULES
            shape.layout = known if first is shape or known is RULES else known.fitted(shape.key)
        except NoLayoutError:
            shape.layout = RULES
        if not shape.layout.used and shape.key in self._shapes:
            self._shapes[shape.key] = None
        return shape.layout


NOTHING = Layout(b"", "", (), None)
RULES = copy(NOTHING)
"""Of lines that the rules must read."""
RULES.read = lambda raw, number: None  # noqa: ARG005
_NEW = Shape(b"", ())
