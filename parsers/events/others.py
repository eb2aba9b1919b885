"""A site's own lines, and lines that did not parse."""

from typing import ClassVar

from parsers.events.base import Event


class CustomValueLogged(Event, frozen=True, kw_only=True, gc=False):
    kind: ClassVar[str] = "custom_value"
    proves_training: ClassVar[bool] = False

    name: str
    value: float


class CustomProgressLogged(Event, frozen=True, kw_only=True, gc=False):
    kind: ClassVar[str] = "custom_progress"
    proves_training: ClassVar[bool] = False

    name: str


class Malformed(Event, frozen=True, kw_only=True, gc=False):
    """A line that begins like a known one and does not parse: how we learn that upstream changed its format."""

    kind: ClassVar[str] = "malformed"
    proves_training: ClassVar[bool] = False

    rule: str
    text: str


class LineDiscarded(Event, frozen=True, kw_only=True, gc=False):
    """A line longer than the bound was thrown away up to its end."""

    kind: ClassVar[str] = "line_discarded"
    proves_training: ClassVar[bool] = False

    bytes: int
