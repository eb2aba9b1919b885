"""The last lines of a log, and the lines around the one that an incident refers to, in bounded memory. Pure."""

import re
from typing import Any, Final

from msgspec import Struct

from megatron_monitor.parsers.redaction import MASK, masked

LINES: Final = 100
"""Lines of a stream that people are shown."""
BEFORE: Final = 60
AFTER: Final = 40
"""Lines that are shown before and after the line that an incident refers to."""
LONGEST: Final = 32_768
"""Bytes that are kept of a stream: 100 of Megatron's iteration lines."""
BUDGET: Final = 32 << 20
"""Bytes that all streams share: with more than 1,000 of them each keeps less."""
_LONGEST_LINE: Final = 1_000  # characters of a line that are shown
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_NAME: Final = r"[\w-]*(?:token|jwt|secret|passwo?r?d|api_?key|access_?key)['\"]?"
_SECRET: Final = re.compile(
    rf"(?i)(?P<head>{_NAME}(?:\s?[=:]\s?|\s\.{{2,400}}\s)['\"]?)(?=[^\s'\"]{{0,200}}[a-z])[^\s'\",]{{6,}}"
)
"""The name of a secret, and its value. What is shown may lose more than what a rule reads."""
_KEY: Final = re.compile("-----(BEGIN|END) [A-Z ]*PRIVATE KEY-----")
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class Excerpt:
    """The lines around the one that an incident refers to; those behind it are added as they are written."""

    def __init__(self, stream: str, before: bytes, line: str) -> None:
        """`before`: what the stream held when the incident opened; `line`: the text that the incident quotes."""
        self.stream, self._line = stream, line
        self._bytes, self._opened = before, len(before)

    @property
    def is_full(self) -> bool:
        """All that is shown behind the line has been written."""
        behind = len(self._bytes) - self._opened
        return behind >= LONGEST or self._bytes.count(b"\n", self._opened) > AFTER

    def add(self, data: bytes) -> None:
        """More of the stream."""
        self._bytes += data[:LONGEST]

    def to_json(self) -> dict[str, Any]:
        """`lines`, of which the one at index `marked` is the one that the incident refers to."""
        before = lines_of(self._bytes[: self._opened])
        found = (at for at in reversed(range(len(before))) if self._line and self._line in before[at])
        marked = next(found, max(0, len(before) - 1))
        lines, first = lines_of(self._bytes), max(0, marked - BEFORE)
        return {"stream": self.stream, "lines": lines[first : marked + AFTER + 1], "marked": marked - first}


class LogTail(Struct):
    """The last bytes of one stream. Excerpts that are not full grow with it."""

    data: bytes = b""
    excerpts: tuple[Excerpt, ...] = ()

    def add(self, data: bytes, limit: int = LONGEST) -> None:
        """The next bytes of the stream; `limit` of the last ones are kept."""
        kept = data if len(data) >= limit else self.data + data
        if len(kept) > limit:  # a line that is cut may have lost the name of a secret
            kept = kept[-limit:]
            kept = kept[kept.find(b"\n") + 1 :]
        self.data = kept
        if self.excerpts:
            for excerpt in self.excerpts:
                excerpt.add(data)
            self.excerpts = tuple(excerpt for excerpt in self.excerpts if not excerpt.is_full)

    def excerpt(self, stream: str, line: str) -> Excerpt:
        """The lines around `line`, from now on."""
        made = Excerpt(stream, self.data, line)
        self.excerpts = (*self.excerpts, made)
        return made

    def holds(self, line: str) -> bool:
        """Is that text among the last lines?"""
        return line.encode("utf-8", "replace") in self.data

    def lines(self) -> list[str]:
        """The last lines, at most `LINES`."""
        return lines_of(self.data)[-LINES:]


def limit_of(streams: int) -> int:
    """Bytes that each of so many streams may keep."""
    return min(LONGEST, BUDGET // max(1, streams))


def lines_of(data: bytes) -> list[str]:
    """Lines as a terminal would show them: of a bar that is redrawn its last state, without colours and control
    characters, secrets masked.
    """
    shown: list[str] = []
    in_key = False
    for line in data.decode("utf-8", "replace").removesuffix("\n").split("\n"):
        frame = next((part for part in reversed(line.split("\r")) if part), "")
        text = _CONTROL.sub("\ufffd", _COLOUR.sub("", frame))
        mark = _KEY.search(text)
        in_key = mark[1] == "BEGIN" if mark else in_key
        text = MASK if in_key and not mark else masked(text[:_LONGEST_LINE])
        shown.append(_SECRET.sub(lambda found: found["head"] + MASK, text))
    return shown if data else []
