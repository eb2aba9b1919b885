"""Reads a line by a regular expression: named groups, and the pairs after the match, fill the fields of an event."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, get_args

import msgspec

from megatron_monitor.parsers.declared.reading import pairs_in, placed
from megatron_monitor.parsers.declared.schema import LineSpec
from megatron_monitor.parsers.declared.targets import CONVERTERS, PIECES
from megatron_monitor.parsers.engine.fields import number
from megatron_monitor.parsers.engine.scan import Line
from megatron_monitor.parsers.engine.spans import Span, Spanned, value_of
from megatron_monitor.parsers.events import EVENT_TYPES, Event
from megatron_monitor.parsers.patterns import filled

_GROUP = re.compile(r"\(\?P<(\w+)>")
_Convert = Callable[[str], Any]


class Expressions:
    """The expressions of one rule. They are compiled when a line first needs them: most logs have few such lines."""

    def __init__(self, specs: Sequence[LineSpec], make: Callable[[str], Any]) -> None:
        """`make` makes a pattern from its text."""
        self._specs, self._make = specs, make
        self.every, self.by_shape = any(spec.every for spec in specs), any(spec.by_shape for spec in specs)

    @cached_property
    def _all(self) -> list["_Expression"]:
        return [_Expression(spec, self.by_shape, self._make) for spec in self._specs]

    def read(self, line: Line) -> list[Event | Spanned]:
        """Return the events of the first expression that matches, or with `every` of each expression as often as it
        matches.
        """
        if not self.every:
            found = ((one, one.pattern.search(line.text)) for one in self._all)
            return next((said for one, match in found if match and (said := list(one.read(match, line)))), [])
        matches = [(one, match) for one in self._all for match in one.pattern.finditer(line.text)]
        matches.sort(key=lambda one: one[1].start())
        ends = [*(match.start() for _, match in matches[1:]), len(line.text)]
        return [event for (one, match), end in zip(matches, ends, strict=False) for event in one.read(match, line, end)]


class _Expression:
    """One expression, ready to read."""

    def __init__(self, spec: LineSpec, by_shape: bool, make: Callable[[str], Any]) -> None:
        self.pattern, self._location, *self._extra_patterns = (
            make(filled(pattern, PIECES)) for pattern in (spec.regex, spec.location, *spec.extras)
        )
        self._spec = spec
        self._event = EVENT_TYPES[spec.means]
        self._also = [EVENT_TYPES[kind] for kind in spec.also]
        known = msgspec.structs.fields(self._event)
        self._needs = [field.name for field in known if field.required]
        self._reads = {name: CONVERTERS[how] if isinstance(how, str) else how.get for name, how in spec.reads.items()}
        self._fields = {field.name: _usual(field.type) for field in known}
        groups = set(_GROUP.findall(" ".join((spec.regex, *spec.extras))))
        self._has_pairs = spec.form in ("pairs", "json")
        self._of_line = [] if spec.form else sorted(self._reads.keys() - groups)
        self._spans = by_shape and not self._of_line

    def read(self, match: re.Match[str], line: Line, end: int | None = None) -> Iterator[Event | Spanned]:
        """Return the events of a match. `end` is where the text after the match ends."""
        spec = self._spec
        if spec.location and not self._location.search(line.prefix.location or ""):
            return
        found = [match, *(pattern.search(line.text) for pattern in self._extra_patterns)]
        spans = {
            name: line.span(one.span(name), self._reads.get(name) or self._fields.get(name, str))
            for one in found
            if one
            for name, text in one.groupdict().items()
            if text is not None
        }
        behind = self._pairs(line, match.end(), end) if self._has_pairs else {}
        if self._has_pairs and not behind:
            return
        fields = self._values_of(spans) | behind
        values = {name: value_of(span) for name, span in fields.items()}
        if fields and all(value is None for value in values.values()):
            return
        texts = {name: span.value if name in self._reads else span.text for name, span in spans.items()}
        values = line.origin | self._given(texts, line) | values
        if any(values.get(name) is None for name in self._needs):
            return
        if self._spans:
            yield Spanned(self._event, {**line.origin_spans, **spec.sets, **fields})
            return
        if spec.failed:
            yield from spec.failed.event(values.get("exit_code"), texts, {name: values[name] for name in line.origin})
        yield self._event(**values)
        yield from (event(**line.origin) for event in self._also)

    def _values_of(self, spans: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that groups fill."""
        into = self._spec.into
        if not into or self._spec.form:
            return {name: span for name, span in spans.items() if name in self._fields}
        if "name" in spans:
            return {into: {spans["name"].text: spans["value"]}} if spans["value"].value is not None else {}
        return {into: {name: Span(span.start, span.text, int, int(span.text)) for name, span in spans.items()}}

    def _pairs(self, line: Line, start: int, end: int | None) -> dict[str, Any]:
        """Return the fields that the pairs after the match fill."""
        found = dict[str, Any]()
        for name, text, at in placed(pairs_in(line.text[start:end], self._spec), line.text, start, self._spec):
            target = self._target(name)
            value = line.span((at, at + len(text)), target[2]) if text and target else None
            if target is None or value is None or value.value is None:
                continue
            field, key, _ = target
            if key is None:
                found[field] = value
            else:
                found.setdefault(field, {})[key] = value
        return found

    def _target(self, name: str) -> tuple[str, str | None, _Convert] | None:
        """Return (field, name within the field, converter) of a printed name."""
        for printed, how in self._spec.fields.items():
            field, _, reading = how.partition(" ")
            read = CONVERTERS[reading] if reading else self._fields.get(field, number)
            if name == printed:
                return field, None, read
            if printed.startswith("*") and name.endswith(printed[1:]):
                return field, name.removesuffix(printed[1:]), read
        into = self._spec.into
        return (into, name, self._reads.get(into, number)) if into else None

    def _given(self, texts: Mapping[str, Any], line: Line) -> dict[str, Any]:
        """Return the values that the rule sets for all its lines, and the converters that read the whole line."""
        given = self._spec.sets.items()
        values = {name: value.format_map(texts) if isinstance(value, str) else value for name, value in given}
        if self._spec.message_length:
            values["message"] = line.text.strip()[: self._spec.message_length]
        return values | {name: self._reads[name](line.text) for name in self._of_line}


def _usual(kind: Any) -> _Convert:
    kinds = get_args(kind) or (kind,)
    return int if int in kinds else number if float in kinds else str
