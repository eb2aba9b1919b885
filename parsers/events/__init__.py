"""Every fact that a training log can state.

Events are past-tense facts: frozen, slotted, keyword-only. A value that the line did not carry is `None`, never 0.
Units are seconds, bytes, samples, TFLOP/s per GPU; the parsers convert at their edge. Nothing here imports what knows
an event, so that everything may import it.
"""

from typing import Any

from megatron_monitor.parsers.events.base import ANSI, MAX_TEXT, Event, LogEvent, text_of
from megatron_monitor.parsers.events.ends import *
from megatron_monitor.parsers.events.loop import *
from megatron_monitor.parsers.events.reports import *
from megatron_monitor.parsers.events.setup import *

EVENT_TYPES: dict[str, type[Event]] = {
    str(cls.__struct_config__.tag): cls
    for cls in list(globals().values())
    if isinstance(cls, type) and issubclass(cls, Event) and cls.__struct_config__.tag != cls.__name__
}
"""Public name -> class: those that have one as their tag."""
for kind, event_type in EVENT_TYPES.items():
    event_type.kind = kind


def to_fields(event: Event) -> dict[str, Any]:
    """The event as plain data, absent values and empty collections left out, for `parse --json`."""
    values = {name: getattr(event, name) for name in event.__struct_fields__}
    return {"event": event.kind} | {name: value for name, value in values.items() if value not in (None, {}, "")}
