"""What every event has, and where it stood."""

import re
from typing import ClassVar

import msgspec

from megatron_monitor.parsers.redaction import masked
from megatron_monitor.parsers.wrappers import bare

ANSI = re.compile(r"\x1b(?:\[[0-9;:?]*[A-Za-z]|[()][0-9A-Z]|\][^\x07\x1b]{0,2000}(?:\x07|\x1b\\))")
"""Colours, character sets, links and titles of a terminal."""
MAX_TEXT = 2000
"""Characters of a line that are kept as evidence."""


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag_field="event"):
    """One fact. `rank` is global where the log tells it; `logged_at` is ISO 8601 as printed, zone only if printed."""

    kind: ClassVar[str] = ""
    """Its public name, the class's tag (parsers/events/__init__.py)."""
    proves_training: ClassVar[bool] = True
    redrawn: ClassVar[bool] = False
    """True where the same line once more says nothing new: who judges does not read it again."""

    rank: int | None = None
    node: str | None = None
    logged_at: str | None = None


class Remark(Event, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """What programs other than a training print too: alone it makes no run."""

    proves_training: ClassVar[bool] = False


class LogEvent(msgspec.Struct, gc=False):
    """An event and where it stood: physical line (counted by newlines, from 1), the rule that read it, the line."""

    line: int
    rule: str
    event: Event
    raw: bytes | str

    @property
    def text(self) -> str:
        """The line as a person reads it."""
        return text_of(self.raw)


_CONTROLS = dict.fromkeys({*range(32), 127} - set(b"\t\n\r"))  # no page may hold them, and a terminal would obey


def text_of(raw: bytes | str) -> str:
    """A line without terminal colours and control characters, its carrier's words, secrets and the blanks around it, at
    most MAX_TEXT characters.
    """
    text = raw if isinstance(raw, str) else raw.decode("utf-8", "replace")
    if not text.isprintable():
        text = ANSI.sub("", text).translate(_CONTROLS)
    return masked(bare(text)).strip()[:MAX_TEXT]
