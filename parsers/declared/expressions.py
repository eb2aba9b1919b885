"""Reads a line by a regular expression: named groups, and the pairs after the match, fill the fields of an event."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, get_args, get_origin

import msgspec

from megatron_monitor.parsers.declared.reading import gather, pairs_in, placed
from megatron_monitor.parsers.declared.schema import LineSpec
from megatron_monitor.parsers.declared.targets import CONVERTERS, PIECES
from megatron_monitor.parsers.engine.fields import number
from megatron_monitor.parsers.engine.scan import Line
from megatron_monitor.parsers.engine.spans import Convert, Span, Spanned, value_of
from megatron_monitor.parsers.events import EVENT_TYPES, Event
from megatron_monitor.parsers.patterns import filled

_GROUP = re.compile(r"\(\?P<(\w+)>")
_SEARCHED = 2000  # characters in which several values of a field are searched


class Expressions:
    """The expressions of one rule. They are compiled when a line first needs them: most logs have few such lines."""

    def __init__(self, specs: Sequence[LineSpec], make: Callable[[str], Any]) -> None:
        """`make` makes a pattern from its text."""
        self._specs, self._make = specs, make
        self.every = any(spec.every for spec in specs)

    @cached_property
    def _all(self) -> list["_Expression"]:
        return [_Expression(spec, self._make) for spec in self._specs]

    def read(self, line: Line) -> Sequence[Event | Spanned]:
        """Return the events of the first expression that matches, or with `every` of each expression as often as it
        matches.
        """
        if not self.every:
            found = ((one, one.pattern.search(line.text)) for one in self._all)
            return next((said for one, match in found if match and (said := one.read(match, line))), ())
        matches = [(one, match) for one in self._all for match in one.pattern.finditer(line.text)]
        matches.sort(key=lambda one: one[1].start())
        ends = [*(match.start() for _, match in matches[1:]), len(line.text)]
        return [event for (one, match), end in zip(matches, ends, strict=False) for event in one.read(match, line, end)]


class _Expression:
    """One expression, ready to read."""

    def __init__(self, spec: LineSpec, make: Callable[[str], Any]) -> None:
        self.pattern, self._location, *self._extra_patterns = (
            make(filled(pattern, PIECES)) for pattern in (spec.regex, spec.location, *spec.extras)
        )
        self._spec = spec
        self._event = EVENT_TYPES[spec.means]
        self._also = [EVENT_TYPES[kind] for kind in spec.also]
        known = msgspec.structs.fields(self._event)
        self._needs = {field.name for field in known if field.required}
        self._reads = {name: CONVERTERS[how] if isinstance(how, str) else how.get for name, how in spec.reads.items()}
        self._fields = {field.name: _usual(field.type) for field in known}
        self._several = {field.name for field in known if get_origin(field.type) is tuple}
        """Fields with the values of all matches of their expression among `extras`."""
        groups = set(_GROUP.findall(" ".join((spec.regex, *spec.extras))))
        self._has_pairs = spec.form in ("pairs", "json")
        self._of_line = [] if spec.form else sorted(self._reads.keys() - groups)

    def read(self, match: re.Match[str], line: Line, end: int | None = None) -> Sequence[Event | Spanned]:
        """Return the events of a match. `end` is where the text after the match ends."""
        spec = self._spec
        if spec.location and not self._location.search(line.prefix.location or ""):
            return ()
        spans = self._spans_of(match, line)
        fields = self._values_of(spans)
        if self._has_pairs:
            behind = self._behind(line, match.end(), end)
            if not behind:
                return ()
            fields |= behind
        found = {name: span for name, span in spans.items() if isinstance(span, Span)}
        texts = {name: span.value if name in self._reads else span.text for name, span in found.items()}
        said = Spanned(self._event, line.origin_spans | self._given(texts, line) | fields)
        values = value_of(said.values)
        if not values.keys() >= self._needs or (fields and not value_of(fields)):
            return ()
        origin = {name: values.get(name) for name in line.origin}
        failure = spec.failed.event(values.get("exit_code"), texts, origin) if spec.failed else ()
        return [*failure, said, *(event(**line.origin) for event in self._also)]

    def _spans_of(self, match: re.Match[str], line: Line) -> dict[str, Any]:
        """Return the groups of the match and of the further expressions. A field with several values has all matches of
        its expression.
        """
        spans: dict[str, Any] = {}
        for one in (match, *(pattern.search(line.text) for pattern in self._extra_patterns)):
            found = {name: one.span(name) for name, text in one.groupdict().items() if text is not None} if one else {}
            spans |= {name: line.span(at, self._converter(name)) for name, at in found.items()}
        for name in self._several & spans.keys():
            pattern = next(one for one in self._extra_patterns if name in one.groupindex)
            matches = pattern.finditer(line.text[:_SEARCHED])
            spans[name] = tuple(line.span(one.span(name), self._converter(name)) for one in matches)
        return spans

    def _behind(self, line: Line, start: int, end: int | None) -> dict[str, Any]:
        """Return the fields that the pairs after the match fill, or nothing if none of them has a value."""
        found: dict[str, Any] = {}
        pairs = pairs_in(line.text[start:end], self._spec)
        gather(found, placed(pairs, line.text, start, self._spec), line, self._target)
        return found if any(value_of(value) not in (None, {}) for value in found.values()) else {}

    def _converter(self, group: str) -> Convert:
        return self._reads.get(group) or self._fields.get(group, str)

    def _values_of(self, spans: Mapping[str, Span]) -> dict[str, Any]:
        """Return the fields that groups fill."""
        into = self._spec.into
        if not into or self._spec.form:
            return {name: span for name, span in spans.items() if name in self._fields}
        if "name" in spans:
            return {into: {spans["name"].text: spans["value"]}}
        return {into: {name: Span(span.start, span.text, int, int(span.text)) for name, span in spans.items()}}

    def _target(self, name: str) -> tuple[str, str | None, Convert]:
        """Return (field, name within the field, converter) of a printed name. The field of an unknown name is empty."""
        for printed, how in self._spec.fields.items():
            field, _, reading = how.partition(" ")
            read = CONVERTERS[reading] if reading else self._fields.get(field, number)
            if name == printed:
                return field, None, read
            if printed.startswith("*") and name.endswith(printed[1:]):
                return field, name.removesuffix(printed[1:]), read
        return self._spec.into, name, self._reads.get(self._spec.into, number)

    def _given(self, texts: Mapping[str, Any], line: Line) -> dict[str, Any]:
        """Return the values that the rule sets for all its lines, and the converters that read the whole line."""
        given = self._spec.sets.items()
        values: dict[str, Any] = {
            name: value.format_map(texts) if isinstance(value, str) else value for name, value in given
        }
        whole = (0, len(line.text))
        if length := self._spec.message_length:
            start = len(line.text) - len(line.text.lstrip())
            values["message"] = line.span((start, start + len(line.text.strip()[:length])), str)
        return values | {name: line.span(whole, self._reads[name]) for name in self._of_line}


def _usual(kind: Any) -> Convert:
    kinds = get_args(kind) or (kind,)
    return int if int in kinds else number if float in kinds else str
