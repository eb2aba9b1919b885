"""The keys of a dialect file. `monitor/config` decodes a site's own with line and path of every error.

A class has `problems()`, which yields (key, message) for what its values together have wrong.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

from megatron_monitor.parsers.declared.marks import Mark
from megatron_monitor.parsers.declared.targets import converter
from megatron_monitor.parsers.events import Failure
from megatron_monitor.parsers.tables import documents_in

Means = Literal[
    "step", "evaluation", "evaluating", "evaluated", "saving", "saved", "loading", "loaded", "launch", "begin", "done",
    "end", "failure", "progress", "settings", "figures", "rollout", "reward", "logprobs", "training", "sync",
    "generating",
]  # fmt: skip
"""What a line says.

step: one or more iterations have finished. evaluation: its result; evaluating: that it begins or goes on;
evaluated: that it is over. saving, saved, loading,
loaded: a checkpoint. launch: a program has started; begin: the training begins; done: it is done, processes may still
end; end: everything is done. failure: it dies. progress: it lives, no more. settings: sizes of the run. figures: values
that belong to the step before. rollout, reward, logprobs, training, sync: this part of a step of reinforcement
learning begins or goes on. generating: an engine makes tokens, for whatever part.
"""
Form = Literal["pairs", "json", "block"]
_MAX_FIELDS = 200
_MOST_LINES = 100  # kinds of lines; MLPerf has 19. Of a mark that many kinds share each is tried
_MOST_SAMPLES = 200
_MOST_PREFIXES = 16
_MOST_NAMES = 20
_LEAST_TEXT = 3
_GIVEN = ("epoch_steps", "epochs", "total")
_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")


def _empty() -> Mapping[str, Any]:
    return {}


def _plain(raw: Any) -> Any:
    """A number, text or a truth value of a sample."""
    if isinstance(raw, str | int | float):
        return raw
    raise ValueError("expected a number or text")


class LineSpec(Struct, frozen=True, kw_only=True):
    """One kind of line."""

    means: Means
    then: Literal["", "evaluating", "saving", "rollout"] = ""
    """What begins with this line, beside what it says."""
    line: str
    """What marks it: literal text with placeholders (marks.py). It begins the line, prefixes aside."""
    anywhere: bool = False
    """The mark may stand anywhere in the line."""
    prefixed: bool = False
    """One of the dialect's own prefixes must stand before it: other programs print the same words."""
    whole: bool = False
    """Names and values stand before the mark, too: from the last `{` before it, else from the line's beginning."""
    form: Form = "pairs"
    """What follows the mark: `pairs` names and values; `json` an object, whose names are joined by dots; `block` lines
    of names and values below it, each of which begins with `indent`."""
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
    fields: Mapping[str, str] = field(default_factory=_empty)
    """Their name -> ours, with a unit where it needs one. They come before the dialect's own."""
    needs: tuple[str, ...] = ()
    """Their names without which it is another line."""
    without: tuple[str, ...] = ()
    """Their names with which it is another line."""
    where: Mapping[str, str] = field(default_factory=_empty)
    """Their name -> the value that it must have; several are separated by `, `."""
    positive: tuple[str, ...] = ()
    """Their names whose value must be more than zero."""
    given: Mapping[str, int] = field(default_factory=_empty)
    """Our name -> value of what no line prints: the steps of an epoch."""
    failure: Failure = "unknown"
    """For `failure`: which."""
    name: str = ""
    """For `progress` and `evaluation`: its name."""

    def problems(self) -> Iterator[tuple[str, str]]:
        """What the values together have wrong."""
        yield from self._problems_of_mark()
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

    def _problems_of_mark(self) -> Iterator[tuple[str, str]]:
        try:
            mark = Mark(self.line)
        except ValueError as error:
            yield "line", str(error)
            return
        if len(mark.anchor.strip()) < _LEAST_TEXT:
            yield "line", "needs a piece of text of at least three characters that every such line holds"
        elif self.anywhere and len(mark.lead.strip()) < _LEAST_TEXT:
            yield "line", "may stand anywhere: it must begin with at least three characters of text"


class Sample(Struct, frozen=True, kw_only=True):
    """A line as it is printed, and what it gives: the dialect's own test."""

    line: str
    gives: Mapping[str, Annotated[Any, Meta(extra={"read": _plain})]] = field(default_factory=_empty)
    """Field of the event -> value, `event` names its kind; nothing: the line says nothing to this dialect."""


class Dialect(Struct, frozen=True, kw_only=True):
    """One trainer's lines."""

    name: str
    """The label `dialect`: small letters, digits, dashes."""
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
    fields: Mapping[str, str] = field(default_factory=_empty)
    """Their name -> ours in every line of this dialect."""
    lines: Annotated[tuple[LineSpec, ...], Meta(min_length=1)]
    samples: Annotated[tuple[Sample, ...], Meta(min_length=1)]

    def problems(self) -> Iterator[tuple[str, str]]:
        """What the values together have wrong."""
        if not _NAME.fullmatch(self.name):
            yield "name", "expected small letters, digits and dashes, 40 at most, a letter first"
        most = {"lines": _MOST_LINES, "samples": _MOST_SAMPLES, "prefixes": _MOST_PREFIXES}
        for key, count in most.items():
            if len(getattr(self, key)) > count:
                yield key, f"has more than {count} items"
        for index, text in enumerate(self.prefixes):
            try:
                mark = Mark(text)
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
def built_in() -> tuple[Dialect, ...]:
    """All of them, by name."""
    files = msgspec.json.decode(documents_in("megatron_monitor.parsers.trainers"), type=dict[str, Dialect])
    return tuple(files[name] for name in sorted(files))
