"""What is known of line shapes: noise, which rules to ask, or the template that reads the line.

A memo that all sources share: what it holds changes how fast a line is read and never what is read from it.
"""

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from megatron_monitor.parsers.engine.scan import Scanner
from megatron_monitor.parsers.engine.templates import (
    SHAPE,
    UNUSED,
    Answer,
    Layout,
    NoTemplateError,
    Reading,
    Template,
    agrees,
    defaults,
    learn,
    says_nothing,
    widths_aside,
)
from megatron_monitor.parsers.events import Event

_MAX_BYTES = 4 << 20  # of shapes that are kept; then all are forgotten. A log of 500 MB has some thousand
_MAX_SHAPE = 4000  # bytes; longer lines are rare (the longest real iteration line has 700) and searched each time
_TRIES = 20  # lines of a shape after which no template is looked for any more
_ENOUGH = 4  # shapes on which a layout proves itself before it reads others unproved
_NEVER = -1_000_000_000
_MAX_LAYOUTS = 500  # a run has some ten; what is learned in vain costs a millisecond


class Shape:
    """Lines of one shape: the rules that may want them, and the template that reads them once it is known."""

    __slots__ = ("new", "rules", "seen", "template")

    def __init__(self, rules: tuple[int, ...]) -> None:
        self.rules = rules
        self.new = True
        self.seen = 0
        self.template: Template | None = None


Known: TypeAlias = Shape | None
"""None: noise, no rule wants such lines."""


class Memo:
    """Shapes and layouts known so far."""

    def __init__(
        self,
        scanner: Scanner,
        used: Callable[[Event], bool] | None = None,
        unread: Mapping[type[Event], Collection[str]] | None = None,
    ) -> None:
        """`used`: whether the reader's caller has a use for an event. It may ask for its type and for names in it, not
        for numbers: lines of a shape that gives nothing of use are not read again. None: every event is wanted.
        `unread`: fields for which it has no use: templates leave them out.
        """
        self.scanner = scanner
        self.used = used
        self._unread = unread or {}
        self.templated = {rule.name: rule.templated for rule in scanner.rules}
        self._shapes: dict[bytes, Known] = {}
        self._bytes = 0
        self._layouts: dict[bytes, Layout | None] = {}

    def known(self, data: bytes) -> list[Known]:
        r"""What is known of each line of `data`, cut at `\n`; shapes that are new are searched for anchors."""
        shapes = data.translate(SHAPE).split(b"\n")
        get = self._shapes.get
        known = [get(shape, _NEW) for shape in shapes]
        if _NEW in known:
            new = [index for index, entry in enumerate(known) if entry is _NEW]
            self._search(shapes, known, new)
        return known

    def _search(self, shapes: Sequence[bytes], known: list[Known], new: Sequence[int]) -> None:
        distinct = dict.fromkeys([shapes[index] for index in new])
        for shape, rules in zip(distinct, self.scanner.rules_of(list(distinct)), strict=True):
            self._keep(shape, Shape(rules) if rules else None, distinct)
        for index in new:
            known[index] = distinct[shapes[index]]

    def _keep(self, shape: bytes, entry: Known, found: dict[bytes, Known]) -> None:
        found[shape] = entry
        if len(shape) <= _MAX_SHAPE:
            self._bytes += len(shape)
            if self._bytes > _MAX_BYTES:
                self._shapes.clear()
                self._bytes = len(shape)
            self._shapes[shape] = entry

    def template(self, shape: Shape, raw: bytes) -> Template | None:
        """The template of a new shape, where a layout is known that has proved itself on others."""
        shape.new = False
        layout = self._layouts.get(widths_aside(raw.translate(SHAPE)))
        if layout is not None and layout.proofs >= _ENOUGH:
            with contextlib.suppress(NoTemplateError):
                self._set(shape, raw, layout, layout.template(raw))
        return shape.template

    def _set(self, shape: Shape, raw: bytes, layout: Layout, template: Template) -> None:
        shape.template = template if layout.used else UNUSED
        if not layout.used and (key := raw.translate(SHAPE)) in self._shapes:
            self._shapes[key] = None

    def learn(self, shape: Shape, raw: bytes, answer: Answer, read: Reading) -> None:
        """The reference reading `read` gave `answer` for a line of this shape: the second one makes its template."""
        shape.seen += 1
        if shape.seen > _TRIES or len(raw) > _MAX_SHAPE:
            return
        key = widths_aside(raw.translate(SHAPE))
        layout = self._layouts.get(key)
        if layout is None and shape.seen < 2 + len(self._layouts) // 50:
            return
        answer = self._of_use(answer)
        try:
            if layout is None:
                shape.seen = _TRIES
                if key in self._layouts or len(self._layouts) >= _MAX_LAYOUTS:
                    return
                self._layouts[key] = None
                layout = self._layouts[key] = learn(raw, answer, lambda other: self._of_use(read(other)))
                if self.used is not None:
                    layout.used = any(self.used(event) for _, event in answer)
                    layout.redrawn = all(event.redrawn for _, event in answer)
            template = layout.template(raw)
        except NoTemplateError:
            return
        if template.read(raw) is not None and agrees(template, raw, answer):
            layout.proofs += 1
            self._set(shape, raw, layout, template)
        else:
            layout.proofs = _NEVER

    def rule_out(self, shape: Shape, raw: bytes, read: Reading) -> None:
        """The reference reading `read` found nothing in a line of this shape: from the second one on it is noise."""
        shape.seen += 1
        key = raw.translate(SHAPE)
        if shape.seen != 2 or key not in self._shapes:
            return
        if all(self.scanner.rules[rule].templated for rule in shape.rules) and says_nothing(raw, read):
            self._shapes[key], shape.template = None, UNUSED  # a block that is being read knows the shape alone

    def _of_use(self, answer: Answer) -> Answer:
        """Without the fields that nobody reads."""
        return [(rule, self._reduced(event)) for rule, event in answer]

    def _reduced(self, event: Event) -> Event:
        names = self._unread.get(type(event))
        return event if names is None else replace(event, **{name: defaults(type(event))[name] for name in names})


_NEW = Shape(())
