"""A site's own lines: how a pattern of the configuration reads.

The patterns are written by people and run on text that anybody may write: each search has a timeout, and one that
runs into it three times is switched off.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from megatron_monitor.parsers.engine.fields import number
from megatron_monitor.parsers.engine.scan import Line
from megatron_monitor.parsers.events import (
    CustomProgressLogged,
    CustomValueLogged,
    Event,
    Failure,
    FailureSeen,
    Malformed,
)

_TIMEOUT_SECONDS = 0.05
_MAX_TIMEOUTS = 3
_MAX_CHARACTERS = 64 * 1024


@dataclass(slots=True)
class CustomReader:
    """One pattern, compiled by the `regex` library, and how often it ran out of time."""

    name: str
    """A label value."""
    kind: str
    """value, progress or failure."""
    pattern: Any
    contains: str | None
    """A literal that the line must hold."""
    failure: Failure | None
    """Which failure a line of kind `failure` is."""
    timeouts: int = 0

    def __call__(self, line: Line) -> Iterator[Event]:
        """The event that the line gives, if it is one of these."""
        if self.timeouts >= _MAX_TIMEOUTS or (self.contains is not None and self.contains not in line.text):
            return
        try:
            match = self.pattern.search(line.text[:_MAX_CHARACTERS], timeout=_TIMEOUT_SECONDS)
        except TimeoutError:
            self.timeouts += 1
            return
        if match is None:
            return
        if self.kind == "progress":
            yield CustomProgressLogged(name=self.name, **line.origin)
        elif self.kind == "failure":
            failure, message = self.failure or "unknown", line.text.strip()[:500]
            yield FailureSeen(failure=failure, message=message, pattern=self.name, **line.origin)
        else:
            value = number(match.groupdict().get("value") or "")
            if value is None:
                yield Malformed(rule=self.name, text=line.text[:500], **line.origin)
            else:
                yield CustomValueLogged(name=self.name, value=value, **line.origin)
