"""Iteration lines that differ in their digits alone: read one with care, the next ones by its plan.

A line's shape is the line with every digit as `0`: lines of one shape have their numbers at the same places. A plan says
which slice is which field. It is made beside the careful reading, and used only after it gave the same event as that
reading for the line itself and for two lines with other digits. What a plan cannot say is read with care each time.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from parsers import argonne, megatron
from parsers.events import Event, IterationLogged
from parsers.fields import integer, milliseconds, number
from parsers.megatron import Span
from parsers.prefixes import host, iso_time, prefix_spans, segments

Answer: TypeAlias = list[tuple[str, Event]]
"""(rule, event) of everything that a line says."""
_FromBytes: TypeAlias = Callable[[bytes], Any]

_SPANS = {"megatron.iteration": megatron.spans, "argonne.iteration": argonne.spans}
_SHAPE = bytes(48 if 48 <= code <= 57 else code for code in range(256))
_OTHER_DIGITS = [bytes.maketrans(b"0123456789", digits) for digits in (b"1234567891", b"3141592653")]
_MAX_SHAPES = 2000  # a run has some ten to a hundred, of 1 kB each
_MAX_BYTES = 4000  # the longest real iteration line has 700
_MAX_DIGITS = 18  # more and `integer` may say that it is no number of a training


class Plan(NamedTuple):
    """How to read the lines of one shape: slices, converters and names in the order of the line."""

    rule: str
    cut: Callable[[bytes], tuple[bytes, ...]]
    convert: tuple[_FromBytes, ...]
    names: tuple[str, ...]
    homes: tuple[str, ...]
    """Empty if all are attributes of the event; else `values`, `losses` or `extra` for each."""
    dialect: str

    def read(self, raw: bytes) -> IterationLogged | None:
        """The event of a line of this shape; None if a value is none after all (an MFU of 35)."""
        values = [convert(text) for convert, text in zip(self.convert, self.cut(raw), strict=False)]
        if None in values:
            return None
        if not self.homes:
            return IterationLogged(dialect=self.dialect, **dict(zip(self.names, values, strict=False)))
        found: dict[str, dict[str, Any]] = {"values": {}, "losses": {}, "extra": {}}
        for home, name, value in zip(self.homes, self.names, values, strict=True):
            found[home][name] = value
        attributes = found.pop("values")
        return IterationLogged(dialect=self.dialect, **attributes, **found)


class Shapes:
    """The plans known so far; None for a shape that has none. A memo: what it holds changes no result."""

    def __init__(self) -> None:
        self._plans: dict[bytes, Plan | None] = {}
        self._once: set[bytes] = set()

    def plan(self, raw: bytes) -> Plan | None:
        """The plan for a line, if its shape has one."""
        return self._plans.get(raw.translate(_SHAPE))

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
    if plan is None or not _agrees(plan, raw, answer):
        return None
    others = [raw.translate(digits) for digits in _OTHER_DIGITS]
    return plan if all(_agrees(plan, other, read(other)) for other in others) else None


def _agrees(plan: Plan, raw: bytes, answer: Answer) -> bool:
    event = plan.read(raw)
    if event is None:  # then the careful reading is asked
        return True
    return [(plan.rule, repr(event))] == [(rule, repr(item)) for rule, item in answer]  # repr knows 1 from 1.0


def _planned(raw: bytes, rule: str, event: Event) -> Plan | None:
    if not isinstance(event, IterationLogged) or not raw.isascii() or b"\x1b" in raw:
        return None
    text = raw.decode()
    fields = _SPANS[rule](text)
    if fields is None or segments(text) != [text]:
        return None
    spans = sorted([*_origin(text), *fields], key=lambda span: span.start)
    if any(later.start < earlier.end for earlier, later in itertools.pairwise(spans)):
        return None
    if any(any(map(str.isdigit, span.name)) for span in spans):  # the name would change with the digits
        return None
    layout, place = "", 0
    for span in spans:
        layout += f"{span.start - place}x{span.end - span.start}s"
        place = span.end
    homes = tuple(span.home for span in spans)
    return Plan(
        rule=rule,
        cut=struct.Struct(f"={layout}{len(raw) - place}x").unpack,
        convert=tuple(_from_bytes(span.convert, text[span.start : span.end]) for span in spans),
        names=tuple(span.name for span in spans),
        homes=() if set(homes) == {"values"} else homes,
        dialect=event.dialect,
    )


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
        out.append(Span("values", "node", host, *told["host"]))
    return out


def _from_bytes(convert: Callable[[str], Any], sample: str) -> _FromBytes:
    """The converter for bytes of the sample's shape: the shortest way where it gives the same."""
    if convert is integer and sample.isdigit() and len(sample) <= _MAX_DIGITS:
        return int
    if convert in (number, milliseconds, megatron.kept):
        try:
            float(sample)
        except ValueError:
            pass
        else:
            return _milliseconds if convert is milliseconds else float
    return lambda raw: convert(raw.decode())


def _milliseconds(raw: bytes) -> float:
    return round(float(raw) / 1e3, 12)  # as fields.seconds does
