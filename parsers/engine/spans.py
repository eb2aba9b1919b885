"""Spans: the bytes of a line that fill a field, so that further lines of its shape are read by slices.

The shape of a line is the line with each digit as `0`. A rule reads the first line of a shape and answers with
`Spanned`: an event whose values are spans of the text with their converters. A `Layout` keeps the spans as slices of
the line's bytes and reads further lines of the shape with the same converters.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from copy import copy
from functools import lru_cache
from typing import Any, TypeAlias

from msgspec import Struct

from megatron_monitor.parsers.engine import fields
from megatron_monitor.parsers.engine.prefixes import iso_time
from megatron_monitor.parsers.events import ANSI, Event

SHAPE = bytes(48 if 48 <= code <= 57 else code for code in range(256))
"""Translates a line to its shape."""

Convert: TypeAlias = Callable[[str], Any]

_COLOURS = re.compile(ANSI.pattern.encode())
_DIGIT = re.compile("[0-9]")
_NUMBERS = re.compile(b"[0-9]+")
_SMALL = re.compile(rb"\d{1,6}(?:\.\d{1,6})?(?:, \d{1,6}(?:\.\d{1,6})?)?")
_WHOLE = re.compile(rb"[-+]?\d{1,15}")
_PLAIN = re.compile(rb"[-+]?\d{1,15}(?:\.\d{1,20})?(?:[eE][-+]?\d\d?)?")
_MAX_REMEMBERED = 256  # remembered texts per converter: most lines repeat values such as memory sizes


class NoLayoutError(Exception):
    """Lines of this shape must be read by their rules."""


class Span(Struct, gc=False):
    """A piece of a segment: where it begins, its converter and its text."""

    start: int
    text: str
    read: Convert
    value: Any


class Spanned(Struct):
    """One or several events whose values may be spans, mappings of spans or tuples of spans."""

    make: Callable[..., Any]
    """The event's class, or a function that makes events from the values."""
    values: dict[str, Any]

    def events(self) -> list[Event]:
        """Return the events of the line that the rule read."""
        made = self.make(**value_of(self.values))
        return [made] if isinstance(made, Event) else list(made)


def value_of(said: Any) -> Any:
    """Return the value of a span, or of a mapping or tuple. What has no value is left out of mappings and tuples."""
    kind = type(said)
    if kind is dict:
        return {name: value for name, one in said.items() if (value := value_of(one)) is not None}
    if kind is tuple:
        return tuple([value for one in said if (value := value_of(one)) is not None])
    return said.value if kind is Span else said


_Item: TypeAlias = tuple[Any, int, Callable[[bytes], Any]]
"""A value's name, the number of its slice, and the converter of the bytes. A name with digits is a slice's number."""


class Layout:
    """Reads the lines of one shape."""

    def __init__(
        self,
        raw: bytes,
        answer: Sequence[tuple[str, Spanned]],
        used: Callable[[Event], bool] | None,
    ) -> None:
        """Create the layout from `raw`, the first line of the shape, and `answer`, the rules' answer for it. Raises
        NoLayoutError. `used` returns True if the reader needs an event. None: all events are needed, redrawn progress
        bars included.
        """
        self._raw, self._places, self._slices = raw, _places(raw), [slice(0)]
        self._starts, self._ends = list[int](), list[int]()
        """Of the numbers in `raw`, once another width is seen."""
        self._forms: dict[int, re.Pattern[bytes]] = {}
        """Number of a slice -> the form of its text on which the choice of its converter depends."""
        self._answer = [(rule, *self._bound(said)) for rule, said in answer]
        self._bind(self._slices)
        events = [event for _, said in answer for event in said.events()]
        wanted = [used is None or used(event) for event in events]
        self._used = None if all(wanted) else used
        self.used = any(wanted) or not events
        """False if the reader needs none of the events of such lines."""
        self.redrawn = used is not None and all(event.redrawn for event in events)
        """True if a repeated line adds nothing: a progress bar is redrawn again and again."""

    def read(self, raw: bytes) -> list[tuple[str, Event]] | None:
        """Return the (rule, event) pairs of a line, or None if the rules must be asked because a number is out of
        bounds.
        """
        found: list[tuple[str, Event]] = []
        for rule, make, constants, items, maps in self._parts:
            values = {name: read(raw[at]) for name, at, read in items}
            if None in values.values():
                return None
            for name, several, kind in maps:
                inner = {raw[key].decode() if type(key) is slice else key: read(raw[at]) for key, at, read in several}
                if None in inner.values():
                    return None
                values[name] = inner if kind is dict else tuple(inner.values())
            made = make(**values, **constants)
            if isinstance(made, Event):
                found.append((rule, made))
            else:
                found += [(rule, event) for event in made]
        if self._used is not None:
            return [one for one in found if self._used(one[1])]
        return found if found or not self._parts else None

    def fitted(self, shape: bytes) -> "Layout":
        """Return the layout for a shape whose numbers have other widths. Raises NoLayoutError."""
        if not self._starts:
            before = [match.span() for match in _NUMBERS.finditer(self._raw)]
            self._starts, self._ends = [start for start, _ in before], [end for _, end in before]
        after, starts, ends = [match.span() for match in _NUMBERS.finditer(shape)], self._starts, self._ends
        slices = [slice(0)]
        for at in self._slices[1:]:
            first, last = bisect_right(ends, at.start), bisect_left(starts, at.stop) - 1
            if first > last:
                raise NoLayoutError
            left, right = at.start - starts[first], at.stop - ends[last]
            slices.append(slice(after[first][0] + left, after[last][1] + right))
        if any(not form.fullmatch(shape[slices[place]]) for place, form in self._forms.items()):
            raise NoLayoutError
        other = copy(self)
        other._bind(slices)
        return other

    def _bind(self, slices: Sequence[slice]) -> None:
        def bound(items: Sequence[_Item]) -> list[tuple[Any, slice, Callable[[bytes], Any]]]:
            return [(slices[name] if type(name) is int else name, slices[at], read) for name, at, read in items]

        self._parts = [
            (rule, make, constants, bound(items), [(name, bound(several), kind) for name, several, kind in maps])
            for rule, make, constants, items, maps in self._answer
        ]

    def _bound(
        self, said: Spanned
    ) -> tuple[Callable[..., Any], dict[str, Any], list[_Item], list[tuple[str, list[_Item], type]]]:
        """Return what makes the events of a line, the values that all such lines share, the other values, and mappings
        and tuples of values.
        """
        constants: dict[str, Any] = {}
        items: list[_Item] = []
        maps: list[tuple[str, list[_Item], type]] = []
        for name, value in said.values.items():
            if isinstance(value, dict | tuple):
                several = value.items() if isinstance(value, dict) else (((at,), one) for at, one in enumerate(value))
                bound = [self._item(*one) for one in several if _varies(one[1]) or value_of(one[1]) is not None]
                maps.append((name, bound, type(value)))
            elif _varies(value):
                items.append(self._item(name, value))
            elif (constant := value_of(value)) is not None:
                constants[name] = constant
        return said.make, constants, items, maps

    def _item(self, name: Any, said: Any) -> _Item:
        """Return a value of the line, or of one of its mappings. A name with digits is read from the line."""
        digits = isinstance(name, str) and _DIGIT.search(name)
        text, value = (said.text, said.value) if isinstance(said, Span) else (said, said)
        if not digits and not _DIGIT.search(text):
            return name, 0, lambda _: value
        if not isinstance(said, Span):  # a text without digits, which other lines of the shape share
            raise NoLayoutError
        at = self._slice(said)
        read, form = _of_bytes(said, self._raw[at])
        if digits:
            start = self._raw.rfind(name.encode(), 0, at.start)
            if start < 0:
                raise NoLayoutError
            name = self._added(slice(start, start + len(name.encode())))
        number = self._added(at)
        if form is not None:
            self._forms[number] = form
        return name, number, read

    def _slice(self, span: Span) -> slice:
        """Return the slice of a span. Raises NoLayoutError if the bytes are not where the rule found them."""
        start, last = span.start, span.start + len(span.text) - 1
        if not 0 <= start <= last < len(self._places):
            raise NoLayoutError
        at = slice(self._places[start], self._places[last] + 1)
        if self._raw[at] != span.text.encode():
            raise NoLayoutError
        return at

    def _added(self, at: slice) -> int:
        """Return the number of a slice."""
        self._slices.append(at)
        return len(self._slices) - 1


def _varies(said: Any) -> bool:
    """Return True for a span whose text has digits."""
    return isinstance(said, Span) and _DIGIT.search(said.text) is not None


def _places(raw: bytes) -> Sequence[int]:
    """Return the position of each character of the line's text, without colour codes."""
    if raw.isascii() and b"\x1b" not in raw:
        return range(len(raw))
    colours = {place for match in _COLOURS.finditer(raw) for place in range(*match.span())}
    return [place for place, byte in enumerate(raw) if byte & 0xC0 != 0x80 and place not in colours]


def _of_bytes(span: Span, text: bytes) -> tuple[Callable[[bytes], Any], re.Pattern[bytes] | None]:
    """Return a span's converter for bytes. A C function is used if it gives the same result for all digits in a text of
    this form.
    """
    if span.value is None:  # other digits may give a value
        raise NoLayoutError
    form, read = QUICK.get(span.read, (None, bytes.decode))
    if form is not None and form.fullmatch(text):
        return read, form
    return _remembered(span.read) if isinstance(span.value, int | float) else _decoded(span.read), None


def _decoded(read: Convert) -> Callable[[bytes], Any]:
    return bytes.decode if read is str else lambda text: read(text.decode())


@lru_cache(64)
def _remembered(read: Convert) -> Callable[[bytes], Any]:
    return lru_cache(_MAX_REMEMBERED)(lambda text: read(text.decode()))


def _seconds(text: bytes) -> float:
    return float(text + b"e-3")


def _range(text: bytes) -> tuple[float, float]:
    low, _, high = text.partition(b", ")
    least = float(low + b"e-3")
    return (least, float(high + b"e-3")) if high else (least, least)


def _clock(text: bytes) -> float:
    return float(int(text[:-6] or 0) * 3600 + int(text[-5:-3]) * 60 + int(text[-2:]))


def _time(text: bytes) -> str:
    return text.decode().replace(" ", "T", 1).replace(",", ".")


QUICK: dict[Convert, tuple[re.Pattern[bytes], Callable[[bytes], Any]]] = {
    **dict.fromkeys((int, fields.integer), (_WHOLE, int)),
    **dict.fromkeys((fields.number, fields.finite), (_PLAIN, float)),
    fields.milliseconds: (_SMALL, _seconds),
    fields.milliseconds_range: (_SMALL, _range),
    fields.clock: (re.compile(rb"(?:\d{1,4}:)?\d\d:\d\d"), _clock),
    iso_time: (re.compile(rb"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?"), _time),
}
"""Converter -> the form of text for which a faster converter of bytes gives the same result for all digits, and that
converter.
"""
