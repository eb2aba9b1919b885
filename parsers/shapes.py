"""Iteration lines that differ in their digits alone: read one with care, the next ones by its plan.

A line's shape is the line with every digit as `0`: lines of one shape have their numbers at the same places. A plan
cuts these places out, writes them into the JSON text of the event, and has msgspec read that: two calls a line. It is
used only after it gave the same event as the careful reading for the line itself and for two lines with other digits.
Whatever a plan cannot say (NaN, zeros in front, a number beyond its type) is read with care each time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import islice
from operator import itemgetter
from struct import Struct
from typing import Any, NamedTuple, TypeAlias

import msgspec

from parsers import argonne, megatron
from parsers.events import Event, IterationLogged
from parsers.fields import LEADING_NUMBER, integer, milliseconds, number, teraflops
from parsers.megatron import Span, duration, kept, ratio
from parsers.prefixes import NOT_HOSTS, iso_time, prefix_spans, segments
from parsers.scan import Candidates
from parsers.stretch import Field, Layout

Answer: TypeAlias = list[tuple[str, Event]]
"""(rule, event) of everything that a line says."""
_Cut: TypeAlias = tuple[int, int]

_SPANS = {"megatron.iteration": megatron.spans, "argonne.iteration": argonne.spans}
_SHAPE = bytes(48 if 48 <= code <= 57 else code for code in range(256))
_OTHER_DIGITS = [bytes.maketrans(b"0123456789", digits) for digits in (b"1234567891", b"3141592653")]
_HOST_SHAPES = {name.encode().translate(_SHAPE) for name in NOT_HOSTS}
_NEWLINE = 10
_MAX_SHAPES = 2000  # a run has some ten to a hundred, of 1 kB each
_MAX_BYTES = 4000  # the longest real iteration line has 700
_MAX_TEXT = 200  # of an unknown field's value
_JSON_NUMBER = re.compile(r"-?\d{1,17}(?:\.\d{1,17})?(?:[eE][-+]\d\d)?")
_SMALL = re.compile(r"\d{1,6}(?:\.\d{1,6})?")  # divided by 1000 and rounded to 12 places it is exactly the decimal
_SAFE = re.compile(r"[ !#-\[\]-~]*")  # stands in a JSON string as it is

_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[-+]\d\d:?\d\d)?")
_COMPACT_TIME = re.compile(r"\d{8} \d\d:\d\d:\d\d")
_HOMES = ("values", "losses", "extra")

_decode = msgspec.json.Decoder(IterationLogged).decode


class Gathered(NamedTuple):
    """Lines for a stretch: where each begins, its bytes, its plan."""

    starts: list[int]
    lines: list[bytes]
    plans: list[Plan]


class Plan(NamedTuple):
    """How to read the lines of one shape."""

    rule: str
    cut: Callable[[bytes], tuple[bytes, ...]]
    template: bytes
    layout: Layout | None
    """The same for many lines at once (stretch.py): the pieces that `unpack` cuts; None where their places overlap."""
    unpack: Callable[[bytes], tuple[bytes, ...]]

    def read(self, raw: bytes) -> IterationLogged | None:
        """The event of a line of this shape; None if the careful reading must be asked."""
        try:
            return _decode(self.template % self.cut(raw))
        except msgspec.DecodeError:  # a zero in front, or too large a number
            return None


class Shapes:
    """The plans known so far; None for a shape that has none. A memo: what it holds changes no result."""

    def __init__(self) -> None:
        self._plans: dict[bytes, Plan | None] = {}
        self._once: set[bytes] = set()

    def plan(self, raw: bytes) -> Plan | None:
        """The plan for a line, if its shape has one."""
        return self._plans.get(raw.translate(_SHAPE))

    def gather(self, candidates: Candidates, position: int) -> tuple[Gathered, int]:
        """Lines in a row, from the next candidate at or after `position` on, that have plans of one layout; and where
        the last of them ends. Lines that end in a bare return are none.
        """
        gathered = Gathered([], [], [])
        if candidates.has_cr:
            return gathered, position
        data, plan_of, shape = candidates.data, self._plans.get, _SHAPE
        find, rfind, size = data.find, data.rfind, len(data)
        starts, lines, plans = gathered
        layout: Layout | None = None
        plan: Any = None
        before, length, known = 0, size, b""  # of the last line: bytes before its hit, its length, its shape
        for place, _ in islice(candidates.hits, candidates.next, None):
            if place < position:
                continue
            start = place - before
            end = start + length
            # Most lines have the shape of the one before: then it is known where they begin and end.
            at_start = start == position or (start > position and data[start - 1] == _NEWLINE)
            if at_start and end < size and data[end] == _NEWLINE:
                line = data[start:end]
                if line.translate(shape) == known:
                    starts.append(start)
                    lines.append(line)
                    plans.append(plan)
                    position = end + 1
                    continue
            end = find(b"\n", place)
            if end < 0:
                end = size
            start = rfind(b"\n", position, place) + 1 or position
            line = data[start:end]
            new_shape = line.translate(shape)
            new = plan_of(new_shape)
            if new is None or new.layout is None or (new.layout is not layout and layout is not None):
                break
            plan, known, before, length, layout = new, new_shape, place - start, end - start, new.layout
            starts.append(start)
            lines.append(line)
            plans.append(plan)
            position = end + 1
        return gathered, position

    def learn(self, raw: bytes, answer: Answer, read: Callable[[bytes], Answer]) -> None:
        """`answer` is what the careful reading `read` gave for the line. The second line of a shape makes its plan."""
        if len(answer) != 1 or answer[0][0] not in _SPANS or len(raw) > _MAX_BYTES:
            return
        shape = raw.translate(_SHAPE)
        if shape in self._plans:
            return
        if shape not in self._once:
            if len(self._once) >= _MAX_SHAPES:
                self._once.clear()
            self._once.add(shape)
            return
        self._once.discard(shape)
        if len(self._plans) >= _MAX_SHAPES:
            self._plans.clear()
        self._plans[shape] = _proved(raw, answer, read)


def _proved(raw: bytes, answer: Answer, read: Callable[[bytes], Answer]) -> Plan | None:
    plan = _planned(raw, *answer[0])
    if plan is None or plan.read(raw) is None or not _agrees(plan, raw, answer):
        return None
    others = [raw.translate(digits) for digits in _OTHER_DIGITS]
    return plan if all(_agrees(plan, other, read(other)) for other in others) else None


def _agrees(plan: Plan, raw: bytes, answer: Answer) -> bool:
    event = plan.read(raw)
    if event is None:
        return True
    return [(plan.rule, repr(event))] == [(rule, repr(item)) for rule, item in answer]  # repr knows 1 from 1.0


def _planned(raw: bytes, rule: str, event: Event) -> Plan | None:
    if not isinstance(event, IterationLogged) or not raw.isascii() or b"\x1b" in raw:
        return None
    text = raw.decode()
    fields = _SPANS[rule](text)
    if fields is None or segments(text) != [text]:
        return None
    members: dict[str, list[str]] = {"values": [f'"dialect":{_quoted(event.dialect)}'], "losses": [], "extra": []}
    places: list[slice] = []
    spans: list[tuple[Span, list[str | _Cut]]] = []
    for span in sorted([*_origin(text), *fields], key=lambda span: _HOMES.index(span.home)):
        written = _written(span.convert, text[span.start : span.end])
        if written is None or any(map(str.isdigit, span.name)):  # a name that would change with the digits
            return None
        value = "".join(literal if isinstance(literal, str) else "%b" for literal in written)
        members[span.home].append(f"{_quoted(span.name)}:{value}")
        spans.append((span, written))
        cuts = [cut for cut in written if not isinstance(cut, str)]
        places.extend(slice(span.start + start, span.start + end) for start, end in cuts)
    whole = [*members["values"], *(f'"{home}":{{{",".join(members[home])}}}' for home in ("losses", "extra"))]
    template = ("{" + ",".join(whole) + "}").encode()
    return Plan(rule, itemgetter(*places), template, *_layout(rule, event.dialect, spans, len(raw)))


_layouts: dict[Layout, Layout] = {}
"""The same object for the same layout: compared with `is`. A run has one to three."""


def _layout(
    rule: str, dialect: str, spans: list[tuple[Span, list[str | _Cut]]], length: int
) -> tuple[Layout | None, Callable[[bytes], tuple[bytes, ...]]]:
    """How to cut a line of this shape into the pieces of its fields, from left to right."""
    fields: list[Field] = []
    cuts: list[_Cut] = []
    for span, written in sorted(spans, key=lambda item: item[0].start):
        literals, first = [b""], len(cuts)
        for part in written:
            if isinstance(part, str):
                literals[-1] += part.encode()
            else:
                cuts.append((span.start + part[0], span.start + part[1]))
                literals.append(b"")
        fields.append(Field(span.home, span.name, tuple(literals), first))
    form, place = "=", 0
    for start, end in cuts:
        if start < place:
            return None, lambda _: ()
        form += f"{start - place}x{end - start}s"
        place = end
    layout = Layout(rule, dialect, tuple(fields))
    if len(_layouts) >= _MAX_SHAPES:
        _layouts.clear()
    return _layouts.setdefault(layout, layout), Struct(f"{form}{length - place}x").unpack


def _quoted(text: str) -> str:
    return json.dumps(text).replace("%", "%%")


def _origin(text: str) -> list[Span]:
    """Where the prefixes tell rank, node and time."""
    told = prefix_spans(text)
    out = []
    if "time" in told:
        out.append(Span("values", "logged_at", iso_time, *told["time"]))
    rank = told.get("rank") or (told.get("task") if "local" not in told else None)
    if rank is not None:
        out.append(Span("values", "rank", int, *rank))
    if "host" in told:
        out.append(Span("values", "node", str, *told["host"]))
    return out


def _written(convert: Callable[[str], Any], sample: str) -> list[str | _Cut] | None:
    """How what `convert` gives for the sample stands in JSON: literal text and cuts of the sample."""
    if convert is iso_time:
        return _time(sample)
    if convert is str or (convert is kept and not _is_number(sample)):
        unsure = sample.encode().translate(_SHAPE) in _HOST_SHAPES or len(sample) > _MAX_TEXT
        return ['"', (0, len(sample)), '"'] if _SAFE.fullmatch(sample) and not unsure else None
    found = LEADING_NUMBER.match(sample)
    if found is None:
        return None
    cut, rest = found.span(1), sample[found.end() :]
    digits = found[1]
    if convert in (int, integer):
        return [cut] if digits.isdigit() and not rest and len(digits) <= 17 else None
    if not _JSON_NUMBER.fullmatch(digits):
        return None
    if (
        convert in (number, kept)
        or (convert is teraflops and rest == "TFLOPS")
        or (convert is duration and rest == " s")
    ):
        return [cut]
    if not _SMALL.fullmatch(digits):
        return None
    if convert is milliseconds or (convert is duration and rest == " ms"):
        return [cut, "e-3"]
    return [cut, "e-2"] if convert is ratio and rest == "%" else None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _time(sample: str) -> list[str | _Cut] | None:
    """As prefixes.iso_time writes it."""
    if _COMPACT_TIME.fullmatch(sample):
        return ['"', (0, 4), "-", (4, 6), "-", (6, 8), "T", (9, 17), '"']
    if not _TIME.fullmatch(sample):
        return None
    if len(sample) > 19 and sample[19] == ",":
        return ['"', (0, 10), "T", (11, 19), ".", (20, len(sample)), '"']
    return ['"', (0, 10), "T", (11, len(sample)), '"']
