"""A site's own lines: patterns of the configuration as rules.

The patterns are written by people and run on text that anybody may write: each search has a timeout, and one that
runs into it three times is switched off.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import regex

from parsers.engine.fields import number
from parsers.engine.scan import Line, Rule
from parsers.events import (
    CustomProgressLogged,
    CustomValueLogged,
    Event,
    Failure,
    FailureSeen,
    Malformed,
)

TIMEOUT_SECONDS = 0.05
_MAX_TIMEOUTS = 3
_MAX_CHARACTERS = 64 * 1024


class PatternSpec(Protocol):
    """What the configuration gives for one pattern."""

    @property
    def name(self) -> str:
        """Its name: a label value."""

    @property
    def match(self) -> str:
        """The regular expression."""

    @property
    def kind(self) -> str:
        """value, progress or failure."""

    @property
    def contains(self) -> str | None:
        """A literal that the line must hold."""

    @property
    def failure(self) -> Failure | None:
        """Which failure a line of kind `failure` is."""


@dataclass(slots=True)
class CustomReader:
    """One pattern, compiled, and how often it ran out of time."""

    spec: PatternSpec
    pattern: Any
    timeouts: int = 0

    def __call__(self, line: Line) -> Iterator[Event]:
        """The event that the line gives, if it is one of these."""
        spec = self.spec
        if self.timeouts >= _MAX_TIMEOUTS or (spec.contains is not None and spec.contains not in line.text):
            return
        try:
            match = self.pattern.search(line.text[:_MAX_CHARACTERS], timeout=TIMEOUT_SECONDS)
        except TimeoutError:
            self.timeouts += 1
            return
        if match is None:
            return
        if spec.kind == "progress":
            yield CustomProgressLogged(name=spec.name, **line.origin)
        elif spec.kind == "failure":
            failure, message = spec.failure or "unknown", line.text.strip()[:500]
            yield FailureSeen(failure=failure, message=message, pattern=spec.name, **line.origin)
        else:
            value = number(match.groupdict().get("value") or "")
            if value is None:
                yield Malformed(rule=spec.name, text=line.text[:500], **line.origin)
            else:
                yield CustomValueLogged(name=spec.name, value=value, **line.origin)


def compile_patterns(specs: Iterable[PatternSpec]) -> tuple[Rule, ...]:
    """One rule a pattern. Raises ValueError that names the pattern whose expression is wrong."""
    rules = []
    for spec in specs:
        try:
            pattern = regex.compile(spec.match)
        except regex.error as error:
            raise ValueError(f"pattern {spec.name}: {error}") from error
        rules.append(Rule(spec.name, (), CustomReader(spec, pattern)))
    return tuple(rules)
