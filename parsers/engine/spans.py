"""Spans: which bytes of a line fill which field, so that further lines of its shape are read by slices.

A line's shape is the line with every digit as `0`. A rule reads the first line of a shape and answers with `Spanned`:
an event whose values are spans of the text and the converters that read them. A `Layout` holds these as slices of the
line's bytes and reads all further lines of the shape by the same converters.
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
_WIDEST = 15  # digits of a number of another width
_REPEATED = 256  # texts whose value is remembered, a converter: memory, in which most are told, stays the same


class NoLayoutError(Exception):
    """Lines of this shape are read by their rules, each."""


class Span(Struct, gc=False):
    """A piece of a segment, where it begins, what reads it, and what it says."""

    start: int
    text: str
    read: Convert
    value: Any


class Spanned(Struct):
    """An event, or several, whose values may be spans, spans by name, or tuples of them."""

    make: Callable[..., Any]
    """The event's class; or what makes events of the values."""
    values: dict[str, Any]

    def events(self) -> list[Event]:
        """Of the line that was read by the rule."""
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
"""A value's name, where it stands, and what reads the bytes there."""


class _Item(NamedTuple):
    """A value of the first line."""

    name: Any
    """Its name; of an item of a mapping whose name holds digits, where that stands."""
    at: slice
    """Where it stands."""
    said: Any
    """Its span; or what it is, where no digit stands in it."""


class _Widths:
    """Where the values of a line stand in others, whose numbers have other widths."""

    def __init__(self, line: bytes) -> None:
        numbers = _numbers(line)
        self._starts, self._ends = [start for start, _ in numbers], [end for _, end in numbers]
        self._cuts: dict[tuple[int, int], tuple[int, int, int, int]] = {}

    def bound(self, item: _Item, numbers: Sequence[tuple[int, int]], line: bytes) -> _Bound:
        """The same value in a line of these numbers."""
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
        """The first number in it, bytes before that, the last one, bytes behind that."""
        first, last = bisect_right(self._ends, at.start), bisect_left(self._starts, at.stop) - 1
        before, behind = self._starts[first] - at.start, at.stop - self._ends[last]
        if first > last or before < 0 or behind < 0:
            raise NoLayoutError
        self._cuts[at.start, at.stop] = place = first, before, last, behind
        return place


def _numbers(line: bytes) -> list[tuple[int, int]]:
    return [match.span() for match in _NUMBERS.finditer(line)]


class Layout:
    """How the lines of one shape are read."""

    __slots__ = ("_parts", "_raw", "_used", "_widths", "read", "redrawn", "used")

    def __init__(self, raw: bytes, answer: Sequence[tuple[str, Spanned]], used: Callable[[Event], bool] | None) -> None:
        """`raw` is the first line of the shape, `answer` that of the rules. Raises NoLayoutError. `used`: whether the
        reader has a use for an event; None: for all, and for a progress bar that is drawn again.
        """
        places = _places(raw)
        self._raw, self._widths = raw, cast("_Widths | None", None)
        self._parts = [(rule, _Part.of(raw, said, places)) for rule, said in answer]
        events = [event for _, said in answer for event in said.events()]
        wanted = [used is None or used(event) for event in events]
        self._used = None if all(wanted) else used
        one = len(answer) == len(events) == 1 and all(wanted) and isinstance(answer[0][1].make, type)
        self.read = self._one if one else self._all
        """(rule, event) of all that a line says; None where the rules are to be asked, as a number is out of bounds."""
        self.used = any(wanted) or not events
        """False where nobody has a use for what such lines say."""
        self.redrawn = used is not None and all(event.redrawn for event in events)
        """The same line once more says nothing new: a progress bar is drawn again and again."""

    def fitted(self, shape: bytes) -> "Layout":
        """That of a shape whose numbers have other widths. Raises NoLayoutError."""
        self._widths = widths = self._widths or _Widths(self._raw)
        numbers, other = _numbers(shape), Layout.__new__(Layout)
        if any(end - start > _WIDEST for start, end in numbers):
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
    """One `Spanned` by the bytes of the line: values, and values within mappings or tuples."""

    __slots__ = ("_constants", "_items", "_make", "_maps", "fields", "maps")

    def __init__(self, make: Callable[..., Any], constants: dict[str, Any]) -> None:
        self._make, self._constants = make, constants
        self._items: list[_Item] = []
        self._maps: list[tuple[str, list[_Item], type]] = []
        self.fields: list[_Bound] = []
        self.maps: list[tuple[str, list[_Bound], bool, type]] = []

    @classmethod
    def of(cls, raw: bytes, said: Spanned, places: Sequence[int]) -> "_Part":
        """By the first line, in which each character of its text stands at `places`."""
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
        """For a line of these numbers, or its shape."""
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
    """The items of a mapping or tuple; names that hold digits are read where they stand before the value."""
    items: list[_Item] = []
    for name, item in value.items() if isinstance(value, dict) else enumerate(value):
        digits = _DIGIT.search(str(name)) if isinstance(value, dict) else None
        text, plain = (item.text, item.value) if isinstance(item, Span) else (item, item)
        if not digits and not _DIGIT.search(text):
            items.append(_Item(name, slice(0, 0), plain))
            continue
        if not isinstance(item, Span):  # a text that is no value; it may be one with other digits
            raise NoLayoutError
        at = _slice(raw, item, places)
        items.append(_Item(_before(raw, str(name), at.start) if digits else name, at, item))
    return items


def _bound(item: _Item, line: bytes) -> _Bound:
    """(name, place, what reads the bytes there)."""
    said = item.said
    return item.name, item.at, _of_bytes(said, line[item.at]) if isinstance(said, Span) else partial(_same, said)


def _before(raw: bytes, name: str, end: int) -> slice:
    """Where a name stands before its value."""
    key = name.encode()
    start = raw.rfind(key, 0, end)
    if start < 0:
        raise NoLayoutError
    return slice(start, start + len(key))


def _places(raw: bytes) -> Sequence[int]:
    """Where each character of the line's text begins, colours taken off."""
    if raw.isascii() and b"\x1b" not in raw:
        return range(len(raw))
    colours = {place for match in _COLOURS.finditer(raw) for place in range(*match.span())}
    return [place for place, byte in enumerate(raw) if byte & 0xC0 != 0x80 and place not in colours]


def _slice(raw: bytes, span: Span, places: Sequence[int]) -> slice:
    """The bytes of a span. Raises NoLayoutError if they are not where the rule says."""
    start, last = span.start, span.start + len(span.text) - 1
    if not 0 <= start <= last < len(places):
        raise NoLayoutError
    at = slice(places[start], places[last] + 1)
    if raw[at] != span.text.encode():
        raise NoLayoutError
    return at


def _of_bytes(span: Span, text: bytes) -> Callable[[bytes], Any]:
    """The converter of a span, for bytes. Those of C are taken where they give the same whatever the digits."""
    if span.value is None:  # it may have a value with other digits
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
    return lru_cache(_REPEATED)(lambda text: read(text.decode()))


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
"""Converter -> the form of text for which another one, of bytes, gives the same whatever the digits, and that one."""
