"""Reads a line of a declared format: groups of its pattern, and names and values beside it, fill an event's fields."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from typing import Any, Final, TypeAlias, get_args, get_origin

import msgspec

from megatron_monitor.parsers.declared.marks import mark_of
from megatron_monitor.parsers.declared.meanings import other_events, step_events
from megatron_monitor.parsers.declared.schema import Format, LineSpec
from megatron_monitor.parsers.declared.targets import CONVERTERS, LOSSES, PARTS, PIECES, converter
from megatron_monitor.parsers.engine.fields import number
from megatron_monitor.parsers.engine.scan import Line
from megatron_monitor.parsers.engine.spans import Convert, Span, Spanned, value_of
from megatron_monitor.parsers.events import EVENT_TYPES, Event, Part
from megatron_monitor.parsers.patterns import filled

_MAX_PAIRS = 300  # a step line of verl has 90; the bound limits the event of a hostile line
_SHORT_LIST = 3  # maximum length of a list of integers that is read
_MAX_LINE = 64 * 1024
_SEARCHED = 2000  # characters in which several values of a field are searched
_STAMP: Final = "{time} "  # of a logger that prints nothing else: before any program's line
_DEPTH = 3
_MESSAGE = 500  # characters
_AROUND = " \t'\"}]|"  # characters around a value
_PARTS: Final = frozenset(get_args(Part))
_RAY_REPEATS: Final = "x across cluster]"
"""Ray repeats equal lines of other processes up to five seconds later (`[repeated 3x across cluster]`). They are
ignored.
"""
_GROUP = re.compile(r"\(\?P<(\w+)>")
Found: TypeAlias = tuple[re.Match[str], Sequence[re.Match[str] | None]]
"""Where a line's pattern matches, and all matches whose groups are values; later ones replace earlier ones."""


class LineReader:
    """One LineSpec, ready to read lines."""

    def __init__(self, log_format: Format, spec: LineSpec, make: Callable[[str], Any] = re.compile) -> None:
        """`make` makes a pattern from its text."""
        self.spec = spec
        reads = {name: CONVERTERS[how] if isinstance(how, str) else how.get for name, how in spec.reads.items()}
        self._into = reads.get(spec.into, number)
        if spec.line:
            self._mark = mark_of(spec.line)
            self._prefixes = [mark_of(text) for text in (*log_format.prefixes, *(() if spec.prefixed else (_STAMP,)))]
            self._make: Callable[..., Any] = partial(
                step_events if spec.means == "step" else other_events, spec, log_format.name
            )
            marks = (*self._prefixes, self._mark)
            self._converters = {name: read for mark in marks for name, read in mark.converters.items()}
            self._fields, self._several, self._needs = self._converters, frozenset(PARTS), frozenset[str]()
            self._extras: list[re.Pattern[str]] = []
            targets = [(name, *converter(target)) for name, target in {**log_format.fields, **spec.fields}.items()]
            self._of_line: list[str] = []
        else:
            texts = (spec.regex, spec.location, *spec.extras)
            self._pattern, self._location, *self._extras = (make(filled(text, PIECES)) for text in texts)
            self._make = EVENT_TYPES[spec.means]
            self._fields, self._several, self._needs = _fields_of(self._make)
            self._converters = {**self._fields, **reads}
            groups = _GROUP.findall(" ".join(texts))
            self._of_line = [] if spec.form else sorted(reads.keys() - set(groups))
            targets = []
            for name, target in spec.fields.items():
                field, _, how = target.partition(" ")
                targets.append((name, field, CONVERTERS[how] if how else self._fields.get(field, number)))
        self._targets = {name: (field, name if field == LOSSES else None, read) for name, field, read in targets}
        self._endings = [(name[1:], field, read) for name, field, read in targets if name.startswith("*")]

    def found(self, line: Line) -> Iterator[Found]:
        """Yield each place in the line where the pattern matches."""
        if not self.spec.line:
            if not self.spec.location or self._location.search(line.prefix.location or ""):
                more: list[re.Match[str] | None] = []  # the same for each match
                for match in self._pattern.finditer(line.text):
                    more = more or [pattern.search(line.text) for pattern in self._extras]
                    yield match, (match, *more)
            return
        text = line.text[:_MAX_LINE]
        before = next((match for prefix in self._prefixes if (match := prefix.pattern.match(text))), None)
        if before or not self.spec.prefixed:
            match = self._mark.match(text, before.end() if before else 0, anywhere=self.spec.anywhere)
            if match:
                yield match, (before, match)

    def head(self, line: Line) -> str | None:
        """Return the text of a block's first line, or None for another line."""
        if not self.spec.line:
            return line.text + self.spec.separator if any(one in line.text for one in self.spec.anchors) else None
        return next((line.text[: match.end()] for match, _ in self.found(line)), None)

    def read(self, line: Line, found: Found, end: int | None = None) -> list[Event | Spanned]:
        """Return the events of a place in the line. `end` is where the text behind the match ends."""
        spec = self.spec
        spans, texts = self._spans(line, found)
        values = self._of_groups(spans)
        if (spec.line or spec.form in ("pairs", "json")) and not self._take_pairs(values, line, found, end):
            return []
        if (values and spec.regex and not value_of(values)) or (spec.means in _PARTS and _RAY_REPEATS in line.text):
            return []
        return self._said(values, texts, line)

    def _said(self, values: dict[str, Any], texts: Mapping[str, Any], line: Line) -> list[Event | Spanned]:
        """Return the events with these values; none if one that they need is missing."""
        spec = self.spec
        if value_of(values.get("logged_at")) is None:
            values.pop("logged_at", None)
        said = Spanned(self._make, line.origin_spans | self._given(texts, line) | values)
        if spec.line:
            return [said] if said.events() else []
        known_values = value_of(said.values)
        if not known_values.keys() >= self._needs:
            return []
        origin = {name: known_values.get(name) for name in line.origin}
        failure = spec.failed.event(known_values.get("exit_code"), texts, origin) if spec.failed else ()
        return [*failure, said, *(EVENT_TYPES[kind](**line.origin) for kind in spec.also)]

    def _spans(self, line: Line, found: Found) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return (group -> its span, or spans if it has several places; group -> its text for the rule's values)."""
        spec, (match, matches) = self.spec, found
        spans: dict[str, Any] = {}
        for one in matches:
            groups = {name: one.span(name) for name, text in one.groupdict().items() if text is not None} if one else {}
            spans |= {name: line.span(at, self._converters.get(name, str)) for name, at in groups.items()}
        texts = {}
        if spec.sets or spec.failed:
            texts = {name: span.value if name in spec.reads else span.text for name, span in spans.items()}
        for name in self._several & spans.keys():
            pattern = next((one for one in self._extras if name in one.groupindex), None)
            places = pattern.finditer(line.text[:_SEARCHED]) if pattern else (match,)
            spans[name] = tuple(line.span(one.span(name), self._converters[name]) for one in places)
        return spans, texts

    def _of_groups(self, spans: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that groups fill."""
        into = self.spec.into
        if not into or self.spec.form:
            return {name: span for name, span in spans.items() if name in self._fields}
        if "name" in spans:
            return {into: {spans["name"].text: spans["value"]}}
        return {into: {name: Span(span.start, span.text, int, int(span.text)) for name, span in spans.items()}}

    def _take_pairs(self, values: dict[str, Any], line: Line, found: Found, end: int | None) -> bool:
        """Add the names and values beside the match to `values`. Return False if some are missing that the line must
        have.
        """
        spec, (match, (before, *_)) = self.spec, found
        text, start = line.text[: _MAX_LINE if spec.line else end], match.end()
        rest = text[start:]
        if spec.whole:
            begin = before.end() if before else 0
            start = max(text.rfind("{", begin, match.start()), begin)
            rest = text[start : match.start()] + rest
        pairs = _pairs(rest, spec.form, spec.separator, spec.assign, spec.until)
        wanted = all(name in pairs for name in spec.needs) and not any(name in pairs for name in spec.without)
        if not wanted or any(pairs.get(name) not in value.split(", ") for name, value in spec.where.items()):
            return False
        of_groups = len(values)
        for name, printed, at in _placed(pairs, line.text, start, spec):
            field, key, convert = self._target(name)
            if not field or not printed:
                continue
            span = Span(line.start + at, printed, convert, convert(printed))
            self._put(values, field, key, span)
        of_pairs = list(values.values())[of_groups:]
        return bool(spec.line) or any(value_of(value) not in (None, {}) for value in of_pairs)

    def _put(self, values: dict[str, Any], field: str, key: str | None, span: Span) -> None:
        """Add the span of a field, or of a name within a field."""
        if key is not None:
            values.setdefault(field, {})[key] = span
        elif field in self._several:
            values[field] = (*values.get(field, ()), span)
        elif value_of(values.get(field)) is None:
            values[field] = span

    def _target(self, name: str) -> tuple[str, str | None, Convert]:
        """Return (field, name within the field, converter) of a printed name. The field of an unknown name is empty."""
        if name in self._targets:
            return self._targets[name]
        for ending, field, read in self._endings:
            if name.endswith(ending):
                return field, name.removesuffix(ending), read
        return self.spec.into, name, self._into

    def _given(self, texts: Mapping[str, Any], line: Line) -> dict[str, Any]:
        """Return the values that the rule sets for all its lines, and the converters that read the whole line."""
        fixed = self.spec.given if self.spec.line else self.spec.sets
        values: dict[str, Any] = {
            name: value.format_map(texts) if isinstance(value, str) else value for name, value in fixed.items()
        }
        whole = (0, len(line.text))
        if length := self.spec.message_length or (_MESSAGE if self.spec.line and self.spec.means == "failure" else 0):
            start = len(line.text) - len(line.text.lstrip())
            values["message"] = line.span((start, start + len(line.text.strip()[:length])), str)
        return values | {name: line.span(whole, self._converters[name]) for name in self._of_line}


@cache
def _fields_of(kind: type[Event]) -> tuple[dict[str, Convert], frozenset[str], frozenset[str]]:
    """Return the usual converters of an event's fields, the fields with several values, and the required ones."""
    fields = msgspec.structs.fields(kind)
    return (
        {field.name: _usual(field.type) for field in fields},
        frozenset(field.name for field in fields if get_origin(field.type) is tuple),
        frozenset(field.name for field in fields if field.required),
    )


def _usual(kind: Any) -> Convert:
    kinds = get_args(kind) or (kind,)
    return int if int in kinds else number if float in kinds else str


@lru_cache(8)  # several readings cut the same line in the same way
def _pairs(rest: str, form: str, separator: str, assign: str, until: str) -> dict[str, str]:
    """Return names and values of a text. The first value of a name counts."""
    if form == "json":
        return flat_json(rest)
    if until:
        rest = rest.partition(until)[0]
    assign = assign.strip() or assign
    if not separator.strip():
        rest = _around(assign).sub(lambda _: assign, rest)
    found: dict[str, str] = {}
    for piece in rest.split(separator, _MAX_PAIRS)[:_MAX_PAIRS]:
        name, assigned, value = piece.strip().rpartition(" ") if assign == " " else piece.partition(assign)
        if assigned:
            value = value.strip(_AROUND)
            if value.startswith("np."):  # numpy 2 prints `np.float64(0.5)`
                value = value.partition("(")[2].rstrip(")")
            found.setdefault(name.strip(" \t'\"{[|"), value)
    return found


def _placed(found: Mapping[str, str], text: str, start: int, spec: LineSpec) -> Iterator[tuple[str, str, int]]:
    """Yield names and values with the position of each value in the line, which has them in this order from `start` on.
    -1: the line does not have the value as it is.
    """
    for name, value in found.items():
        key = name.rpartition(".")[2] if spec.form == "json" else name
        named = text.find(key, start)
        at = text.find(value, named + len(key)) if named >= 0 else -1
        if spec.form == "json" and (
            text[named + len(key) : at].strip(' ":') or text[at + len(value) :][:1] not in ' ",}'
        ):
            at = -1
        if at >= 0:
            start = at + len(value)
        yield name, value, at


@cache
def _around(assign: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![ \t])[ \t]*{re.escape(assign)}[ \t]+")


def flat_json(text: str) -> dict[str, str]:
    """Return an object's names and values. Names of inner objects are joined by dots."""
    try:
        value, _ = json.JSONDecoder().raw_decode(text.lstrip())
    except (ValueError, RecursionError):
        return {}
    found: dict[str, str] = {}
    if isinstance(value, dict):
        _flatten(value, "", found, _DEPTH)
    return found


def _flatten(value: Mapping[str, Any], before: str, found: dict[str, str], depth: int) -> None:
    for name, item in value.items():
        if len(found) >= _MAX_PAIRS:
            return
        if isinstance(item, dict):
            if depth > 1:
                _flatten(item, f"{before}{name}.", found, depth - 1)
        elif isinstance(item, list):  # DLLogger's step: [epoch, iteration]
            if len(item) <= _SHORT_LIST and all(isinstance(value, int) for value in item):
                found.update((f"{before}{name}[{index}]", repr(value)) for index, value in enumerate(item))
        elif item is not None:
            found[f"{before}{name}"] = item if isinstance(item, str) else repr(item)
