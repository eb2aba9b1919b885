"""The last lines of a log, and the lines around an incident, in bounded memory. Pure."""

import re
from typing import Any, Final

from msgspec import Struct

from megatron_monitor.parsers.redaction import MASK, masked

MAX_LINES: Final = 100
"""Lines of a stream that are shown."""
LINES_BEFORE: Final = 60
LINES_AFTER: Final = 40
"""Lines that are shown before and after the line that an incident quotes."""
MAX_STREAM_BYTES: Final = 32_768
"""Bytes that are kept of a stream: 100 of Megatron's iteration lines."""
MAX_TOTAL_BYTES: Final = 32 << 20
"""Bytes that are kept of all streams: with more than 1,000 of them each keeps less."""
_MAX_LINE_CHARACTERS: Final = 1_000
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_NAME: Final = r"[\w-]*(?:token|jwt|secret|passwo?r?d|api_?key|access_?key)['\"]?"
_SECRET: Final = re.compile(
    rf"(?i)(?P<head>{_NAME}(?:\s?[=:]\s?|\s\.{{2,400}}\s)['\"]?)(?=[^\s'\"]{{0,200}}[a-z])[^\s'\",]{{6,}}"
)
"""The name of a secret and its value. Text that is shown may lose more than text that a rule reads."""
_KEY: Final = re.compile("-----(BEGIN|END) [A-Z ]*PRIVATE KEY-----")
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class Excerpt:
    """The lines around the line that an incident quotes. Later lines are added as they are written."""

    def __init__(self, stream: str, before: bytes, line: str) -> None:
        """`before`: the stream's last bytes when the incident opened; `line`: the text that the incident quotes."""
        self.stream, self._line = stream, line
        self._bytes, self._opened = before, len(before)

    @property
    def is_full(self) -> bool:
        """True once all lines after the marked one were added."""
        added = len(self._bytes) - self._opened
        return added >= MAX_STREAM_BYTES or self._bytes.count(b"\n", self._opened) > LINES_AFTER

    def add(self, data: bytes) -> None:
        """Add the next bytes of the stream."""
        self._bytes += data[:MAX_STREAM_BYTES]

    def to_json(self) -> dict[str, Any]:
        """Return `lines`, and `marked`, the index of the line that the incident refers to."""
        before = lines_of(self._bytes[: self._opened])
        quoted = (at for at in reversed(range(len(before))) if self._line and self._line in before[at])
        marked = next(quoted, max(0, len(before) - 1))
        lines, first = lines_of(self._bytes), max(0, marked - LINES_BEFORE)
        return {"stream": self.stream, "lines": lines[first : marked + LINES_AFTER + 1], "marked": marked - first}


class LogTail(Struct):
    """The last bytes of one stream, and the excerpts that still grow with it."""

    data: bytes = b""
    excerpts: tuple[Excerpt, ...] = ()

    def add(self, data: bytes, limit: int = MAX_STREAM_BYTES) -> None:
        """Add the next bytes of the stream; the last `limit` bytes are kept."""
        kept = data if len(data) >= limit else self.data + data
        if len(kept) > limit:  # the first line is dropped: the cut may have removed the name of a secret
            kept = kept[-limit:]
            kept = kept[kept.find(b"\n") + 1 :]
        self.data = kept
        if self.excerpts:
            for excerpt in self.excerpts:
                excerpt.add(data)
            self.excerpts = tuple(excerpt for excerpt in self.excerpts if not excerpt.is_full)

    def excerpt(self, stream: str, line: str) -> Excerpt:
        """Begin an excerpt around `line`."""
        excerpt = Excerpt(stream, self.data, line)
        self.excerpts = (*self.excerpts, excerpt)
        return excerpt

    def holds(self, line: str) -> bool:
        """Return True if the last lines contain this text."""
        return line.encode("utf-8", "replace") in self.data

    def lines(self) -> list[str]:
        """Return the last lines, at most `MAX_LINES`."""
        return lines_of(self.data)[-MAX_LINES:]


def limit_of(streams: int) -> int:
    """Return the bytes that each of so many streams may keep."""
    return min(MAX_STREAM_BYTES, MAX_TOTAL_BYTES // max(1, streams))


def lines_of(data: bytes) -> list[str]:
    """Return the lines as a terminal shows them: the last state of a progress bar, without colours and control
    characters; secrets are masked.
    """
    shown: list[str] = []
    in_key = False
    for line in data.decode("utf-8", "replace").removesuffix("\n").split("\n"):
        frame = next((part for part in reversed(line.split("\r")) if part), "")
        text = _CONTROL.sub("\ufffd", _COLOUR.sub("", frame))
        mark = _KEY.search(text)
        in_key = mark[1] == "BEGIN" if mark else in_key
        text = MASK if in_key and not mark else masked(text[:_MAX_LINE_CHARACTERS])
        shown.append(_SECRET.sub(lambda match: match["head"] + MASK, text))
    return shown if data else []
