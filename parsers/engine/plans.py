"""A plan: how to read the lines of one shape without looking at anything but their numbers.

The speaker's spans (speakers.py) tell where a line's values stand. Their pieces are cut out and written into the JSON
text of the event, which msgspec reads: two calls a line. What JSON cannot say of a line makes no plan. Whether a plan
is right is not asked here: shapes.py compares it with the careful reading.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache, partial
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import msgspec

from parsers.engine.fields import (
    GIB,
    LEADING_NUMBER,
    MIB,
    Span,
    gibibytes,
    integer,
    mebibytes,
    milliseconds,
    milliseconds_range,
    number,
    teraflops,
)
from parsers.engine.prefixes import NOT_HOSTS, iso_time, prefix_spans, segments, strip_prefixes
from parsers.events import Event
from parsers.formats.megatron import duration, kept, ratio
from parsers.formats.registry import SPANS

SHAPE = bytes(48 if 48 <= code <= 57 else code for code in range(256))
"""Translates a line to its shape."""

_Work: TypeAlias = Callable[[bytes], bytes]
_TOLD = ("dialect", "speaker", "form", "occasion")  # attributes that an event may have without a place in the line
_HOST_SHAPES = {name.encode().translate(SHAPE) for name in NOT_HOSTS}
_MAX_TEXT = 200  # of an unknown field's value
_JSON_NUMBER = re.compile(r"-?\d{1,17}(?:\.\d{1,22})?(?:[eE][-+]\d\d)?")  # 0.00010000000000000002 is a rate
_SMALL = re.compile(r"\d{1,6}(?:\.\d{1,6})?")  # divided by 1000 and rounded to 12 places it is exactly the decimal
_SAFE = re.compile(r"[ !#-\[\]-~]*")  # stands in a JSON string as it is

_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[-+]\d\d:?\d\d)?")
_COMPACT_TIME = re.compile(r"\d{8} \d\d:\d\d:\d\d")


class Plan(NamedTuple):
    """How to read the lines of one shape."""

    rule: str
    cut: Callable[[bytes], tuple[bytes, ...]]
    template: bytes
    decode: Callable[[bytes], Any]
    works: tuple[tuple[int, _Work], ...]
    """Places of the pieces that are no JSON as they stand, and what makes JSON of each."""

    def read(self, raw: bytes) -> Any:
        """The event of a line of this shape; None if the careful reading must be asked."""
        pieces = self.cut(raw)
        if self.works:
            worked = list(pieces)
            for place, work in self.works:
                worked[place] = work(pieces[place])
            pieces = tuple(worked)
        try:
            return self.decode(self.template % pieces)
        except msgspec.DecodeError:  # a zero in front, or too large a number
            return None


class _Cut(NamedTuple):
    """A piece of a line. `work` makes JSON of it if it is none as it stands."""

    start: int
    end: int
    work: _Work | None = None


_Written: TypeAlias = list[str | _Cut]
"""How a value stands in JSON: literal text and pieces of the line."""


def planned(raw: bytes, rule: str, event: Event) -> Plan | None:
    """A plan for lines like this one, of which the careful reading gave `event` by `rule`; a guess."""
    text = raw.decode("utf-8", "replace")
    if not text.isascii() or "\x1b" in text or segments(text) != [text]:
        return None
    rest = strip_prefixes(text)[1]
    fields, before = SPANS[rule](rest), len(text) - len(rest)
    if fields is None:
        return None
    spans: dict[str, list[Span]] = {"values": _origin(text)}
    for span in fields:
        spans.setdefault(span.home, []).append(span._replace(start=span.start + before, end=span.end + before))
    members = _told(event, {span.name for span in spans["values"]})
    written: list[tuple[Span, _Written]] = []
    for home, group in spans.items():
        values: list[str] = []
        for span in group:
            parts = _written(span, text[span.start : span.end])
            if parts is None or any(map(str.isdigit, span.name)):  # a name that would change with the digits
                return None
            written.append((span, parts))
            values.append(f"{_quoted(span.name)}:" + "".join(p if isinstance(p, str) else "%b" for p in parts))
        members += values if home == "values" else [f'"{home}":{{{",".join(values)}}}']
    cuts = [part for _, parts in written for part in parts if isinstance(part, _Cut)]
    if len(cuts) < 2:  # itemgetter gives no tuple
        return None
    return Plan(
        rule,
        itemgetter(*(slice(cut.start, cut.end) for cut in cuts)),
        ("{" + ",".join(members) + "}").encode(),
        _decoder(type(event)),
        tuple((place, cut.work) for place, cut in enumerate(cuts) if cut.work is not None),
    )


@cache
def _decoder(kind: type[Event]) -> Callable[[bytes], Any]:
    return msgspec.json.Decoder(kind).decode


"""The same object for the same layout: compared with `is`. A run has one to three."""


def _quoted(text: str) -> str:
    return json.dumps(text).replace("%", "%%")


def _told(event: Event, placed: set[str]) -> list[str]:
    """What the event tells and the line does not spell."""
    told = ((name, getattr(event, name, None)) for name in _TOLD if name not in placed)
    return [f'"{name}":{_quoted(value)}' for name, value in told if value is not None]


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


def _written(span: Span, sample: str) -> _Written | None:
    """How what `convert` gives for the sample stands in JSON."""
    parts = _milliseconds(sample) if span.convert is milliseconds_range else _value(span.convert, sample)
    if parts is None:
        return None
    return [p if isinstance(p, str) else p._replace(start=span.start + p.start, end=span.start + p.end) for p in parts]


def _value(convert: Callable[[str], Any], sample: str) -> _Written | None:
    if convert is iso_time:
        return _time(sample)
    if convert is str or (convert is kept and not _is_number(sample)):
        unsure = sample.encode().translate(SHAPE) in _HOST_SHAPES or len(sample) > _MAX_TEXT
        return ['"', _Cut(0, len(sample)), '"'] if _SAFE.fullmatch(sample) and not unsure else None
    found = LEADING_NUMBER.match(sample)
    if found is None:
        return None
    cut, rest = _Cut(*found.span(1)), sample[found.end() :]
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
    if convert in _BYTES:
        return [cut._replace(work=_BYTES[convert])]
    if convert is milliseconds or (convert is duration and rest == " ms"):
        return [cut, "e-3"]
    return [cut, "e-2"] if convert is ratio and rest == "%" else None


def _milliseconds(sample: str) -> _Written | None:
    """As fields.milliseconds_range reads one number or two."""
    first, comma, second = sample.partition(", ")
    if not _SMALL.fullmatch(first) or not _SMALL.fullmatch(second if comma else first):
        return None
    low = _Cut(0, len(first))
    high = _Cut(len(first) + len(comma), len(sample)) if comma else low
    return ["[", low, "e-3,", high, "e-3]"]


def _whole(unit: int, piece: bytes) -> bytes:
    return b"%d" % round(float(piece) * unit)


_BYTES: dict[Callable[[str], Any], _Work] = {mebibytes: partial(_whole, MIB), gibibytes: partial(_whole, GIB)}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _time(sample: str) -> _Written | None:
    """As prefixes.iso_time writes it."""
    if _COMPACT_TIME.fullmatch(sample):
        return ['"', _Cut(0, 4), "-", _Cut(4, 6), "-", _Cut(6, 8), "T", _Cut(9, 17), '"']
    if not _TIME.fullmatch(sample):
        return None
    if len(sample) > 19 and sample[19] == ",":
        return ['"', _Cut(0, 10), "T", _Cut(11, 19), ".", _Cut(20, len(sample)), '"']
    return ['"', _Cut(0, 10), "T", _Cut(11, len(sample)), '"']
