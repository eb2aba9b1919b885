"""The keys of a format file. `monitor/config` decodes users' files and reports each error with line and path.

A class has `problems()`, which yields (key, message) for values that contradict each other.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from megatron_monitor.parsers.declared.failures import ended_by, failure_of, is_victim, signal_in
from megatron_monitor.parsers.declared.marks import mark_of
from megatron_monitor.parsers.declared.targets import CONVERTERS, PIECES, converter
from megatron_monitor.parsers.events import EVENT_TYPES, Event, Failure, FailureSeen, Teller
from megatron_monitor.parsers.patterns import filled
from megatron_monitor.parsers.tables import documents_in

DEFAULTS = (
    "step", "evaluation", "evaluating", "evaluated", "saving", "saved", "loading", "loaded", "start", "begin", "done",
    "end", "failure", "progress", "settings", "figures", "rollout", "reward", "logprobs", "training", "sync",
    "generating",
)  # fmt: skip
"""Meanings of a line, besides the kinds of events.

step: one or more iterations finished. evaluation: the result of an evaluation; evaluating: it begins or continues;
evaluated: it ended. saving, saved, loading, loaded: a checkpoint. start: a program has started; begin: training begins;
done: training is complete, processes may still exit; end: everything is complete. failure: a failure. progress: the run
is alive. settings: sizes of the run. figures: values of the previous step. rollout, reward, logprobs, training, sync:
this part of a reinforcement learning step begins or continues. generating: an engine generates tokens, for any part.
"""
Form = Literal["", "pairs", "json", "block"]
_LEAST_TEXT = 3
_ANY_DIGIT = re.compile(r"\\d|0-9|\{\d+(?:,\d*)?\}")  # digits of an expression that do not mean themselves
_OWN_DIGIT = re.compile(r"[0-9]|\{epoch_step\b")
_SHORT = Meta(min_length=1, max_length=100)
_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")


def _value(raw: Any) -> Any:
    """Return a constant or a sample's value."""
    if raw is None or isinstance(raw, str | int | float | dict):
        return raw
    raise ValueError("expected a number, text or a mapping")


def _reading(raw: Any) -> Any:
    """Return how a group is read: the name of a converter, or the meanings of its words."""
    if isinstance(raw, dict) or raw in CONVERTERS:
        return raw
    raise ValueError(f"expected what each word means, or one of {', '.join(CONVERTERS)}")


def _meaning(raw: Any) -> str:
    if raw in DEFAULTS or raw in EVENT_TYPES:
        return str(raw)
    raise ValueError(f"expected one of {', '.join(DEFAULTS)}, or the kind of an event")


Value = Annotated[Any, Meta(extra={"read": _value})]


class EndSpec(Struct, frozen=True, kw_only=True):
    """The failure that precedes a `process_exit` if a signal or a code ended the process: named by the exit code, or by
    the C library's name of the signal in the group `signal`.
    """

    message: str
    """`{name}` is replaced by the group's text, `{number}` by the signal's number."""
    by: Teller = "launcher"
    any_code: bool = False
    """True: report a failure for each code."""
    failure: Failure | None = None
    """The failure if neither code nor signal names one."""
    consequence: bool | None = None
    """True if another line has the cause, unless the code or the signal decides that. None: it does not decide."""
    signals: Mapping[str, Any] = field(default_factory=dict)
    """Signal name -> the failure and `consequence`, if this program uses the signal for something else than usual."""

    def event(self, code: int | None, texts: Mapping[str, Any], origin: Mapping[str, Any]) -> Iterator[Event]:
        """Return the failure of a match, or None."""
        if code is not None and (self.any_code or signal_in(code)):
            message = self.message.format_map({**texts, "number": signal_in(code)})
            failure, consequence = failure_of(code), is_victim(code)
        elif self.failure or "signal" in texts:
            name, code, message = texts.get("signal", ""), None, self.message.format_map(texts)
            failure, consequence = self.signals.get(name) or ended_by(name) or (self.failure or "unknown", False)
        else:
            return
        if self.consequence is not None:
            consequence = self.consequence
        facts = {"consequence": consequence, "exit_code": code, "by": self.by, **origin}
        yield FailureSeen(failure=failure, message=message, **facts)


class LineSpec(Struct, frozen=True, kw_only=True):
    """One kind of line."""

    means: Annotated[str, Meta(extra={"read": _meaning})]
    """A meaning (WORDS), or the kind of an event."""
    then: Literal["", "evaluating", "saving", "rollout"] = ""
    """The phase that begins with this line, besides its meaning."""
    line: str = ""
    """The mark: literal text with placeholders (marks.py) at the beginning of the line, after prefixes."""
    regex: str = ""
    """A regular expression that is searched in the line, if a mark is not enough. `{N}` in it is a printed number,
    `{SIGNAL}` the C library's name of a signal. A group fills the field of its name, with the field's type. If no match
    can be read, the line does not match.
    """
    rule: str = ""
    """Consecutive lines with the same rule are tried in turn until one matches."""
    anchors: tuple[Annotated[str, Meta(min_length=_LEAST_TEXT, max_length=200)], ...] = ()
    """For a rule: texts, one of which is in each of its lines."""
    any_width: bool = False
    """For a rule: the widths of numbers up to 15 digits do not decide whether a line matches."""
    every: bool = False
    """For a rule: apply each expression as often as it matches, in the line's order, because lines of several writers
    may be joined.
    """
    location: str = ""
    """A regular expression that the code location which the logger prints before the line must match."""
    extras: tuple[str, ...] = ()
    """Further expressions. Each is searched alone, and its groups fill fields if it matches."""
    also: tuple[str, ...] = ()
    """Kinds of further events of the same line, without fields."""
    sets: Mapping[str, Value] = field(default_factory=dict)
    """Constant values of the event. `{name}` in a text is replaced by the group's text."""
    reads: Mapping[str, Annotated[Any, Meta(extra={"read": _reading})]] = field(default_factory=dict)
    """Group -> its converter (targets.CONVERTERS), if it differs from the field's, or the meanings of its words. A name
    that is not a group reads the whole line.
    """
    into: str = ""
    """The field of values by name that receives all groups, or the group `value` under the name in the group `name`, or
    the pairs after the mark.
    """
    message_length: int = 0
    """Number of characters of the line that become the event's `message`."""
    failed: EndSpec | None = None
    """How to report the failure of a process that ended."""
    anywhere: bool = False
    """True if the mark may be anywhere in the line."""
    prefixed: bool = False
    """True if one of the format's own prefixes must precede the mark, because other programs print the same words."""
    whole: bool = False
    """True if names and values also precede the mark: from the last `{` before it, else from the beginning of
    the line.
    """
    form: Form = ""
    """What follows the mark. `pairs`: names and values. `json`: an object, whose nested names are joined by dots.
    `block`: lines of names and values below it, each of which begins with `indent`.
    """
    separator: Annotated[str, _SHORT] = ", "
    """Text between two pairs. A blank matches one or more blanks."""
    assign: str = ":"
    """Text between a name and its value. A blank: the value is the last word."""
    until: str = ""
    """Text at which the pairs end, or with which the last line of a block begins. Empty: at the end of the line, or at
    the first line without the block's indent.
    """
    indent: Annotated[str, _SHORT] = " "
    """Text with which each line of a block begins."""
    ends: str = ""
    """Text with which the last part of a block begins, if other lines come between the block's lines. Empty:
    none do.
    """
    fields: Mapping[str, str] = field(default_factory=dict)
    """Printed name -> our name, with a unit if needed. They override the format's own. After a regex: -> the event's
    field and its converter. `* loss` collects values by the text that the star matches.
    """
    needs: tuple[str, ...] = ()
    """Printed names that the line must have."""
    without: tuple[str, ...] = ()
    """Printed names that the line must not have."""
    where: Mapping[str, str] = field(default_factory=dict)
    """Printed name -> the value that it must have, or several values separated by `, `."""
    given: Mapping[Literal["epoch_steps", "epochs", "total"], int] = field(default_factory=dict)
    """Our name -> a value that no line prints, such as the steps of an epoch."""
    failure: Failure = "unknown"
    """For the meaning `failure`: the failure."""
    name: str = ""
    """For the meanings `progress` and `evaluation`: its name."""

    @property
    def by_digits(self) -> bool:
        """True if a digit decides whether the line matches or what it says: a digit of the mark, of an expression or of
        a word with a meaning. A failure may be named by the digits of a text, and a bar's numbers may contradict each
        other.
        """
        expressions = (_ANY_DIGIT.sub("", text) for text in (self.regex, self.location, *self.extras))
        meanings = (word for how in self.reads.values() if isinstance(how, Mapping) for word in how)
        names = self.where.values() if self.line else self.fields
        return (
            self.failed is not None
            or isinstance(self.reads.get("failure"), str)
            or any("{" in value for value in self.sets.values() if isinstance(value, str))
            or any(map(_OWN_DIGIT.search, (self.line, *expressions, *meanings, *names)))
        )

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield what is wrong with the values."""
        yield from self._problems_of_regexes() if self.regex or not self.line else self._problems_of_mark()
        if self.line:
            yield from _problems_of_fields(self.fields)
        if not self.assign.strip() and (not self.assign or not self.separator.strip()) and self.form != "json":
            yield "assign", "is empty, or blank as the separator is: a name and its value cannot be told apart"

    def _problems_of_regexes(self) -> Iterator[tuple[str, str]]:
        if self.line or not self.regex:
            yield "regex", "a line has either `line` or `regex`"
        for name, text in (
            ("regex", self.regex),
            ("location", self.location),
            *(("extras", one) for one in self.extras),
        ):
            try:
                re.compile(filled(text, PIECES))
            except (re.error, RecursionError) as error:
                yield name, f"is no regular expression: {error}"
        if not self.rule and not self.anchors:
            yield "anchors", "are missing: text of which each such line holds a piece"

    def _problems_of_mark(self) -> Iterator[tuple[str, str]]:
        try:
            mark = mark_of(self.line)
        except ValueError as error:
            yield "line", str(error)
            return
        if len(mark.anchor.strip()) < _LEAST_TEXT:
            yield "line", "needs a piece of text of at least three characters that every such line holds"
        elif self.anywhere and len(mark.lead.strip()) < _LEAST_TEXT:
            yield "line", "may stand anywhere: it must begin with at least three characters of text"


class FormatSample(Struct, frozen=True, kw_only=True):
    """A line as printed and the events that it gives: a test of the format."""

    line: str
    gives: Mapping[str, Value] = field(default_factory=dict)
    """Field of the event -> value. `event` is its kind. Empty: the format does not read the line."""


class Format(Struct, frozen=True, kw_only=True):
    """The lines of one trainer."""

    name: str
    """The label `format`: small letters, digits, dashes."""
    about: str = ""
    """The program that prints the lines, and since which version."""
    source: str = ""
    """Address of its source, or whom to ask."""
    timers: str = ""
    """How to make it print timers, or where else it writes them: shown with a slowdown of a log without timers."""
    prefixes: tuple[str, ...] = ()
    """Text that the program's logger prints before a line, with `{time}` for its time. Prefixes of launchers (torchrun,
    Ray, srun, pdsh, containers) are built in.
    """
    fields: Mapping[str, str] = field(default_factory=dict)
    """Printed name -> our name, for each line of this format."""
    lines: Annotated[tuple[LineSpec, ...], Meta(min_length=1)]
    samples: Annotated[tuple[FormatSample, ...], Meta(min_length=1)]

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield what is wrong with the values."""
        if not _NAME.fullmatch(self.name):
            yield "name", "expected small letters, digits and dashes, 40 at most, a letter first"
        for index, text in enumerate(self.prefixes):
            try:
                mark = mark_of(text)
            except ValueError as error:
                yield f"prefixes.{index}", str(error)
            else:
                if mark.converters.keys() - {"logged_at", "step", "epoch"}:
                    yield f"prefixes.{index}", "a prefix tells {time} and no other value"
        if not self.prefixes:
            for index, spec in enumerate(self.lines):
                if spec.prefixed:
                    yield f"lines.{index}.prefixed", "there are no `prefixes` that could stand before it"
        yield from _problems_of_fields(self.fields)


def _problems_of_fields(fields: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, target in fields.items():
        try:
            converter(target)
        except ValueError as error:
            yield f"fields.{name}", str(error)


@cache
def built_in() -> tuple[Format, ...]:
    """Return all built-in formats in the order of their names."""
    files = documents_in("megatron_monitor.parsers.formats", dict[str, Format])
    return tuple(files[name] for name in sorted(files))
