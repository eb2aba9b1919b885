"""All events: the facts that a training log can report.

An event is a past-tense fact: frozen, slotted, keyword-only. A value that the line does not have is `None`, never 0.
Units are seconds, bytes, samples and TFLOP/s per GPU; the parsers convert. This package imports no code that uses
events, so that all code can import it.
"""

import operator
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from megatron_monitor.parsers.events.base import ANSI, MAX_TEXT, Event, text_of
from megatron_monitor.parsers.events.ends import *
from megatron_monitor.parsers.events.loop import *
from megatron_monitor.parsers.events.reports import *
from megatron_monitor.parsers.events.setup import *

EVENT_TYPES: dict[str, type[Event]] = {
    str(cls.__struct_config__.tag): cls
    for cls in list(globals().values())
    if isinstance(cls, type) and issubclass(cls, Event) and cls.__struct_config__.tag != cls.__name__
}
"""Public name -> class, for classes with a tag."""
for kind, event_type in EVENT_TYPES.items():
    event_type.kind = kind
if TYPE_CHECKING:
    AnyEvent: TypeAlias = Event
    RawLine: TypeAlias = bytes | str
else:
    AnyEvent, RawLine = reduce(operator.or_, EVENT_TYPES.values()), Any  # what msgspec can decode


class LogEvent(msgspec.Struct, gc=False):
    """An event with its physical line number (by newlines, from 1), the rule that read it, and the line."""

    line: int
    rule: str
    event: AnyEvent
    raw: RawLine

    @property
    def text(self) -> str:
        """The line as a person reads it."""
        return text_of(self.raw)


def to_fields(event: Event) -> dict[str, Any]:
    """Return the event as plain data for `explain`, without absent values and empty collections."""
    values = {name: getattr(event, name) for name in event.__struct_fields__}
    return {"event": event.kind} | {name: value for name, value in values.items() if value not in (None, {}, "")}
