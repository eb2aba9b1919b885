r"""Lines of a fixed form are data: a pattern whose named groups fill the fields of an event.

`parsers/formats/*.yaml` has them by the program that prints them, with samples that are their test; what is read here
is made of these files (`python -m tests.test_forms`). What decides by more than a pattern is code.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any, TypeAlias, get_args

import msgspec

from megatron_monitor.parsers.engine.fields import (
    clock,
    finite,
    gibibytes,
    integer,
    mebibytes,
    milliseconds,
    number,
    ratio,
    seconds,
    teraflops,
)
from megatron_monitor.parsers.engine.prefixes import iso_time
from megatron_monitor.parsers.engine.scan import Line, Rule
from megatron_monitor.parsers.engine.spans import Spanned
from megatron_monitor.parsers.events import EVENT_TYPES, Event, Failure, FailureSeen, Teller
from megatron_monitor.parsers.formats import TABLES
from megatron_monitor.parsers.formats.exceptions import memory_told, named, signal_name
from megatron_monitor.parsers.formats.exits import ended_by, failed, signal_in
from megatron_monitor.parsers.patterns import filled, lazy
from megatron_monitor.parsers.tables import documents_in

_Convert: TypeAlias = Callable[[str], Any]
_GROUP = re.compile(r"\(\?P<(\w+)>")
_STEP = lazy(r"global_step(\d{1,12})")
_N = r"[-+]?(?:\d{1,15}(?:\.\d{0,20})?(?:[eE][-+]?\d{1,4})?|nan|inf)"
PARTS = {"N": _N, "SIGNAL": "|".join(TABLES["signals"])}
"""What stands for `{NAME}` in a pattern."""


def _rate_of_flops(text: str) -> float | None:
    return teraflops(text) if finite(text) is not None else None


def _step_in(path: str) -> int | None:
    match = _STEP.search(path)
    return int(match[1]) if match else None


def _numbers(text: str) -> dict[str, float]:
    found = re.findall(rf"([A-Za-z][\w ]{{0,40}}?): ({_N})", text)
    return {name.strip(): value for name, digits in found if (value := number(digits)) is not None}


def _most_gibibytes(text: str) -> int | None:
    return max((size for digits in re.findall(_N, text) if (size := gibibytes(digits)) is not None), default=None)


CONVERTERS: dict[str, _Convert] = {
    "finite": finite, "MiB": mebibytes, "GiB": gibibytes, "ms": milliseconds, "FLOPS": _rate_of_flops,
    "us": lambda text: seconds(finite(text), "us"), "percent": lambda text: ratio(f"{text}%"), "clock": clock,
    "with separators": lambda text: finite(re.sub("[,_]", "", text)), "time": iso_time, "true": bool,
    "truth or number": lambda text: text.strip() if text.strip() in ("True", "False") else integer(text),
    "the most GiB": _most_gibibytes, "numbers by name": _numbers, "step in a path": _step_in,
    "of a signal": lambda text: -int(text),
    "without dots behind": lambda text: text.rstrip("."), "without blanks": str.strip, "small letters": str.lower,
    **{
        f"failure of {what}": partial(named, kinds=(kind,))
        for what, kind in {"a GPU": "gpu", "a worker": "worker", "a disk": "disk", "NCCL": "nccl"}.items()
    },
    "failure of a GPU, or of NCCL": lambda text: named(text, ("gpu",)) or "nccl",
    "name of a signal": lambda text: signal_name(int(text)) if text.isdecimal() else text,
    "reason of LSF": lambda text: TABLES["lsf"].get(text, "killed"),
    "bytes that were asked for": lambda text: memory_told(text)["requested_bytes"],
    "bytes of the device": lambda text: memory_told(text)["device_bytes"],
}  # fmt: skip
"""By their names in a file."""


class EndSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The failure that is told before a `process_exit`, where a signal has ended it: by the exit code, or by what the C
    library calls the signal, in the group `signal`.
    """

    message: str
    """`{name}` is what the group holds, `{number}` that of the signal."""
    by: Teller = "launcher"
    any_code: bool = False
    """Whatever code it is."""
    failure: Failure | None = None
    """What it is, where neither code nor signal is told."""
    consequence: bool | None = None
    """Whether another line says why, where the code or the signal does not tell it."""
    signals: Mapping[str, tuple[Failure, bool]] = {}
    """What this program means by a signal's name, where that is something else."""

    def event(self, code: int | None, words: Mapping[str, Any], origin: Mapping[str, Any]) -> Iterator[Event]:
        """The failure, if there is one."""
        others: dict[str, Any] = {"by": self.by}
        if self.consequence is not None:
            others["consequence"] = self.consequence
        if code is not None and (self.any_code or signal_in(code)):
            yield failed(code, self.message.format_map({**words, "number": signal_in(code)}), origin, **others)
        elif self.failure or "signal" in words:
            name = words.get("signal", "")
            failure, consequence = self.signals.get(name) or ended_by(name) or (self.failure or "unknown", False)
            told = {"consequence": consequence, **others, **origin}
            yield FailureSeen(failure=failure, message=self.message.format_map(words), **told)


class FormSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One form of a line."""

    pattern: str
    """A regular expression; `{N}` in it is a printed number, `{SIGNAL}` the C library's name of a signal. A group fills
    the field of its name, as the field's type says. Where none of those that are found can be read, it is no such line.
    """
    event: str
    """The kind of the event."""
    where: str = ""
    """A pattern that the place in the source, which a logger prints before the line, must have."""
    beside: tuple[str, ...] = ()
    """Further patterns: each is searched in the whole line by itself, and its groups fill fields where it is found."""
    also: tuple[str, ...] = ()
    """Kinds of further events of the same line, of which nothing more is told."""
    fields: Mapping[str, Any] = {}
    """Values that the event always has; in a text `{name}` is what the group holds."""
    reads: Mapping[str, str | Mapping[str, str]] = {}
    """Group -> how it is read (CONVERTERS), where that is another way, or what each of its words means; of no such
    group the whole line is read.
    """
    into: str = ""
    """The field, sizes by their names, that all groups fill."""
    words: int = 0
    """So many characters of the line are the event's `message`."""
    failed: EndSpec | None = None
    """Of a process that ended, what is told of its failure."""


class RuleSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rule (scan.py): the first of its forms that a line has."""

    name: str
    anchors: tuple[str, ...]
    by_shape: bool = False
    every: bool = False
    """Each of its forms, as often as a line has it, in the line's order: what several have printed may be glued."""
    forms: tuple[FormSpec, ...]


class _Form:
    """One form, ready to read."""

    def __init__(self, spec: FormSpec, by_shape: bool) -> None:
        self.pattern, self._where, *self._beside = (
            lazy(filled(pattern, PARTS)) for pattern in (spec.pattern, spec.where, *spec.beside)
        )
        self._spec = spec
        self._event = EVENT_TYPES[spec.event]
        self._also = [EVENT_TYPES[kind] for kind in spec.also]
        known = msgspec.structs.fields(self._event)
        self._needs = [field.name for field in known if field.required]
        self._reads = {name: CONVERTERS[how] if isinstance(how, str) else how.get for name, how in spec.reads.items()}
        self._fields = {field.name: _usual(field.type) for field in known}
        self._of_line = self._reads.keys() - set(_GROUP.findall(" ".join((spec.pattern, *spec.beside))))
        texts = [value for value in spec.fields.values() if isinstance(value, str)]
        self._spans = by_shape and not (
            spec.into or spec.failed or spec.words or spec.also or self._of_line or any("{" in text for text in texts)
        )

    def read(self, match: re.Match[str], line: Line) -> Iterator[Event | Spanned]:
        """What it says there."""
        if self._spec.where and not self._where.search(line.prefix.location or ""):
            return
        places = self._groups(match, line)
        groups = {name: line.text[start:end] for name, (start, end) in places.items()}
        words = groups | {name: read(groups[name]) for name, read in self._reads.items() if name in groups}
        told = self._told(groups, words)
        if told and all(value is None for value in told.values()):
            return
        values = line.origin | self._of_rule(words, line) | told
        if any(values.get(name) is None for name in self._needs):
            return
        if self._spans:
            filled = {name: line.span(places[name], self._reads.get(name) or self._fields[name]) for name in told}
            yield Spanned(self._event, {**line.origin_spans, **self._spec.fields, **filled})
        else:
            yield from self._events(words, values, line)

    def _groups(self, match: re.Match[str], line: Line) -> dict[str, tuple[int, int]]:
        """Where the groups that are found stand, by name."""
        found = [match, *(pattern.search(line.text) for pattern in self._beside)]
        return {
            name: one.span(name) for one in found if one for name, text in one.groupdict().items() if text is not None
        }

    def _told(self, groups: dict[str, str], words: dict[str, Any]) -> dict[str, Any]:
        """The fields that groups fill."""
        if self._spec.into:
            return {self._spec.into: {name: int(size) for name, size in groups.items()}}
        return {
            name: words[name] if name in self._reads else convert(words[name])
            for name, convert in self._fields.items()
            if name in words
        }

    def _events(self, words: dict[str, Any], values: dict[str, Any], line: Line) -> Iterator[Event]:
        """What it says, with what comes before and after it."""
        if self._spec.failed:
            origin = {name: values[name] for name in line.origin}
            yield from self._spec.failed.event(values.get("exit_code"), words, origin)
        yield self._event(**values)
        yield from (event(**line.origin) for event in self._also)

    def _of_rule(self, words: dict[str, Any], line: Line) -> dict[str, Any]:
        """What the rule says of each such line, and what it reads of all its words."""
        given = self._spec.fields.items()
        values = {name: value.format_map(words) if isinstance(value, str) else value for name, value in given}
        if self._spec.words:
            values["message"] = line.text.strip()[: self._spec.words]
        return values | {name: self._reads[name](line.text) for name in self._of_line}


def _usual(kind: Any) -> _Convert:
    kinds = get_args(kind) or (kind,)
    return int if int in kinds else number if float in kinds else str


def _rule(spec: RuleSpec) -> Rule:
    @cache
    def forms() -> list[_Form]:  # made when the first line asks for them: most logs have few of these lines
        return [_Form(form, spec.by_shape) for form in spec.forms]

    def first(line: Line) -> list[Event | Spanned]:
        found = ((form, form.pattern.search(line.text)) for form in forms())
        return next((events for form, match in found if match and (events := list(form.read(match, line)))), [])

    def every(line: Line) -> list[Event | Spanned]:
        found = [(form, match) for form in forms() for match in form.pattern.finditer(line.text)]
        found.sort(key=lambda one: one[1].start())
        return [event for form, match in found for event in form.read(match, line)]

    read = every if spec.every else first
    return Rule(spec.name, tuple(anchor.encode() for anchor in spec.anchors), read, spec.by_shape)


_SPECS = msgspec.json.decode(documents_in("megatron_monitor.parsers.formats"), type=dict[str, tuple[RuleSpec, ...]])
FORMS: dict[str, tuple[Rule, ...]] = {name: tuple(map(_rule, rules)) for name, rules in _SPECS.items()}
"""The rules of each file, by its name."""
