"""One source: chunks of bytes in, `LogEvent`s out. Holds the little context that several-line facts need.

Law: any bytes in any chunking give the same events and never raise. `save()` and `restore()` carry the context
over a restart; it goes with the offset `consumed_bytes`, the end of the last complete line.

A block of whole lines is cut; of each line it is known by its shape (engine/memo.py) whether it is noise, which rules
to ask, or how to read it by slices (engine/spans.py). Rules are the reference: what these give, they would have given.
"""

import contextlib
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from megatron_monitor.parsers.engine.fields import rejected
from megatron_monitor.parsers.engine.lines import MAX_LINE_BYTES, Block, LineSplitter
from megatron_monitor.parsers.engine.memo import Known, Memo
from megatron_monitor.parsers.engine.prefixes import segments, strip_prefixes
from megatron_monitor.parsers.engine.scan import Gatherer, Line, Scanner
from megatron_monitor.parsers.engine.spans import Spanned
from megatron_monitor.parsers.events import ANSI, Event, LineDiscarded, LogEvent, Malformed, TrainerProgressed
from megatron_monitor.parsers.redaction import in_key, masked
from megatron_monitor.parsers.registry import GATHERERS, RULES
from megatron_monitor.parsers.wrappers import PARTIAL, Unwrapper

_MALFORMED = 500  # characters of a line that is reported as malformed
_KEY_LINES = 120  # of a private key of 16,384 bits
_BYTE_ORDER = (b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf")
"""What a file in UTF-16 or UTF-8 may begin with; the NULs of UTF-16 are dropped as those of holes are (lines.py)."""
_SHORT = 1000  # bytes of a line that is remembered
_Said: TypeAlias = tuple[str, Event | Spanned | Gatherer]
"""A rule and what it gave."""


@cache
def _default_memo() -> Memo:
    return Memo(Scanner(RULES))


class Bookmark(Struct, omit_defaults=True, gc=False):
    """Where a reader stands: everything that a resume there needs. Plain values."""

    offset: int
    """Of the end of the last complete line."""
    line: int
    """The number of the next physical line."""
    after_return: bool = False
    matched_lines: int = 0
    last_matched: int = 0
    key_lines: int = 0
    open: Sequence[tuple[str, dict[str, Any]]] = ()
    """Facts of several lines that are gathered: what gathers each, and its fields."""
    unwrapper: Unwrapper | None = None
    ordered: dict[str, Any] | None = None
    """Of whoever puts the lines in order before they are read."""

    @property
    def reported_nothing(self) -> bool:
        """Whether no line was of use before it, and none waits."""
        return not (self.matched_lines or self.open or self.ordered)


class SourceReader:
    """Reads one endless source."""

    def __init__(self, max_line_bytes: int = MAX_LINE_BYTES, memo: Memo | None = None) -> None:
        self._memo = memo or _default_memo()
        self._rules = self._memo.scanner.rules
        self._splitter = LineSplitter(max_line_bytes=max_line_bytes)
        self._open: list[tuple[str, Gatherer]] = []
        self.fed_bytes = 0
        self.matched_lines = 0
        """Physical lines that gave at least one event."""
        self._last_matched = 0
        self._redrawn = b"\n"  # no line
        self._unwrapper = Unwrapper()
        self._key_lines = 0  # that a private key which has begun may still have

    @property
    def lines(self) -> int:
        """Physical lines read to their end."""
        return self._splitter.line - 1

    @property
    def consumed_bytes(self) -> int:
        """Offset of the end of the last complete line: from here a resume reads on."""
        return self.fed_bytes - self._splitter.raw_pending

    def feed(self, chunk: bytes) -> list[LogEvent]:
        """Read the next bytes of the source."""
        self.fed_bytes += len(chunk)
        out: list[LogEvent] = []
        self._read(self._splitter.feed(chunk), out)
        return out

    def skip(self, count: int) -> None:
        """The source holds `count` bytes here that nobody needs to see (a hole)."""
        self.fed_bytes += count
        if self._splitter.raw_pending:
            self._splitter.raw_pending += count

    def flush(self) -> list[LogEvent]:
        """The source has ended: its last line counts although it has no end, and open facts are closed."""
        out: list[LogEvent] = []
        self._read(self._splitter.flush(), out)
        self._read([Block(line + b"\n", self.lines) for line in self._unwrapper.rest()], out)
        for name, gatherer in self._open:
            out.extend(LogEvent(self._splitter.line, name, event, gatherer.shown) for event in gatherer.close())
        self._open = []
        return out

    @property
    def holds_back(self) -> bool:
        """Whether a fact of several lines is gathered, or a bar drawn, that would be told if nothing more came."""
        return self._splitter.pending.endswith(b"]") or any(gatherer.settles for _, gatherer in self._open)

    @property
    def reported_nothing(self) -> bool:
        """Whether no line was of use so far, and none is open."""
        return not (self.matched_lines or self._open or self._splitter.raw_pending)

    def settle(self) -> list[LogEvent]:
        """Nothing has followed for a while: what stands complete at the end of the last whole line is told, and a bar
        that was drawn behind it: its line ends when it is drawn again, or when another program writes, and it is told
        once more. Risk left: a buffer that was let go at a line's end within a block; what follows of that is lost.
        """
        out: list[LogEvent] = []
        if self._splitter.raw_pending:
            drawn = SourceReader(memo=self._memo).feed(self._splitter.pending + b"\n")
            out = [entry for entry in drawn if isinstance(entry.event, TrainerProgressed)]
        else:
            kept = []
            for name, gatherer in self._open:
                events = gatherer.close() if gatherer.settles else []
                out.extend(LogEvent(self.lines, name, event, gatherer.shown) for event in events)
                if not events:
                    kept.append((name, gatherer))
            self._open = kept
        return out

    def save(self) -> Bookmark:
        """Everything a resume at `consumed_bytes` needs."""
        return Bookmark(
            self.consumed_bytes,
            self._splitter.line,
            after_return=self._splitter.after_return,
            matched_lines=self.matched_lines,
            last_matched=self._last_matched,
            key_lines=self._key_lines,
            open=tuple([(name, msgspec.to_builtins(gatherer)) for name, gatherer in self._open]),
            unwrapper=self._unwrapper.save(),
        )

    def restore(self, saved: Bookmark) -> None:
        """Go on where `save` was called. A gatherer that this version does not know is let go."""
        self.fed_bytes = saved.offset
        self._splitter = LineSplitter(saved.line, self._splitter.max_line_bytes)
        self._splitter.after_return = saved.after_return
        self.matched_lines, self._last_matched = saved.matched_lines, saved.last_matched
        self._unwrapper, self._key_lines = saved.unwrapper or Unwrapper(), saved.key_lines
        self._open = []
        for name, known in saved.open:
            if name in GATHERERS:
                with contextlib.suppress(TypeError):  # its fields were others then
                    self._open.append((name, GATHERERS[name](**known)))

    def _read(self, parts: Sequence[Any], out: list[LogEvent]) -> None:
        for part in parts:
            if isinstance(part, Block):
                self._read_block(part, out)
            else:
                out.append(LogEvent(part.line, "line_too_long", LineDiscarded(bytes=part.bytes), ""))

    def _read_block(self, block: Block, out: list[LogEvent]) -> None:
        """Its events into `out`."""
        data, numbers = block.data, list[int]()
        if block.first_line == 1 and data.startswith(_BYTE_ORDER):
            data = data.lstrip(b"\xff\xfe\xef\xbb\xbf")
        if b"\r" in data:
            # `\r\n` is one line end, and so is a bare `\r`; lines are numbered by `\n` alone, as editors do
            physical = data.replace(b"\r\n", b"\n").split(b"\n")
            for number, several in enumerate(physical, block.first_line):
                numbers += [number] * (several.count(b"\r") + 1)
            data = b"\n".join(physical).replace(b"\r", b"\n")
        lines = data.split(b"\n")
        lines.pop()  # the data ends in a line end
        numbers = numbers or list(range(block.first_line, block.first_line + len(lines)))
        if self._unwrapper.parts or _carries(data):
            lines, numbers = self._unwrapped(lines, numbers)
            data = b"\n".join(lines)
        known = self._memo.known(data)
        place, count = 0, len(lines)
        while place < count:
            if self._open:  # every line is asked for
                self._read_line(lines[place], numbers[place], known[place], out, learns=False)
                place += 1
                continue
            for index in range(place, count):
                entry = known[index]
                if entry is None:
                    continue
                raw = lines[index]
                if raw == self._redrawn:
                    continue
                layout = entry.layout
                if layout is None and (entry.answer is not None or not entry.tries):
                    layout = self._memo.layout(entry)
                if layout is not None:
                    answer = layout.read(raw)
                    if answer is not None:
                        line = numbers[index]
                        if layout.redrawn:
                            self._redrawn = raw
                        for rule, event in answer:
                            out.append(LogEvent(line, rule, event, raw))
                        if answer and line != self._last_matched:
                            self.matched_lines += 1
                            self._last_matched = line
                        continue
                self._read_line(raw, numbers[index], entry, out)
                if self._open:
                    break
            place = index + 1

    def _unwrapped(self, lines: Sequence[bytes], numbers: Sequence[int]) -> tuple[list[bytes], list[int]]:
        """The lines in place of the JSON that carries them and of the parts of them, and the physical line of each."""
        longest, read = self._splitter.max_line_bytes, self._unwrapper.read
        found: list[bytes] = []
        places: list[int] = []
        for line, number in zip(lines, numbers, strict=False):
            inner = read(line, longest, number)
            found += [line] if inner is None else inner
            places += [number] * (len(found) - len(places))
        return found, places

    def _read_line(self, raw: bytes, number: int, shape: Known, out: list[LogEvent], *, learns: bool = True) -> None:
        """Each part of the line goes to the open gatherers and then to the rules. `learns`: so that further lines of
        the shape need none of that.
        """
        if self._key_lines or b"PRIVATE KEY" in raw:
            raw, learns = self._without_key(raw), False
        found: list[LogEvent] = []
        rules = shape.rules if shape else ()
        parts = _segments(raw)
        for segment, line in parts:
            shown = segment or raw
            if self._offered(line, number, shown, found):
                continue
            items, asked = self._read_by_rules(line, rules)
            if shape and learns and len(parts) == 1 and not self._open and (not items or shown is raw):
                self._memo.learn(shape, raw, asked, items)
            self._take(items, number, shown, found)
        used = self._memo.used
        if used is not None:
            found = [entry for entry in found if used(entry.event)]
            if found and all(entry.event.redrawn for entry in found):
                self._redrawn = raw
        if found and number != self._last_matched:
            self.matched_lines += 1
            self._last_matched = number
        out += found

    def _without_key(self, raw: bytes) -> bytes:
        """A line of a private key, or one between its lines, without what is secret of it."""
        inner = self._key_lines > 0
        self._key_lines -= inner
        if b"PRIVATE KEY" in raw:
            self._key_lines = 0 if b"-----END " in raw else _KEY_LINES
        return in_key(raw) if inner else raw

    def _read_by_rules(self, line: Line, rules: tuple[int, ...]) -> tuple[list[_Said], int]:
        """What the first rule that answers says, and how many were asked. A number in it that is none (fields.py) makes
        it malformed too.
        """
        malformed, asked = "", 0
        items: list[_Said] = []
        for asked, index in enumerate(rules, 1):  # noqa: B007
            rule = self._rules[index]
            before = rejected()
            items = [(rule.name, self._reduced(item)) for item in rule.read(line)]
            if rejected() != before:
                malformed = malformed or rule.name
            if items:
                break
        if malformed:
            items.append((malformed, Malformed(rule=malformed, text=line.text[:_MALFORMED], **line.origin)))
        return items, asked

    def _reduced(self, item: Event | Spanned | Gatherer) -> Event | Spanned | Gatherer:
        """Without the fields that nobody reads."""
        if isinstance(item, Spanned):
            for name in self._memo.unread.get(item.make, ()):
                item.values.pop(name, None)
        return item

    def _offered(self, line: Line, number: int, shown: bytes | str, out: list[LogEvent]) -> bool:
        """Offer the line to what is open; whether it was taken."""
        for place in reversed(range(len(self._open))):  # the one that was opened last is nearest
            name, gatherer = self._open[place]
            events, taken, done = gatherer.offer(line)
            out.extend(LogEvent(number, name, event, gatherer.shown or shown) for event in events)
            if done:
                del self._open[place]
            if taken:
                return True
        return False

    def _take(
        self,
        items: Sequence[_Said],
        number: int,
        shown: bytes | str,
        out: list[LogEvent],
    ) -> None:
        """What the rules gave: events into `out`, gatherers are opened."""
        for name, item in items:
            if isinstance(item, Gatherer):
                self._open.append((name, item))
            else:
                events = item.events() if isinstance(item, Spanned) else [item]
                out.extend(LogEvent(number, name, event, shown) for event in events)


def _carries(data: bytes) -> bool:
    """Whether lines carry others, or parts of them."""
    if data.startswith(b'{"') or b'\n{"' in data:
        return True
    return b" P " in data and any(mark in data for mark in PARTIAL)  # what all of these hold is found in half the time


def _segments(raw: bytes) -> tuple[tuple[str, Line], ...]:
    """Each writer's part of a physical line, as it stands but for secrets (empty where that is the line itself), and
    with the prefixes off. Every rank prints the same traceback, so short lines are remembered.
    """
    return _short_segments(raw) if len(raw) <= _SHORT else _short_segments.__wrapped__(raw)


@lru_cache(maxsize=512)
def _short_segments(raw: bytes) -> tuple[tuple[str, Line], ...]:
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
