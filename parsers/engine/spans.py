"""Spans: the bytes of a line that fill a field, so that further lines of its shape are read by slices.

The shape of a line is the line with each digit as `0`. A rule reads the first line of a shape and answers with
`Spanned`: an event whose values are spans of the text with their converters. A `Layout` writes this answer as a Python
function, which reads further lines of the shape: a slice of the line's bytes and a converter for each value.
"""

import operator
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from copy import copy
from functools import lru_cache
from typing import Any, TypeAlias

from msgspec import Struct

from megatron_monitor.parsers.engine import fields
from megatron_monitor.parsers.engine.prefixes import iso_time
from megatron_monitor.parsers.events import ANSI, Event, LogEvent
from megatron_monitor.parsers.patterns import lazy

SHAPE = bytes(48 if 48 <= code <= 57 else code for code in range(256))
"""Translates a line to its shape."""

Convert: TypeAlias = Callable[[str], Any]

_COLOURS = re.compile(ANSI.pattern.encode())
_DIGIT = re.compile("[0-9]")
_NUMBERS = re.compile(b"[0-9]+")
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
    """The event's class, or a function that yields events of the values."""
    values: dict[str, Any]

    def events(self) -> list[Event]:
        """Return the events of the line that the rule read."""
        made = self.make(**value_of(self.values))
        return [made] if isinstance(made, Event) else list(made)


def events_of(said: Spanned | Event) -> list[Event]:
    """Return the events of a part of an answer."""
    return [said] if isinstance(said, Event) else said.events()


def value_of(said: Any) -> Any:
    """Return the value of a span, or of a mapping or tuple. What has no value is left out of mappings and tuples."""
    kind = type(said)
    if kind is dict:
        return {name: value for name, one in said.items() if (value := value_of(one)) is not None}
    if kind is tuple:
        return tuple([value for one in said if (value := value_of(one)) is not None])
    return said.value if kind is Span else said


class Layout:
    """Reads the lines of one shape."""

    read: Callable[[bytes, int], list[LogEvent] | None]
    """Returns the events of a line and its number, or None if the rules must be asked because a number is out of
    bounds.
    """

    def __init__(
        self,
        raw: bytes,
        rule: str,
        answer: Sequence[Spanned | Event],
        used: Callable[[Event], bool] | None,
    ) -> None:
        """Create the layout from `raw`, the first line of the shape, and the answer of a rule for it. Raises
        NoLayoutError. `used` returns True if the reader needs an event. None: all events are needed, redrawn progress
        bars included.
        """
        self._raw, self._places = raw, _places(raw)
        self._slices: list[slice] = []
        self._forms: list[tuple[int, int, re.Pattern[bytes]]] = []
        """Numbers of the first and the last slice of a value, and the form of its text on which its expression
        depends.
        """
        self._ends: list[int] = []
        """Where the numbers of `raw` end."""
        self._behind: list[tuple[int, int]] = []
        """Of each slice how many numbers end before its begin, and before its end."""
        self._objects: list[Any] = [LogEvent]
        self._tests: list[str] = []
        events = [event for said in answer for event in events_of(said)]
        wanted = [used is None or used(event) for event in events]
        self.used = any(wanted) or not events
        """False if the reader needs none of the events of such lines."""
        self.redrawn = used is not None and all(event.redrawn for event in events)
        """True if a repeated line adds nothing: a progress bar is redrawn again and again."""
        found = f"\n   found = [{', '.join([self._events(rule, said) for said in answer])}]"
        result = "found or None" if answer else "found"
        if not all(wanted):
            result = f"[one for one in found if {self._object(used)}(one.event)]"
        objects, slices = len(self._objects), len(self._slices)
        self._bound = _compiled(objects, slices, "".join([*self._tests, found]), result)(*self._objects)
        self.read = self._bound(*self._slices)

    def fitted(self, shape: bytes) -> "Layout":
        """Return the layout for a shape whose numbers have other widths. Raises NoLayoutError."""
        if not self._ends:
            self._ends = ends = [match.end() for match in _NUMBERS.finditer(self._raw)]
            self._behind = [(bisect_right(ends, at.start), bisect_right(ends, at.stop)) for at in self._slices]
        moved = [0, *map(operator.sub, [match.end() for match in _NUMBERS.finditer(shape)], self._ends)]
        both = zip(self._slices, self._behind, strict=True)
        slices = [slice(at.start + moved[one], at.stop + moved[two]) for at, (one, two) in both]
        if any(not form.fullmatch(shape, slices[one].start, slices[two].stop) for one, two, form in self._forms):
            raise NoLayoutError
        other = copy(self)
        other.read = self._bound(*slices)
        return other

    def _events(self, rule: str, said: Spanned | Event) -> str:
        """Return the expression of the events that a rule gives for a line."""
        if isinstance(said, Event):
            return f"o0(line, {self._object(rule)}, {self._object(said)}, raw)"
        given = ((name, self._value(value)) for name, value in said.values.items())
        made = f"{self._object(said.make)}({', '.join([f'{name}={value}' for name, value in given if value])})"
        logged, name = "o0", self._object(rule)
        if isinstance(said.make, type):
            return f"{logged}(line, {name}, {made}, raw)"
        return f"*[{logged}(line, {name}, event, raw) for event in {made}]"

    def _value(self, said: Any) -> str:
        """Return the expression of a value. Empty: it has none."""
        if isinstance(said, dict):
            known = [(name, value) for name, one in said.items() if (value := self._value(one))]
            return f"{{{', '.join([f'{self._name(name, said[name])}: {value}' for name, value in known])}}}"
        if isinstance(said, tuple):
            return f"({''.join([f'{value}, ' for one in said if (value := self._value(one))])})"
        if not isinstance(said, Span) or not _DIGIT.search(said.text):
            constant = value_of(said)
            return "" if constant is None else self._object(constant)
        if said.value is None:  # other digits may give a value
            raise NoLayoutError
        at = self._slice(said)
        for converters, form, expression in _QUICK:
            match = form.fullmatch(self._raw, at.start, at.stop) if said.read in converters else None
            if match:
                parts = [self._piece(slice(*match.span(group))) for group in range(1, form.groups + 1)]
                self._forms.append((len(self._slices) - form.groups, len(self._slices) - 1, form))
                return expression.format(*parts)
        read = _remembered(said.read) if isinstance(said.value, int | float) else _decoded(said.read)
        value = f"v{len(self._tests)}"
        self._tests.append(f"\n   if ({value} := {self._object(read)}({self._piece(at)})) is None: return None")
        return value

    def _name(self, name: str, said: Any) -> str:
        """Return the expression of a name in a mapping. A name with digits is read from the line, before its value."""
        if not _DIGIT.search(name):
            return self._object(name)
        if not isinstance(said, Span):
            raise NoLayoutError
        start = self._raw.rfind(name.encode(), 0, self._slice(said).start)
        if start < 0:
            raise NoLayoutError
        return f"{self._piece(slice(start, start + len(name.encode())))}.decode()"

    def _slice(self, span: Span) -> slice:
        """Return the slice of a span. Raises NoLayoutError if the bytes are not where the rule found them."""
        start, last = span.start, span.start + len(span.text) - 1
        if not 0 <= start <= last < len(self._places):
            raise NoLayoutError
        at = slice(self._places[start], self._places[last] + 1)
        if self._raw[at] != span.text.encode():
            raise NoLayoutError
        return at

    def _piece(self, at: slice) -> str:
        """Return the expression of a piece of the line."""
        self._slices.append(at)
        return f"raw[s{len(self._slices) - 1}]"

    def _object(self, one: Any) -> str:
        """Return the name of an object."""
        self._objects.append(one)
        return f"o{len(self._objects) - 1}"


@lru_cache(512)
def _compiled(objects: int, slices: int, lines: str, result: str) -> Callable[..., Callable[..., Any]]:
    """Return a function that takes the objects `o0`, ..., and then the slices `s0`, ..., and returns the function that
    reads a line. Many layouts differ in nothing else.
    """
    given, places = (
        ", ".join([f"{kind}{at}" for at in range(count)]) for kind, count in (("o", objects), ("s", slices))
    )
    source = f"""def made({given}):
 def bound({places}):
  def read(raw, line):{lines}
   return {result}
  return read
 return bound"""
    scope: dict[str, Any] = {}
    exec(source, scope)  # noqa: S102 - names of fields and numbers, as in a dataclass; texts of logs are objects
    made: Callable[..., Callable[..., Any]] = scope["made"]
    return made


def _places(raw: bytes) -> Sequence[int]:
    """Return the position of each character of the line's text, without colour codes."""
    if raw.isascii() and b"\x1b" not in raw:
        return range(len(raw))
    colours = {place for match in _COLOURS.finditer(raw) for place in range(*match.span())}
    return [place for place, byte in enumerate(raw) if byte & 0xC0 != 0x80 and place not in colours]


def _decoded(read: Convert) -> Callable[[bytes], Any]:
    return lambda text: read(text.decode())


@lru_cache(64)
def _remembered(read: Convert) -> Callable[[bytes], Any]:
    return lru_cache(_MAX_REMEMBERED)(_decoded(read))


_SMALL = r"(\d{1,6}(?:\.\d{1,6})?)"
_DAY, _CLOCK = r"(\d{4}-\d\d-\d\d)[ T]", r"(\d\d:\d\d:\d\d)"
_QUICK: list[tuple[tuple[Convert, ...], re.Pattern[bytes], str]] = [
    (converters, lazy(form.encode()), expression)
    for converters, form, expression in (
        ((int, fields.integer), r"([-+]?\d{1,15})", "int({})"),
        ((fields.number, fields.finite), r"([-+]?\d{1,15}(?:\.\d{1,20})?(?:[eE][-+]?\d\d?)?)", "float({})"),
        ((fields.milliseconds,), _SMALL, "float({} + b'e-3')"),
        ((fields.milliseconds_range,), _SMALL, "(x := float({} + b'e-3'), x)"),
        ((fields.milliseconds_range,), f"{_SMALL}, {_SMALL}", "(float({} + b'e-3'), float({} + b'e-3'))"),
        ((fields.clock,), r"(\d\d):(\d\d)", "int({}) * 60.0 + int({})"),
        ((fields.clock,), r"(\d{1,4}):(\d\d):(\d\d)", "int({}) * 3600.0 + int({}) * 60 + int({})"),
        ((iso_time,), _DAY + _CLOCK, "({} + b'T' + {}).decode()"),
        ((iso_time,), rf"{_DAY}{_CLOCK}[.,](\d+)", "({} + b'T' + {} + b'.' + {}).decode()"),
        ((iso_time,), rf"(\d{{4}})(\d\d)(\d\d) {_CLOCK}", "({} + b'-' + {} + b'-' + {} + b'T' + {}).decode()"),
        ((fields.byte_size,), r"(\d{1,6}(?:\.\d{1,6})?) ?GB", "round(float({}) * 1024.0**3)"),
        ((str,), "((?s:.+))", "{}.decode()"),
    )
]
"""Converters, and a form of text for which an expression of the form's groups gives the same result for all digits."""
