"""One source: chunks of bytes in, `LogEvent`s out. Holds the little context that several-line facts need.

Law: any bytes in any chunking give the same events and never raise. `save()` and `restore()` carry the context
over a restart; it goes with the offset `consumed_bytes`, the end of the last complete line.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from parsers.engine.lines import MAX_LINE_BYTES, Block, LineSplitter, line_end, next_line
from parsers.engine.plans import Plan
from parsers.engine.prefixes import ANSI, segments, strip_prefixes
from parsers.engine.scan import Candidates, Gatherer, Line, Rule, Scanner
from parsers.engine.shapes import Answer, Shapes
from parsers.events import Event, LineDiscarded, LogEvent
from parsers.formats.registry import GATHERERS, RULES

_FEW = 16  # lines that are read without a search for the known ones among them
MAX_TEXT = 2000  # characters of a line that an entry keeps

_DEFAULT_SCANNER = Scanner(RULES)
_DEFAULT_SHAPES = Shapes()  # a memo that all sources share: what one has learned, the others need not


class SourceReader:
    """Reads one endless source. `extra` are a site's own rules, asked last and of every line. `scanner` and `shapes`
    change how fast it goes and nothing else.
    """

    def __init__(
        self,
        extra: Sequence[Rule] = (),
        max_line_bytes: int = MAX_LINE_BYTES,
        scanner: Scanner | None = None,
        shapes: Shapes | None = None,
    ) -> None:
        self._scanner = scanner or _DEFAULT_SCANNER
        self._shapes = shapes if shapes is not None else _DEFAULT_SHAPES
        self._extra = tuple(extra)
        self._splitter = LineSplitter(max_line_bytes=max_line_bytes)
        self._open: list[tuple[str, Gatherer]] = []
        self.fed_bytes = 0
        self.matched_lines = 0
        """Physical lines that gave at least one event."""
        self._last_matched = 0

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
        if not self._read_known(chunk, out):
            self._read(self._splitter.feed(chunk), out)
        return out

    def _read_known(self, chunk: bytes, out: list[LogEvent]) -> bool:
        """Was it a whole line of a known shape, or a few? So a live run writes them, and they need no search."""
        if self._open or self._extra or not self._splitter.between_lines(chunk) or chunk.count(b"\n") > _FEW:
            return False
        number = self._splitter.line
        for raw in chunk[:-1].split(b"\n"):
            found = self._shapes.read(raw)
            if found is None:
                out.clear()
                return False
            out.append(LogEvent(number + len(out), *found, raw.decode().strip()[:MAX_TEXT]))
        self._splitter.pass_lines(len(out))
        self.matched_lines += len(out)
        self._last_matched = out[-1].line
        return True

    def skip(self, count: int) -> None:
        """The source holds `count` bytes here that nobody needs to see (a hole)."""
        self.fed_bytes += count
        if self._splitter.raw_pending:
            self._splitter.raw_pending += count

    def flush(self) -> list[LogEvent]:
        """The source has ended: its last line counts although it has no end, and open facts are closed."""
        out: list[LogEvent] = []
        self._read(self._splitter.flush(), out)
        for name, gatherer in self._open:
            out.extend(LogEvent(self._splitter.line, name, event, "") for event in gatherer.close())
        self._open = []
        return out

    def save(self) -> dict[str, Any]:
        """Everything a resume at `consumed_bytes` needs, as plain JSON values."""
        return {
            "offset": self.consumed_bytes,
            "line": self._splitter.line,
            "after_return": self._splitter.after_return,
            "matched_lines": self.matched_lines,
            "last_matched": self._last_matched,
            "open": [[name, dataclasses.asdict(gatherer)] for name, gatherer in self._open],  # type: ignore[call-overload]
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """Go on where `save` was called. A gatherer that this version does not know is let go."""
        self.fed_bytes = int(saved["offset"])
        self._splitter = LineSplitter(int(saved["line"]), self._splitter.max_line_bytes)
        self._splitter.after_return = bool(saved.get("after_return"))
        self.matched_lines = int(saved.get("matched_lines", 0))
        self._last_matched = int(saved.get("last_matched", 0))
        self._open = []
        for name, fields in saved.get("open", ()):
            if name in GATHERERS:
                with contextlib.suppress(TypeError):  # its fields were others then
                    self._open.append((name, GATHERERS[name](**fields)))

    def _read(self, parts: Sequence[Any], out: list[Any]) -> None:
        for part in parts:
            if isinstance(part, Block):
                self._splitter.counted(part, self._read_block(part, out))
            else:
                out.append(LogEvent(part.line, "line_too_long", LineDiscarded(bytes=part.bytes), ""))

    def _read_block(self, block: Block, out: list[Any]) -> int:
        """Its events into `out`; the number of its newlines."""
        data = block.data
        candidates = self._scanner.candidates(data)
        plan_for = self._shapes.plan
        position, counted, number = 0, 0, block.first_line
        while True:
            found = self._next_line(candidates, position)
            if found is None:
                return number - block.first_line + data.count(b"\n", counted)
            start, end, rules = found
            raw = data[start:end]
            plan = plan_for(raw) if rules and not (self._open or self._extra) else None
            number += data.count(b"\n", counted, start)
            counted = start
            self._read_one(raw, number, rules, plan, out)
            position = next_line(data, end)

    def _read_one(self, raw: bytes, number: int, rules: tuple[int, ...], plan: Plan | None, out: list[Any]) -> None:
        """A line's events, and whether it counts as a line that said something."""
        event = plan.read(raw) if plan is not None else None
        if plan is not None and event is not None:
            out.append(LogEvent(number, plan.rule, event, raw.decode().strip()[:MAX_TEXT]))
        elif not self._read_line(raw, number, rules, out):
            return
        if number != self._last_matched:
            self.matched_lines += 1
            self._last_matched = number

    def _next_line(self, candidates: Candidates, position: int) -> tuple[int, int, tuple[int, ...]] | None:
        if not (self._open or self._extra):
            return candidates.after(position)
        if position >= len(candidates.data):
            return None
        end = line_end(candidates.data, position, candidates.has_cr)
        return position, end, candidates.within(position, end)

    def _read_line(self, raw: bytes, number: int, rules: tuple[int, ...], out: list[LogEvent]) -> bool:
        """Whether the line gave an event."""
        before = len(out)
        learning = bool(rules) and not (self._open or self._extra)
        for segment, line in _segments(raw, number):
            text = segment.strip()[:MAX_TEXT]
            out.extend(LogEvent(number, rule, event, text) for rule, event in self._ask(line, rules))
        if learning and len(out) - before == 1:
            answer = [(entry.rule, entry.event) for entry in out[before:]]
            self._shapes.learn(raw, answer, lambda other: self._alone(other, rules))
        return len(out) > before

    def _alone(self, raw: bytes, rules: tuple[int, ...]) -> Answer:
        """What a line says by itself. Changes nothing."""
        found: Answer = []
        for _, line in _segments(raw, 0):
            for index in rules:
                rule = self._scanner.rules[index]
                items = list(rule.read(line))
                found.extend((rule.name, item) for item in items if isinstance(item, Event))
                if items:
                    break
        return found

    def _ask(self, line: Line, rules: tuple[int, ...]) -> list[tuple[str, Event]]:
        found: list[tuple[str, Event]] = []
        if self._open:
            taken, still_open = False, []
            for name, gatherer in self._open:
                events, took, done = ([], False, False) if taken else gatherer.offer(line)
                found.extend((name, event) for event in events)
                taken = taken or took
                if not done:
                    still_open.append((name, gatherer))
            self._open = still_open
            if taken:
                return found
        for index in rules:
            rule = self._scanner.rules[index]
            answered = False
            for item in rule.read(line):
                answered = True
                if isinstance(item, Event):
                    found.append((rule.name, item))
                else:
                    self._open.append((rule.name, item))
            if answered:
                break
        for rule in self._extra:
            found.extend((rule.name, item) for item in rule.read(line) if isinstance(item, Event))
        return found


def _segments(raw: bytes, number: int) -> Iterator[tuple[str, Line]]:
    """Each writer's part of a physical line, as it stands and with the prefixes off."""
    text = raw.decode("utf-8", "replace")
    if "\x1b" in text:
        text = ANSI.sub("", text)
    for segment in segments(text):
        prefix, rest = strip_prefixes(segment)
        yield segment, Line(rest, prefix, number)
