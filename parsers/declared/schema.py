"""The keys of a format file. `monitor/config` decodes a site's own with line and path of every error.

A class has `problems()`, which yields (key, message) for what its values together have wrong.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

from megatron_monitor.parsers.declared.failures import ended_by, failed, signal_in
from megatron_monitor.parsers.declared.marks import LineMark
from megatron_monitor.parsers.declared.targets import CONVERTERS, PIECES, converter
from megatron_monitor.parsers.events import EVENT_TYPES, Event, Failure, FailureSeen, Teller
from megatron_monitor.parsers.patterns import filled
from megatron_monitor.parsers.tables import documents_in

DEFAULTS = (
    "step", "evaluation", "evaluating", "evaluated", "saving", "saved", "loading", "loaded", "start", "begin", "done",
    "end", "failure", "progress", "settings", "figures", "rollout", "reward", "logprobs", "training", "sync",
    "generating",
)  # fmt: skip
"""What a line may mean, beside the kinds of events.

step: one or more iterations have finished. evaluation: its result; evaluating: that it begins or goes on;
evaluated: that it is over. saving, saved, loading,
loaded: a checkpoint. launch: a program has started; begin: the training begins; done: it is done, processes may still
end; end: everything is done. failure: it dies. progress: it lives, no more. settings: sizes of the run. figures: values
that belong to the step before. rollout, reward, logprobs, training, sync: this part of a step of reinforcement
learning begins or goes on. generating: an engine makes tokens, for whatever part.
"""
Form = Literal["", "pairs", "json", "block"]
_MAX_FIELDS = 200
_MOST_NAMES = 20
_LEAST_TEXT = 3
_GIVEN = ("epoch_steps", "epochs", "total")
_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")


def _plain(raw: Any) -> Any:
    """A number, text or a truth value of a sample."""
    if isinstance(raw, str | int | float):
        return raw
    raise ValueError("expected a number or text")


def _read(raw: Any) -> Any:
    """How a group is read: a name, or what its words mean."""
    if isinstance(raw, str | dict):
        return raw
    raise ValueError("expected the name of a reading, or what each word means")


def _meaning(raw: Any) -> str:
    if raw in DEFAULTS or raw in EVENT_TYPES:
        return str(raw)
    raise ValueError(f"expected one of {', '.join(DEFAULTS)}, or the kind of an event")


def _sample(raw: Any) -> Any:
    return raw if raw is None or isinstance(raw, dict) else _plain(raw)


Plain = Annotated[Any, Meta(extra={"read": _plain})]


class EndSpec(Struct, frozen=True, kw_only=True):
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
    signals: Mapping[str, Any] = field(default_factory=dict)
    """What this program means by a signal's name, where that is something else: the failure, and `consequence`."""

    def event(self, code: int | None, texts: Mapping[str, Any], origin: Mapping[str, Any]) -> Iterator[Event]:
        """The failure, if there is one."""
        others: dict[str, Any] = {"by": self.by}
        if self.consequence is not None:
            others["consequence"] = self.consequence
        if code is not None and (self.any_code or signal_in(code)):
            yield failed(code, self.message.format_map({**texts, "number": signal_in(code)}), origin, **others)
        elif self.failure or "signal" in texts:
            name = texts.get("signal", "")
            failure, consequence = self.signals.get(name) or ended_by(name) or (self.failure or "unknown", False)
            facts = {"consequence": consequence, **others, **origin}
            yield FailureSeen(failure=failure, message=self.message.format_map(texts), **facts)


class LineSpec(Struct, frozen=True, kw_only=True):
    """One kind of line."""

    means: Annotated[str, Meta(extra={"read": _meaning})]
    """A word (WORDS), or the kind of an event."""
    then: Literal["", "evaluating", "saving", "rollout"] = ""
    """What begins with this line, beside what it says."""
    line: str = ""
    """What marks it: literal text with placeholders (marks.py). It begins the line, prefixes aside."""
    regex: str = ""
    """Where that is not enough: a regular expression that is searched in the line. `{N}` in it is a printed number,
    `{SIGNAL}` the C library's name of a signal. A group fills the field of its name, as the field's type says. Where
    none of those that are found can be read, it is no such line.
    """
    rule: str = ""
    """Lines below one another with the same one are asked in turn, up to the first that answers."""
    anchors: tuple[str, ...] = ()
    """Of a rule: text of which each of its lines holds a piece."""
    by_shape: bool = False
    """Of a rule: no digit decides whether it is its line."""
    every: bool = False
    """Of a rule: each of its expressions, as often as a line has it, in the line's order: what several have printed may
    be glued."""
    location: str = ""
    """A regular expression that the place in the source, which a logger prints before the line, must have."""
    holds: str = ""
    """A regular expression that the line must have, too."""
    extras: tuple[str, ...] = ()
    """Further expressions: each is searched by itself, and its groups fill fields where it is found."""
    also: tuple[str, ...] = ()
    """Kinds of further events of the same line, of which nothing more is told."""
    sets: Mapping[str, Plain] = field(default_factory=dict)
    """Values that the event always has; in a text `{name}` is what the group holds."""
    reads: Mapping[str, Annotated[Any, Meta(extra={"read": _read})]] = field(default_factory=dict)
    """Group -> how it is read (targets.CONVERTERS), where that is another way, or what each of its words means; of no
    such group the whole line is read."""
    into: str = ""
    """The field, values by their names, that all groups fill, or the group `value` under the name in the group `name`,
    or the pairs behind the mark."""
    message_length: int = 0
    """So many characters of the line are the event's `message`."""
    failed: EndSpec | None = None
    """Of a process that ended, what is told of its failure."""
    anywhere: bool = False
    """The mark may stand anywhere in the line."""
    prefixed: bool = False
    """One of the format's own prefixes must stand before it: other programs print the same words."""
    whole: bool = False
    """Names and values stand before the mark, too: from the last `{` before it, else from the line's beginning."""
    form: Form = ""
    """What follows the mark: `pairs` names and values, as behind all literal text; `json` an object, whose names are
    joined by dots; `block` lines of names and values below it, each of which begins with `indent`."""
    separator: str = ", "
    """Between two pairs. Blanks alone: one or more of them."""
    assign: str = ":"
    """Between a name and its value; a blank: the value is the last word."""
    until: str = ""
    """Where the pairs end in the line; empty: at its end."""
    indent: str = " "
    """What each line of a block begins with."""
    ends: str = ""
    """What the last part of a block begins with, where other lines stand between its lines; empty: none do."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Their name -> ours, with a unit where it needs one. They come before the format's own. Behind a regex: -> the
    event's field and its reading; of `* loss` the field holds values by what the star stands for."""
    needs: tuple[str, ...] = ()
    """Their names without which it is another line."""
    without: tuple[str, ...] = ()
    """Their names with which it is another line."""
    where: Mapping[str, str] = field(default_factory=dict)
    """Their name -> the value that it must have; several are separated by `, `."""
    positive: tuple[str, ...] = ()
    """Their names whose value must be more than zero."""
    given: Mapping[str, int] = field(default_factory=dict)
    """Our name -> value of what no line prints: the steps of an epoch."""
    failure: Failure = "unknown"
    """For `failure`: which."""
    name: str = ""
    """For `progress` and `evaluation`: its name."""

    def problems(self) -> Iterator[tuple[str, str]]:
        """What the values together have wrong."""
        yield from self._problems_of_regexes() if self.regex or not self.line else self._problems_of_mark()
        if self.line:
            yield from _problems_of_fields(self.fields)
        yield from ((f"given.{name}", f"{name!r} is no count") for name in self.given if name not in _GIVEN)
        if not self.assign.strip() and (not self.assign or not self.separator.strip()) and self.form != "json":
            yield "assign", "is empty, or blank as the separator is: a name and its value cannot be told apart"
        if not self.separator:
            yield "separator", "is empty"
        for name in ("needs", "without", "where"):
            if len(getattr(self, name)) > _MOST_NAMES:
                yield name, f"has more than {_MOST_NAMES} names"
        if self.form == "block" and not self.indent:
            yield "indent", "is empty: every line would belong to the block"

    def _problems_of_regexes(self) -> Iterator[tuple[str, str]]:
        if self.line or not self.regex:
            yield "regex", "a line has either `line` or `regex`"
        for name in ("regex", "location", "holds", *(f"extras.{index}" for index in range(len(self.extras)))):
            text = self.extras[int(name[7:])] if name.startswith("extras") else getattr(self, name)
            try:
                re.compile(filled(text, PIECES))
            except (re.error, RecursionError) as error:
                yield name, f"is no regular expression: {error}"
        if not self.rule and not self.anchors:
            yield "anchors", "are missing: text of which each such line holds a piece"
        yield from (("anchors", "needs three characters at least") for text in self.anchors if len(text) < _LEAST_TEXT)
        for name, how in self.reads.items():
            if isinstance(how, str) and how not in CONVERTERS:
                yield f"reads.{name}", f"{how!r} is no reading; there are {', '.join(CONVERTERS)}"

    def _problems_of_mark(self) -> Iterator[tuple[str, str]]:
        try:
            mark = LineMark(self.line)
        except ValueError as error:
            yield "line", str(error)
            return
        if len(mark.anchor.strip()) < _LEAST_TEXT:
            yield "line", "needs a piece of text of at least three characters that every such line holds"
        elif self.anywhere and len(mark.lead.strip()) < _LEAST_TEXT:
            yield "line", "may stand anywhere: it must begin with at least three characters of text"


class FormatSample(Struct, frozen=True, kw_only=True):
    """A line as it is printed, and what it gives: the format's own test."""

    line: str
    gives: Mapping[str, Annotated[Any, Meta(extra={"read": _sample})]] = field(default_factory=dict)
    """Field of the event -> value, `event` names its kind; nothing: the line says nothing to this format."""


class Format(Struct, frozen=True, kw_only=True):
    """One trainer's lines."""

    name: str
    """The label `format`: small letters, digits, dashes."""
    about: str = ""
    """Which program prints them, and since when."""
    source: str = ""
    """Where its source is, or whom to ask."""
    timers: str = ""
    """How it is made to tell where a step's time goes, or where else it writes that: shown with a slowdown of a log
    that does not tell."""
    prefixes: tuple[str, ...] = ()
    """What the program's logger puts before a line, with `{time}` where it prints one. Prefixes of launchers (torchrun,
    Ray, srun, pdsh, containers) are known already."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Their name -> ours in every line of this format."""
    lines: Annotated[tuple[LineSpec, ...], Meta(min_length=1)]
    samples: Annotated[tuple[FormatSample, ...], Meta(min_length=1)]

    def problems(self) -> Iterator[tuple[str, str]]:
        """What the values together have wrong."""
        if not _NAME.fullmatch(self.name):
            yield "name", "expected small letters, digits and dashes, 40 at most, a letter first"
        for index, text in enumerate(self.prefixes):
            try:
                mark = LineMark(text)
            except ValueError as error:
                yield f"prefixes.{index}", str(error)
            else:
                if [name for name, _ in mark.captured if name not in ("time", "step", "epoch")]:
                    yield f"prefixes.{index}", "a prefix tells {time} and no other value"
        if not self.prefixes:
            for index, spec in enumerate(self.lines):
                if spec.prefixed:
                    yield f"lines.{index}.prefixed", "there are no `prefixes` that could stand before it"
        yield from _problems_of_fields(self.fields)


def _problems_of_fields(fields: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if len(fields) > _MAX_FIELDS:
        yield "fields", f"has more than {_MAX_FIELDS} names"
    for name, target in fields.items():
        try:
            converter(target)
        except ValueError as error:
            yield f"fields.{name}", str(error)


@cache
def built_in() -> tuple[Format, ...]:
    """All of them, by name."""
    files = msgspec.json.decode(documents_in("megatron_monitor.parsers.formats"), type=dict[str, Format])
    return tuple(files[name] for name in sorted(files))
