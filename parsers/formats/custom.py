"""A site's own lines: how a pattern of the configuration reads."""

from collections.abc import Iterator
from dataclasses import dataclass

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
from megatron_monitor.parsers.patterns import Guarded


@dataclass(slots=True)
class CustomReader:
    """One pattern."""

    name: str
    """A label value."""
    kind: str
    """value, progress or failure."""
    pattern: Guarded
    contains: str | None
    """A literal that the line must hold."""
    failure: Failure | None
    """Which failure a line of kind `failure` is."""

    @property
    def timeouts(self) -> int:
        """How often its pattern ran out of time."""
        return self.pattern.timeouts

    def __call__(self, line: Line) -> Iterator[Event]:
        """The event that the line gives, if it is one of these."""
        match = self.pattern.search(line.text) if self.contains is None or self.contains in line.text else None
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
