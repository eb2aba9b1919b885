"""Reads one stream: chunks of bytes in, `LogEvent`s out.

Guarantee: the same bytes give the same events however they are cut into chunks, and no bytes raise an error. `save()`
and `restore()` carry unfinished facts over a restart. They belong to the offset `consumed_bytes`, the end of the last
complete line.

The reader cuts a block of whole lines. The shape of each line (engine/memo.py) tells whether the line is noise, which
rules to ask, or how to read it by slices (engine/spans.py). Slices give the same events as the rules.
"""

import contextlib
from collections.abc import Sequence
from copy import deepcopy
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import Struct

from megatron_monitor.parsers.engine.lines import MAX_LINE_BYTES, LineSplitter, Part
from megatron_monitor.parsers.engine.memo import Known, Memo
from megatron_monitor.parsers.engine.prefixes import segments, strip_prefixes
from megatron_monitor.parsers.engine.scan import Gatherer, Line
from megatron_monitor.parsers.engine.spans import events_of
from megatron_monitor.parsers.events import ANSI, LineDiscarded, LogEvent, TrainerProgressed
from megatron_monitor.parsers.inferred import InferredSteps
from megatron_monitor.parsers.redaction import in_key, masked
from megatron_monitor.parsers.registry import RULES
from megatron_monitor.parsers.wrappers import Unwrapper

_KEY_LINES = 120  # lines of a private key of 16,384 bits
_BYTE_ORDER = (b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf")
"""Byte order marks of UTF-16 and UTF-8. The NULs of UTF-16 are dropped like those of holes (lines.py)."""
_MAX_REMEMBERED = 1000  # maximum bytes of a line that is remembered
_LINE = attrgetter("line")


@cache
def _default_memo() -> Memo:
    return Memo(RULES)


class Bookmark(Struct, omit_defaults=True, gc=False):
    """Where a reader is in its stream: everything that a resume needs, as plain values."""

    offset: int
    """Offset of the end of the last complete line."""
    line: int
    """Number of the next physical line."""
    after_return: bool = False
    matched_lines: int = 0
    last_matched: int = 0
    key_lines: int = 0
    open: Sequence[tuple[str, dict[str, Any]]] = ()
    """Unfinished facts of several lines: the gatherer's name and its fields."""
    unwrapper: Unwrapper | None = None
    inferred: InferredSteps | None = None
    ordered: dict[str, Any] | None = None
    """State of the component that orders the lines before they are read."""

    @property
    def reported_nothing(self) -> bool:
        """True if no line before it gave an event and no fact is unfinished."""
        return not (self.matched_lines or self.open or self.ordered)


class SourceReader:
    """Reads one stream, which may never end."""

    def __init__(self, max_line_bytes: int = MAX_LINE_BYTES, memo: Memo | None = None) -> None:
        self._memo = memo or _default_memo()
        self._splitter = LineSplitter(max_line_bytes=max_line_bytes)
        self._open: list[tuple[str, Gatherer]] = []
        self.fed_bytes = 0
        self.matched_lines = 0
        """Physical lines that gave at least one event."""
        self._last_matched = 0
        self._redrawn = b"\n"  # not a line
        self._unwrapper = Unwrapper()
        self._key_lines = 0  # lines that the current private key may still have
        self._inferred = InferredSteps()

    @property
    def lines(self) -> int:
        """Complete physical lines that were read."""
        return self._splitter.line - 1

    @property
    def consumed_bytes(self) -> int:
        """Offset of the end of the last complete line, where a resume starts."""
        return self.fed_bytes - self._splitter.raw_pending

    def feed(self, chunk: bytes) -> list[LogEvent]:
        """Read the next bytes of the stream."""
        self.fed_bytes += len(chunk)
        found = self._read(self._splitter.feed(chunk))
        return found if self._inferred.off else self._inferred.read(found)

    def skip(self, count: int) -> None:
        """Pass over a hole of `count` bytes in the stream."""
        self.fed_bytes += count
        if self._splitter.raw_pending:
            self._splitter.raw_pending += count

    def flush(self) -> list[LogEvent]:
        """Read the unfinished last line and close unfinished facts: the stream has ended."""
        found = self._read(self._splitter.flush())
        found += self._read([(self.lines, line + b"\n") for line in self._unwrapper.rest()])
        return self._inferred.read(found + self._closed(self._splitter.line, ended=True))

    @property
    def holds_back(self) -> bool:
        """Return True if an unfinished fact or a drawn bar would give an event if nothing more came."""
        if self._open and any(gatherer.settles for _, gatherer in self._open):
            return True
        return self._splitter.pending.endswith(b"]")

    @property
    def reported_nothing(self) -> bool:
        """Return True if no line gave an event so far and no fact is unfinished."""
        return not (self.matched_lines or self._open or self._splitter.raw_pending)

    def settle(self) -> list[LogEvent]:
        """Return the events of complete facts and of a drawn bar after a silence. A bar's line ends when it is drawn
        again or when another program writes, and then gives its event once more. Known limit: if a buffer was flushed
        at a line end within a block, the rest of that block is lost.
        """
        if not self._splitter.raw_pending:
            return self._closed(self.lines, ended=False)
        drawn = SourceReader(memo=self._memo).feed(self._splitter.pending + b"\n")
        return [entry for entry in drawn if isinstance(entry.event, TrainerProgressed)]

    def _closed(self, number: int, *, ended: bool) -> list[LogEvent]:
        """Close the unfinished facts, or those that are complete, and return their events."""
        found, kept = list[LogEvent](), []
        for name, gatherer in self._open:
            events = gatherer.close() if ended or gatherer.settles else []
            found += [LogEvent(number, name, event, gatherer.shown) for event in events]
            if not (events or ended):
                kept.append((name, gatherer))
        self._open = kept
        return found

    def save(self) -> Bookmark:
        """Return everything that a resume at `consumed_bytes` needs."""
        return Bookmark(
            self.consumed_bytes,
            self._splitter.line,
            after_return=self._splitter.after_return,
            matched_lines=self.matched_lines,
            last_matched=self._last_matched,
            key_lines=self._key_lines,
            open=tuple([(name, msgspec.to_builtins(gatherer)) for name, gatherer in self._open]),
            unwrapper=self._unwrapper.save(),
            inferred=deepcopy(self._inferred),
        )

    def restore(self, saved: Bookmark) -> None:
        """Continue where `save` was called. Gatherers that this version does not know are dropped."""
        self.fed_bytes = saved.offset
        self._splitter = LineSplitter(saved.line, self._splitter.max_line_bytes)
        self._splitter.after_return = saved.after_return
        self.matched_lines, self._last_matched = saved.matched_lines, saved.last_matched
        self._unwrapper, self._key_lines = saved.unwrapper or Unwrapper(), saved.key_lines
        self._inferred = deepcopy(saved.inferred) or InferredSteps()
        self._open = []
        for name, known in saved.open:
            for opens in (rule.opens for rule in self._memo.rules if rule.name == name and rule.opens is not None):
                with contextlib.suppress(TypeError):  # another version had other fields
                    if (gatherer := opens(**known)).is_own:
                        self._open.append((name, gatherer))

    def _read(self, parts: Sequence[Part]) -> list[LogEvent]:
        found: list[LogEvent] = []
        for first, data in parts:
            if isinstance(data, int):
                found.append(LogEvent(first, "line_too_long", LineDiscarded(bytes=data), ""))
                continue
            entries = self._read_block(data, first)
            if entries:
                matched = set(map(_LINE, entries))
                self.matched_lines += len(matched - {self._last_matched})
                self._last_matched = max(matched)
                found += entries
        return found

    def _read_block(self, data: bytes, first: int) -> list[LogEvent]:
        """Return the events of whole lines. `first` is the number of the first line."""
        if first == 1 and data.startswith(_BYTE_ORDER):
            data = data.lstrip(b"\xff\xfe\xef\xbb\xbf")
        lines = data.split(b"\n")
        numbers: Sequence[int] = range(first, first + len(lines))
        if b"\r" in data:
            several = [line.count(b"\r") + (not line.endswith(b"\r")) for line in lines]
            numbers = [number for number, count in zip(numbers, several, strict=True) for _ in range(count)]
            lines = data.splitlines()  # a line end is `\n`, `\r\n` or a bare `\r`
            data = b"\n".join(lines)
        else:
            lines.pop()  # the data ends in a line end
        known, carries = self._memo.known(data)
        if self._unwrapper.parts or carries:
            lines, numbers = self._unwrapped(lines, numbers)
            known, _ = self._memo.known(b"\n".join(lines))
        out: list[LogEvent] = []
        for raw, number, shape in zip(lines, numbers, known, strict=False):
            if self._open:  # an open gatherer is offered every line
                self._read_line(raw, number, shape, out)
            elif shape is not None and raw != self._redrawn:
                layout = shape.layout or self._memo.layout(shape)
                found = layout.read(raw, number)
                if found is None:
                    self._read_line(raw, number, shape, out)
                else:
                    if layout.redrawn:
                        self._redrawn = raw
                    out += found
        return out

    def _unwrapped(self, lines: Sequence[bytes], numbers: Sequence[int]) -> tuple[list[bytes], Sequence[int]]:
        """Return the lines without the JSON or record marks that carry them, and the number of the physical line of
        each.
        """
        longest, read = self._splitter.max_line_bytes, self._unwrapper.read
        found: list[bytes] = []
        places: list[int] = []
        for line, number in zip(lines, numbers, strict=False):
            inner = read(line, longest, number)
            found += [line] if inner is None else inner
            places += [number] * (len(found) - len(places))
        return found, places

    def _read_line(self, raw: bytes, number: int, shape: Known, out: list[LogEvent]) -> None:
        """Offer each part of the line to the open gatherers and then to the rules until one has an answer, and remember
        it for the shape.
        """
        secret = self._key_lines > 0 or b"PRIVATE KEY" in raw
        if secret:
            raw = self._without_key(raw)
        found: list[LogEvent] = []
        parts = _segments(raw) if len(raw) <= _MAX_REMEMBERED else _segments.__wrapped__(raw)
        for segment, line in parts:
            shown = segment or raw
            if self._offered(line, number, shown, found):
                continue
            said, asked, name = list[Any](), 0, ""
            for asked, rule in enumerate(shape.rules if shape else (), 1):  # noqa: B007
                name, said = rule.name, list(rule.read(line))
                if said:
                    break
            if shape and not secret and len(parts) == 1 and (not said or shown is raw):
                self._memo.learn(shape, raw, asked, said)
            for item in said:
                if isinstance(item, Gatherer):
                    self._open.append((name, item))
                else:
                    found += [LogEvent(number, name, event, shown) for event in events_of(item)]
        used = self._memo.used
        if used is not None:
            found = [entry for entry in found if used(entry.event)]
            if found and all(entry.event.redrawn for entry in found):
                self._redrawn = raw
        out += found

    def _without_key(self, raw: bytes) -> bytes:
        """Return a line that belongs to a private key with the key masked."""
        inner = self._key_lines > 0
        self._key_lines -= inner
        if b"PRIVATE KEY" in raw:
            self._key_lines = 0 if b"-----END " in raw else _KEY_LINES
        return in_key(raw) if inner else raw

    def _offered(self, line: Line, number: int, shown: bytes | str, out: list[LogEvent]) -> bool:
        """Return True if an open gatherer took the line."""
        for place in reversed(range(len(self._open))):  # the last one opened comes first
            name, gatherer = self._open[place]
            events, taken, done = gatherer.offer(line)
            out.extend(LogEvent(number, name, event, gatherer.shown or shown) for event in events)
            if done:
                del self._open[place]
            if taken:
                return True
        return False


@lru_cache(maxsize=512)  # every rank prints the same traceback
def _segments(raw: bytes) -> tuple[tuple[str, Line], ...]:
    """Return the part of each writer in a physical line, secrets masked (empty if there are none), and the same without
    prefixes.
    """
    text = raw.decode("utf-8", "replace")
    if "\x1b" in text:
        text = ANSI.sub("", text)
    kept = masked(text)
    parts = segments(kept)
    as_it_stands = len(parts) == 1 and kept is text
    stripped = ((segment, *strip_prefixes(segment)) for segment in parts)
    return tuple(
        ("" if as_it_stands else segment, Line(rest, prefix, len(segment) - len(rest)))
        for segment, prefix, rest in stripped
    )
