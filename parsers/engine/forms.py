r"""Lines of a fixed form are data: a pattern whose named groups fill the fields of an event.

`parsers/formats/*.yaml` has them by the program that prints them, with samples that are their test; what is read here
is made of these files (`python -m tests.test_forms`). What decides by more than a pattern is code.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, TypeAlias, get_args

import msgspec

from parsers.engine.fields import finite, mebibytes, number
from parsers.engine.prefixes import iso_time
from parsers.engine.scan import Line, Rule
from parsers.events import EVENT_TYPES, Event

_Convert: TypeAlias = Callable[[str], Any]
_STEP = re.compile(r"global_step(\d{1,12})")


def _step_in(path: str) -> int | None:
    match = _STEP.search(path)
    return int(match[1]) if match else None


CONVERTERS: dict[str, _Convert] = {
    "finite": finite, "MiB": mebibytes, "time": iso_time, "without dots behind": lambda text: text.rstrip("."),
    "without blanks": str.strip, "step in a path": _step_in, "true": bool,
}  # fmt: skip
"""By their names in a file."""


class FormSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One form of a line."""

    pattern: str
    """A regular expression. A group fills the field of its name, as the field's type says."""
    event: str
    """The kind of the event."""
    also: tuple[str, ...] = ()
    """Kinds of further events of the same line, of which nothing more is told."""
    fields: Mapping[str, Any] = {}
    """Values that the event always has; in a text `{name}` is what the group holds."""
    reads: Mapping[str, str] = {}
    """Field -> how its group is read (CONVERTERS), where that is another way; of no such group the whole line is read.
    """
    words: int = 0
    """So many characters of the line are the event's `message`."""


class RuleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A rule (scan.py): the first of its forms that a line has."""

    name: str
    anchors: tuple[str, ...]
    templated: bool = False
    forms: tuple[FormSpec, ...]


class _Form:
    """One form, ready to read."""

    def __init__(self, spec: FormSpec) -> None:
        self._search = re.compile(spec.pattern).search
        self._spec = spec
        self._event = EVENT_TYPES[spec.event]
        self._also = [EVENT_TYPES[kind] for kind in spec.also]
        known = msgspec.structs.fields(self._event)
        self._needs = [field.name for field in known if field.required]
        self._reads = {name: CONVERTERS[how] for name, how in spec.reads.items()}
        self._groups = {field.name: _usual(field.type) for field in known} | self._reads

    def read(self, line: Line) -> Iterator[Event]:
        match = self._search(line.text)
        if match is None:
            return
        groups = {name: text for name, text in match.groupdict().items() if text is not None}
        values = {**line.origin, **self._spec.fields}
        for name, value in self._spec.fields.items():
            if isinstance(value, str):
                values[name] = value.format_map(groups)
        if self._spec.words:
            values["message"] = line.text.strip()[: self._spec.words]
        for name in self._reads.keys() - match.re.groupindex.keys():
            values[name] = self._reads[name](line.text)
        for name in groups.keys() & self._groups.keys():
            values[name] = self._groups[name](groups[name])
        if all(values.get(name) is not None for name in self._needs):
            yield self._event(**values)
            yield from (event(**line.origin) for event in self._also)


def _usual(kind: Any) -> _Convert:
    kinds = get_args(kind) or (kind,)
    return int if int in kinds else number if float in kinds else str


def _rule(spec: RuleSpec) -> Rule:
    @cache
    def forms() -> list[_Form]:  # made when the first line asks for them: most logs have few of these lines
        return [_Form(form) for form in spec.forms]

    def read(line: Line) -> list[Event]:
        return next((events for form in forms() if (events := list(form.read(line)))), [])

    return Rule(spec.name, tuple(anchor.encode() for anchor in spec.anchors), read, spec.templated)


def rules_in(data: bytes) -> dict[str, tuple[Rule, ...]]:
    """The rules of each file, by its name, from their JSON."""
    specs = msgspec.json.decode(data, type=dict[str, tuple[RuleSpec, ...]])
    return {name: tuple(map(_rule, rules)) for name, rules in specs.items()}
