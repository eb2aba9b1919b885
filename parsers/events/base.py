"""The base class of events, and the text of their lines."""

import re
from typing import ClassVar

import msgspec

from megatron_monitor.parsers.redaction import masked
from megatron_monitor.parsers.wrappers import bare

ANSI = re.compile(r"\x1b(?:\[[0-9;:?]*[A-Za-z]|[()][0-9A-Z]|\][^\x07\x1b]{0,2000}(?:\x07|\x1b\\))")
"""Colours, character sets, links and titles of a terminal."""
MAX_TEXT = 2000
"""Maximum characters of a line that are kept as evidence."""


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag_field="event"):
    """One fact. `rank` is the global rank if the log prints it. `logged_at` is ISO 8601 as printed, with a zone only if
    printed.
    """

    kind: ClassVar[str] = ""
    """Its public name: the class's tag (parsers/events/__init__.py)."""
    proves_training: ClassVar[bool] = True
    redrawn: ClassVar[bool] = False
    """True if a repetition of the line adds nothing. A repetition is not read."""

    rank: int | None = None
    node: str | None = None
    logged_at: str | None = None


class Remark(Event, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """An event that other programs print as well. Alone it creates no run."""

    proves_training: ClassVar[bool] = False


_CONTROLS = dict.fromkeys({*range(32), 127} - set(b"\t\n\r"))  # neither XML nor a terminal may receive them


def text_of(raw: bytes | str) -> str:
    """Return a line without terminal colours, control characters, prefixes, secrets and surrounding blanks, at most
    MAX_TEXT characters.
    """
    text = raw if isinstance(raw, str) else raw.decode("utf-8", "replace")
    if not text.isprintable():
        text = ANSI.sub("", text).translate(_CONTROLS)
    return masked(bare(text)).strip()[:MAX_TEXT]
