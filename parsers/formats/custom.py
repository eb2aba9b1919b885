"""A site's own lines: patterns of the configuration as rules.

The patterns are written by people and run on text that anybody may write: each search has a timeout, and one that
runs into it three times is switched off.
"""

from __future__ import annotations

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
    """One pattern, and how often it ran out of time."""

    name: str
    pattern: Any
    kind: str
    contains: str | None
    failure: Failure
    timeouts: int = 0

    def __call__(self, line: Line) -> Iterator[Event]:
        """The event that the line gives, if it is one of these."""
        if self.timeouts >= _MAX_TIMEOUTS or (self.contains is not None and self.contains not in line.text):
            return
        try:
            match = self.pattern.search(line.text[:_MAX_CHARACTERS], timeout=TIMEOUT_SECONDS)
        except TimeoutError:
            self.timeouts += 1
            return
        if match is None:
            return
        if self.kind == "progress":
            yield CustomProgressLogged(name=self.name, **line.origin)
        elif self.kind == "failure":
            yield FailureSeen(failure=self.failure, message=line.text.strip()[:500], pattern=self.name, **line.origin)
        else:
            value = number(match.groupdict().get("value") or "")
            if value is None:
                yield Malformed(rule=self.name, text=line.text[:500], **line.origin)
            else:
                yield CustomValueLogged(name=self.name, value=value, **line.origin)


def compile_patterns(specs: Iterable[PatternSpec]) -> tuple[Rule, ...]:
    """One rule a pattern. Raises ValueError that names the pattern whose expression is wrong."""
    rules = []
    for spec in specs:
        try:
            pattern = regex.compile(spec.match)
        except regex.error as error:
            raise ValueError(f"pattern {spec.name}: {error}") from error
        reader = CustomReader(spec.name, pattern, spec.kind, spec.contains, spec.failure or "unknown")
        rules.append(Rule(spec.name, (), reader))
    return tuple(rules)
