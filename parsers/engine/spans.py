"""Spans: the bytes of a line that fill a field, so that further lines of its shape are read by slices.

The shape of a line is the line with each digit as `0`. A rule reads the first line of a shape and answers with
`Spanned`: an event whose values are spans of the text with their converters. A `Layout` keeps the spans as slices of
the line's bytes and reads further lines of the shape with the same converters.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeAlias, cast

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
_MAX_DIGITS = 15  # maximum digits of a number whose width may vary
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
        values = dict(self.values)
        for name, value in self.values.items():
            if type(value) is Span:
                values[name] = value.value
            elif type(value) is dict:
                values[name] = {key: one.value if type(one) is Span else one for key, one in value.items()}
            elif type(value) is tuple:
                values[name] = tuple([one.value for one in value])
        made = self.make(**values)
        return [made] if isinstance(made, Event) else list(made)


_Bound: TypeAlias = tuple[Any, slice, Callable[[bytes], Any]]
"""A value's name, its slice of the line, and the converter of the bytes."""


class _Item(NamedTuple):
    """A value of the first line."""

    name: Any
    """Its name. For an item of a mapping whose name has digits: the slice of the name."""
    at: slice
    """Its slice of the line."""
    said: Any
    """Its span, or the value itself if its text has no digit."""


class _Widths:
    """Where the values of a line are in lines whose numbers have other widths."""

    def __init__(self, line: bytes) -> None:
        numbers = _numbers(line)
        self._starts, self._ends = [start for start, _ in numbers], [end for _, end in numbers]
        self._cuts: dict[tuple[int, int], tuple[int, int, int, int]] = {}

    def bound(self, item: _Item, numbers: Sequence[tuple[int, int]], line: bytes) -> _Bound:
        """Return the same value's slice in a line with these numbers."""
        name, at, said = item
        if type(said) is not Span:
            return _bound(item, line)
        at = self._place(at, numbers)
        form = QUICK[said.read][0] if said.read in QUICK else None
        if form and not form.fullmatch(line[at]) and form.fullmatch(said.text.encode()):
            raise NoLayoutError  # it may be out of bounds
        return self._place(name, numbers) if type(name) is slice else name, at, _of_bytes(said, line[at])

    def _place(self, at: slice, numbers: Sequence[tuple[int, int]]) -> slice:
        place = self._cuts.get((at.start, at.stop)) or self._locate(at)
        return slice(numbers[place[0]][0] - place[1], numbers[place[2]][1] + place[3])

    def _locate(self, at: slice) -> tuple[int, int, int, int]:
        """Return the index of the first number in the slice, the bytes before it, the index of the last number, and the
        bytes after it.
        """
        first, last = bisect_right(self._ends, at.start), bisect_left(self._starts, at.stop) - 1
        before, behind = self._starts[first] - at.start, at.stop - self._ends[last]
        if first > last or before < 0 or behind < 0:
            raise NoLayoutError
        self._cuts[at.start, at.stop] = place = first, before, last, behind
        return place


def _numbers(line: bytes) -> list[tuple[int, int]]:
    return [match.span() for match in _NUMBERS.finditer(line)]


class Layout:
    """Reads the lines of one shape."""

    __slots__ = ("_parts", "_raw", "_used", "_widths", "read", "redrawn", "used")

    def __init__(self, raw: bytes, answer: Sequence[tuple[str, Spanned]], used: Callable[[Event], bool] | None) -> None:
        """Create the layout from `raw`, the first line of the shape, and `answer`, the rules' answer for it. Raises
        NoLayoutError. `used` returns True if the reader needs an event. None: all events are needed, redrawn progress
        bars included.
        """
        places = _places(raw)
        self._raw, self._widths = raw, cast("_Widths | None", None)
        self._parts = [(rule, _Part.of(raw, said, places)) for rule, said in answer]
        events = [event for _, said in answer for event in said.events()]
        wanted = [used is None or used(event) for event in events]
        self._used = None if all(wanted) else used
        one = len(answer) == len(events) == 1 and all(wanted) and isinstance(answer[0][1].make, type)
        self.read = self._one if one else self._all
        """Returns the (rule, event) pairs of a line, or None if the rules must be asked because a number is out of
        bounds.
        """
        self.used = any(wanted) or not events
        """False if the reader needs none of the events of such lines."""
        self.redrawn = used is not None and all(event.redrawn for event in events)
        """True if a repeated line adds nothing: a progress bar is redrawn again and again."""

    def fitted(self, shape: bytes) -> "Layout":
        """Return the layout for a shape whose numbers have other widths. Raises NoLayoutError."""
        self._widths = widths = self._widths or _Widths(self._raw)
        numbers, other = _numbers(shape), Layout.__new__(Layout)
        if any(end - start > _MAX_DIGITS for start, end in numbers):
            raise NoLayoutError
        other._parts = [(rule, part.fitted(widths, numbers, shape)) for rule, part in self._parts]
        other.used, other.redrawn, other._used = self.used, self.redrawn, self._used
        other.read = other._one if self.read == self._one else other._all
        return other

    def _one(self, raw: bytes) -> list[tuple[str, Event]] | None:
        ((rule, part),) = self._parts
        event = part.read(raw)
        return None if event is None else [(rule, event)]

    def _all(self, raw: bytes) -> list[tuple[str, Event]] | None:
        found = []
        for rule, part in self._parts:
            made = part.read(raw)
            if made is None:
                return None
            if isinstance(made, Event):
                found.append((rule, made))
            else:
                events = list(made)
                if not events:
                    return None
                found += [(rule, event) for event in events]
        return found if self._used is None else [one for one in found if self._used(one[1])]


class _Part:
    """Makes the events of one `Spanned` from the bytes of a line: values, and values within mappings or tuples."""

    __slots__ = ("_constants", "_items", "_make", "_maps", "fields", "maps")

    def __init__(self, make: Callable[..., Any], constants: dict[str, Any]) -> None:
        self._make, self._constants = make, constants
        self._items: list[_Item] = []
        self._maps: list[tuple[str, list[_Item], type]] = []
        self.fields: list[_Bound] = []
        self.maps: list[tuple[str, list[_Bound], bool, type]] = []

    @classmethod
    def of(cls, raw: bytes, said: Spanned, places: Sequence[int]) -> "_Part":
        """Return the part for the first line. `places` has the position of each character of its text."""
        part = cls(said.make, {})
        for name, value in said.values.items():
            if isinstance(value, dict | tuple):
                part._maps.append((name, _map(raw, value, places), type(value)))
            elif isinstance(value, Span) and _DIGIT.search(value.text):
                part._items.append(_Item(name, _slice(raw, value, places), value))
            else:
                part._constants[name] = value.value if isinstance(value, Span) else value
        part._bind(part, lambda item: _bound(item, raw))
        return part

    def fitted(self, widths: _Widths, numbers: Sequence[tuple[int, int]], line: bytes) -> "_Part":
        """Return the part for a line with these numbers, or for its shape."""
        other = _Part(self._make, self._constants)
        self._bind(other, lambda item: widths.bound(item, numbers, line))
        return other

    def _bind(self, other: "_Part", bound: Callable[[_Item], _Bound]) -> None:
        other.fields = list(map(bound, self._items))
        for name, items, kind in self._maps:
            other.maps.append((name, list(map(bound, items)), any(type(item.name) is slice for item in items), kind))

    def read(self, raw: bytes) -> Any:
        values = {name: read(raw[at]) for name, at, read in self.fields}
        if None in values.values():
            return None
        for name, items, named, kind in self.maps:
            if named:
                value = {(raw[key].decode() if type(key) is slice else key): read(raw[at]) for key, at, read in items}
            else:
                value = {key: read(raw[at]) for key, at, read in items}
            if None in value.values():
                return None
            values[name] = value if kind is dict else tuple(value.values())
        return self._make(**values, **self._constants)


def _map(raw: bytes, value: Mapping[str, Any] | tuple[Any, ...], places: Sequence[int]) -> list[_Item]:
    """Return the items of a mapping or tuple. Names with digits are read from the line."""
    items: list[_Item] = []
    for name, item in value.items() if isinstance(value, dict) else enumerate(value):
        digits = _DIGIT.search(str(name)) if isinstance(value, dict) else None
        text, plain = (item.text, item.value) if isinstance(item, Span) else (item, item)
        if not digits and not _DIGIT.search(text):
            items.append(_Item(name, slice(0, 0), plain))
            continue
        if not isinstance(item, Span):  # a text without digits, which other lines of the shape share
            raise NoLayoutError
        at = _slice(raw, item, places)
        items.append(_Item(_before(raw, str(name), at.start) if digits else name, at, item))
    return items


def _bound(item: _Item, line: bytes) -> _Bound:
    """Return (name, slice, converter)."""
    said = item.said
    return item.name, item.at, _of_bytes(said, line[item.at]) if isinstance(said, Span) else partial(_same, said)


def _before(raw: bytes, name: str, end: int) -> slice:
    """Return where a name is before its value."""
    key = name.encode()
    start = raw.rfind(key, 0, end)
    if start < 0:
        raise NoLayoutError
    return slice(start, start + len(key))


def _places(raw: bytes) -> Sequence[int]:
    """Return the position of each character of the line's text, without colour codes."""
    if raw.isascii() and b"\x1b" not in raw:
        return range(len(raw))
    colours = {place for match in _COLOURS.finditer(raw) for place in range(*match.span())}
    return [place for place, byte in enumerate(raw) if byte & 0xC0 != 0x80 and place not in colours]


def _slice(raw: bytes, span: Span, places: Sequence[int]) -> slice:
    """Return the slice of a span. Raises NoLayoutError if the bytes are not where the rule found them."""
    start, last = span.start, span.start + len(span.text) - 1
    if not 0 <= start <= last < len(places):
        raise NoLayoutError
    at = slice(places[start], places[last] + 1)
    if raw[at] != span.text.encode():
        raise NoLayoutError
    return at


def _of_bytes(span: Span, text: bytes) -> Callable[[bytes], Any]:
    """Return a span's converter for bytes. A C function is used if it gives the same result for all digits."""
    if span.value is None:  # other digits may give a value
        raise NoLayoutError
    quick = QUICK.get(span.read)
    if quick is not None:
        form, read = quick
        if form.fullmatch(text):
            return read
    return _remembered(span.read) if isinstance(span.value, int | float) else _decoded(span.read)


def _decoded(read: Convert) -> Callable[[bytes], Any]:
    return bytes.decode if read is str else lambda text: read(text.decode())


@lru_cache(64)
def _remembered(read: Convert) -> Callable[[bytes], Any]:
    return lru_cache(_MAX_REMEMBERED)(lambda text: read(text.decode()))


def _same(value: Any, _text: bytes) -> Any:
    return value


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
    **dict.fromkeys((int, fields.integer, fields.whole_amount), (_WHOLE, int)),
    **dict.fromkeys(
        (fields.number, fields.finite, fields.amount, fields.finite_amount, fields.kept, fields.real), (_PLAIN, float)
    ),
    **dict.fromkeys((fields.milliseconds, fields.amount_of_milliseconds), (_SMALL, _seconds)),
    fields.milliseconds_range: (_SMALL, _range),
    fields.clock: (re.compile(rb"(?:\d{1,4}:)?\d\d:\d\d"), _clock),
    iso_time: (re.compile(rb"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?"), _time),
}
"""Converter -> the form of text for which a faster converter of bytes gives the same result for all digits, and that
converter.
"""
