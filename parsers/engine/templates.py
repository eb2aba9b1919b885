"""Templates: how to read a line of a known shape without asking its rule again.

A line's shape is the line with every digit as `0`. Lines of one shape differ in their numbers alone, and the reference
reading (a rule's `read`) fills fields with those numbers. A template is learned from the reference reading by example:
the line is read again with other digits in its place, and each value that changed is found in the text, by one of the
converters of fields.py. There is no second description of any line: what a rule reads is written once, in its format.

A template writes the pieces of a line into the JSON text of its events, which msgspec decodes: 3 us a line where the
reference reading takes 60. It is used only after it gave what the reference reading gave, for the line itself and for
lines with other digits. What it cannot say (NaN, a leading zero, a number beyond its type) it leaves to the reference
reading. Residual risk: a rule for which a number decides what the line means. Such rules must not be `templated`.
"""

import json
import random
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import msgspec.structs

from megatron_monitor.parsers.engine import fields
from megatron_monitor.parsers.engine.prefixes import NOT_HOSTS, iso_time
from megatron_monitor.parsers.events import Event
from megatron_monitor.parsers.wrappers import MONTHS

SHAPE = bytes(48 if 48 <= code <= 57 else code for code in range(256))
"""Translates a line to its shape."""

Answer: TypeAlias = list[tuple[str, Event]]
"""(rule, event) of everything that a line says."""
Reading: TypeAlias = Callable[[bytes], Answer]
"""The reference reading of a line by itself."""

_EXAMPLES = 4  # lines with other digits from which values are found: two one-digit numbers are alike in 1 of 6,561
_PROOFS = 2  # further ones that the finished template must read right
_BAR = re.compile(rb"(?:\xe2\x96[\x80-\x8f])+")  # a progress bar's blocks
_REGION = re.compile(rb"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_REAL = re.compile(rb"0(?:\.0(?:[eE][-+]?0)?|[eE][-+]?0)")  # in a shape, whatever its widths
_SUFFIX = re.compile(
    rb"[A-Za-z%]{1,8}|(?:,\d{3})+(?:\.\d+)?|(?::\d+){1,3}(?:\.\d+)?| (?:ms|s|min|h)\b"
)  # `13.3TFLOPS`, `35.8%`, `1:02:03`
_TIME = re.compile(
    rb"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[-+]\d\d:?\d\d)?|\d{8} \d\d:\d\d:\d\d"
    rb"|(?:%b) [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?|(?<=[IWEF])\d{3,4} \d\d:\d\d:\d\d(?:\.\d{1,6})?"
    % "|".join(MONTHS).encode()
)
_SAFE = re.compile(r"[ !#-\[\]-~]*")  # stands in a JSON string as it is
_REPEATED = 256  # pieces of a kind that are remembered
_WIDEST = 15  # characters of a whole number that formats and JSON read alike
_WIDEST_FRACTION = 24  # `0.00010000000000000002` is a learning rate
_Span: TypeAlias = tuple[int, int]
_SMALL = re.compile(rb"\d{1,6}(?:\.\d{1,6})?")  # in milliseconds: the decimal that `e-3` makes is the rounded quotient
_HOST_SHAPES = [name.encode().translate(SHAPE) + b":" for name in NOT_HOSTS]

_Convert: TypeAlias = Callable[[str], Any]
_AS_PRINTED: tuple[_Convert, ...] = (fields.integer, fields.number)
"""Their numbers stand in JSON as they stand in the line."""
_CONVERTERS: tuple[_Convert, ...] = (
    *_AS_PRINTED, fields.milliseconds, fields.mebibytes, fields.gibibytes, fields.teraflops, fields.ratio,
    fields.clock, fields.duration, fields.per_second, fields.amount, fields.whole_amount,
    fields.amount_of_milliseconds, fields.words_of_time, fields.byte_size,
)  # fmt: skip


class NoTemplateError(Exception):
    """Lines of this shape are left to the reference reading."""


class _Cut(NamedTuple):
    """A piece of a line, from `before` bytes before one number to `behind` bytes behind another, by the count of
    numbers: the same in lines whose numbers have other widths.
    """

    first: int
    before: int
    last: int
    behind: int
    convert: _Convert | None = None


_Text: TypeAlias = list["str | _Cut"]
"""JSON text with pieces of the line in it."""


class _Form(NamedTuple):
    """The JSON text of what a line says, for lines whose numbers may have any width."""

    rules: tuple[str, ...]
    """That of each event."""
    cuts: tuple[_Cut, ...]
    works: tuple[tuple[int, Callable[[bytes], bytes]], ...]
    """Places of the pieces that are no JSON as they stand, and what makes JSON of each."""
    text: bytes
    decode: Callable[[bytes], tuple[Any, ...]]


class Template:
    """How to read the lines of one shape."""

    __slots__ = ("_cut", "_decode", "_text", "_works", "redrawn", "rules")

    def __init__(self, form: _Form, regions: Sequence[tuple[int, int]], *, redrawn: bool = False) -> None:
        """`regions`: where the numbers of such a line stand. Raises NoTemplateError if a piece would be empty."""
        self.rules, cuts, self._works, self._text, self._decode = form
        spans = [(regions[first][0] - before, regions[last][1] + behind) for first, before, last, behind, _ in cuts]
        if any(not 0 <= start < end for start, end in spans):
            raise NoTemplateError
        self._cut = _cutter(spans)
        self.redrawn = redrawn
        """The same line once more says nothing new: a progress bar is drawn again and again."""

    def read(self, raw: bytes) -> tuple[Event, ...] | None:
        """The event of each of `rules` that a line of this shape says; None if the reference reading must be asked."""
        pieces = self._cut(raw)
        if self._works:
            worked = list(pieces)
            for place, work in self._works:
                worked[place] = work(pieces[place])
            pieces = tuple(worked)
        try:
            return self._decode(self._text % pieces)
        except msgspec.DecodeError:  # a leading zero, or too large a number
            return None


def _cutter(spans: Sequence[_Span]) -> Callable[[bytes], tuple[bytes, ...]]:
    """Gives these pieces of a line. In one sweep where they stand in order, which takes half the time."""
    if any(end > start for (_, end), (start, _) in pairwise(spans)):
        return itemgetter(*(slice(*span) for span in spans))  # of two at least, so that it gives a tuple
    places = [0, *(place for span in spans for place in span)]
    widths = [end - start for start, end in pairwise(places)]
    form = "".join(f"{gap}x{width}s" for gap, width in zip(widths[::2], widths[1::2], strict=True))
    return struct.Struct(form).unpack_from


UNUSED: Final = Template(_Form((), (), (), b"[]", msgspec.json.Decoder(tuple[()]).decode), ())
"""Gives nothing: for lines that say nothing of use."""


class Layout:
    """A template for lines that differ from each other in the width of numbers and blanks, too."""

    __slots__ = ("_form", "_numbers", "proofs", "redrawn", "used")

    def __init__(self, form: _Form, numbers: int) -> None:
        self._form = form
        self._numbers = numbers
        self.proofs = 0
        """Lines of different shapes of which it gave what the reference reading gave."""
        self.redrawn = False
        self.used = True
        """False where nobody has a use for what such lines say."""

    def template(self, raw: bytes) -> Template:
        """For lines of the shape of `raw`. Raises NoTemplateError if its numbers are others, or too wide."""
        regions = [match.span() for match in _REGION.finditer(raw)]
        if len(regions) != self._numbers or any(
            end - start > _WIDEST and (end - start > _WIDEST_FRACTION or b"." not in raw[start:end])
            for start, end in regions
        ):
            raise NoTemplateError
        return Template(self._form, regions, redrawn=self.redrawn)


def widths_aside(shape: bytes) -> bytes:
    """A shape without the widths of its numbers, blanks and bars, and without fractions and exponents: lines that share
    it may share a layout.
    """
    if b"\xe2\x96" in shape:
        shape = _BAR.sub(b"#", shape)
    for twice, once in ((b"00", b"0"), (b"  ", b" ")):
        while twice in shape:
            shape = shape.replace(twice, once)
    return _REAL.sub(b"0", shape)


def agrees(template: Template, raw: bytes, answer: Answer) -> bool:
    """Whether the template gives this answer for the line, or leaves it to the reference reading."""
    found = template.read(raw)
    return found is None or repr(list(zip(template.rules, found, strict=True))) == repr(answer)  # it tells 1 from 1.0


def learn(raw: bytes, answer: Answer, read: Reading) -> Layout:
    """A layout for lines like this one, of which the reference reading `read` gave `answer`. Raises NoTemplateError."""
    if _may_name_host(raw):
        raise NoTemplateError
    chance = random.Random(len(raw))  # noqa: S311  digits, no secrets
    lines = [raw, *(_with_other_digits(raw, chance) for _ in range(_EXAMPLES))]
    answers = [answer, *map(read, lines[1:])]
    if any([(rule, type(event)) for rule, event in other] != [(rule, type(event)) for rule, event in answer]
           for other in answers):  # fmt: skip
        raise NoTemplateError
    finder = _Finder(lines)
    events = [[other[place][1] for other in answers] for place in range(len(answer))]
    layout = Layout(_form([rule for rule, _ in answer], events, finder), len(finder.regions))
    template = layout.template(raw)
    if template.read(raw) is None or not agrees(template, raw, answer):
        raise NoTemplateError
    for _ in range(_PROOFS):
        line = _with_other_digits(raw, chance)
        if not agrees(template, line, read(line)):
            raise NoTemplateError
    return layout


def says_nothing(raw: bytes, read: Reading) -> bool:
    """Whether the reference reading `read` finds nothing in lines like this one, whatever their digits."""
    if _may_name_host(raw):
        return False
    chance = random.Random(len(raw))  # noqa: S311  digits, no secrets
    return not any(read(_with_other_digits(raw, chance)) for _ in range(_PROOFS))


def _may_name_host(raw: bytes) -> bool:
    """Whether `fp16:` is a host's name depends on its digits."""
    shape = raw.translate(SHAPE)
    return any(host in shape for host in _HOST_SHAPES)


def _with_other_digits(raw: bytes, chance: random.Random) -> bytes:
    """Each digit by itself another one, none of them 0: no number gets a leading zero."""
    return re.sub(rb"\d", lambda _: b"%d" % chance.randint(1, 9), raw)


class _Finder:
    """Finds where the values of an event stand, from several lines of one shape and what was read from each."""

    def __init__(self, lines: Sequence[bytes]) -> None:
        self._lines = lines
        self.regions = [match.span() for match in _REGION.finditer(lines[0])]
        self._known: dict[str, list[tuple[_Cut, int, int]]] = {}
        """A value as repr writes it -> the pieces of the first line that give it: (cut, start, end)."""
        for start, end in self.regions:
            self._note(start, end)
            if suffix := _SUFFIX.match(lines[0], end):
                self._note(start, suffix.end())
            if lines[0][start] in b"+-":  # a dash before the number, as in `rank-7`
                self._note(start + 1, end)

    def _note(self, start: int, end: int) -> None:
        text, cut = self._lines[0][start:end].decode("ascii", "replace"), self._cut(start, end)
        for convert in _CONVERTERS:
            value = convert(text)
            if value is not None:
                self._known.setdefault(repr(value), []).append((cut._replace(convert=convert), start, end))

    def _cut(self, start: int, end: int) -> _Cut:
        """The piece [start, end) of the first line by the numbers in it. Raises NoTemplateError if it holds none."""
        inside = [index for index, (a, b) in enumerate(self.regions) if b > start and a < end]
        if not inside:
            raise NoTemplateError
        first, last = inside[0], inside[-1]
        return _Cut(first, self.regions[first][0] - start, last, end - self.regions[last][1])

    def event(self, events: Sequence[Event]) -> Iterator[str | _Cut]:
        """The JSON text of an event, of which the lines gave these; its values in the order of the line."""
        told: list[_Text] = []
        for name in events[0].__struct_fields__:
            values = [getattr(event, name) for event in events]
            if any(value != defaults(type(events[0])).get(name) for value in values):
                told.append([f'"{name}":', *self._value(values)])
        told.sort(key=_place)
        yield "{"
        for index, pieces in enumerate(told):
            yield from pieces if not index else (",", *pieces)
        yield "}"

    def _value(self, values: Sequence[Any]) -> Iterator[str | _Cut]:
        kind = type(values[0])
        if any(type(value) is not kind for value in values):
            raise NoTemplateError
        if kind in (dict, tuple):
            yield from self._items(values, kind is dict)
        elif len(set(map(repr, values))) == 1:
            if kind is float and not abs(values[0]) < float("inf"):
                raise NoTemplateError  # JSON has no NaN
            yield json.dumps(values[0])
        elif kind is str:
            yield from self._string(values)
        else:
            yield from self._number(values)

    def _items(self, values: Sequence[Any], named: bool) -> Iterator[str | _Cut]:
        if any(len(value) != len(values[0]) for value in values):
            raise NoTemplateError
        yield "{" if named else "["
        for place, items in enumerate(zip(*(value.items() if named else value for value in values), strict=True)):
            if place:
                yield ","
            if named:
                yield from self._value([key for key, _ in items])
                yield ":"
            yield from self._value([item for _, item in items] if named else items)
        yield "}" if named else "]"

    def _number(self, values: Sequence[Any]) -> Iterator[str | _Cut]:
        for cut, start, end in self._known.get(repr(values[0]), ()):
            assert cut.convert is not None
            texts = [line[start:end].decode("ascii", "replace") for line in self._lines]
            if all(repr(cut.convert(text)) == repr(value) for text, value in zip(texts, values, strict=True)):
                if cut.convert in _AS_PRINTED:
                    yield cut._replace(convert=None)
                elif cut.convert is fields.milliseconds and _SMALL.fullmatch(self._lines[0], start, end):
                    yield cut._replace(convert=None)
                    yield "e-3"
                else:
                    yield cut
                return
        raise NoTemplateError

    def _string(self, values: Sequence[str]) -> Iterator[str | _Cut]:
        if not _SAFE.fullmatch(values[0]):
            raise NoTemplateError
        first = values[0].encode()
        place = self._lines[0].find(first)
        while place >= 0:
            end = place + len(first)
            if all(line[place:end] == value.encode() for line, value in zip(self._lines, values, strict=True)):
                yield '"'
                yield self._cut(place, end)
                yield '"'
                return
            place = self._lines[0].find(first, place + 1)
        for match in _TIME.finditer(self._lines[0]):
            start, end = match.span()
            if [iso_time(line[start:end].decode()) for line in self._lines] == list(values):
                yield '"'
                yield from self._time(values[0], start, end)
                yield '"'
                return
        raise NoTemplateError

    def _time(self, iso: str, start: int, end: int) -> Iterator[str | _Cut]:
        """The ISO 8601 form of the time in [start, end): pieces of the line, and the marks that differ from it."""
        source = self._lines[0]
        digits = [place for place in range(start, end) if 48 <= source[place] <= 57]
        constant = sum(map(str.isdigit, iso)) - len(digits)  # those of a month's name and of the blank before a day
        places: list[int | None] = []  # in the line of each character, None: it does not stand there
        for char in iso:
            behind = places[-1] + 1 if places and places[-1] is not None else len(source)
            if char.isdigit() and not constant:
                places.append(digits.pop(0))
            else:
                constant -= char.isdigit()
                places.append(behind if not char.isdigit() and source.startswith(char.encode(), behind) else None)
        shifts = [None if place is None else place - index for index, place in enumerate(places)]
        for shift, run in groupby(range(len(iso)), key=shifts.__getitem__):
            piece = list(run)
            first, behind = piece[0], piece[-1] + 1
            yield iso[first:behind] if shift is None else self._cut(first + shift, behind + shift)


def _place(text: _Text) -> tuple[int, int]:
    """Where the first piece of the line in it stands; before all others if there is none."""
    return next(((piece.first, -piece.before) for piece in text if isinstance(piece, _Cut)), (-1, 0))


def _form(rules: Sequence[str], told: Sequence[Sequence[Event]], finder: _Finder) -> _Form:
    """`told`: each event of the line, as all the lines have it."""
    cuts: list[_Cut] = []
    works: list[tuple[int, Callable[[bytes], bytes]]] = []
    texts = []
    for events in told:
        written = b""
        for piece in finder.event(events):
            if isinstance(piece, str):
                written += piece.encode().replace(b"%", b"%%")
                continue
            if piece.convert is not None:
                works.append((len(cuts), _work(piece.convert)))
            cuts.append(piece)
            written += b"%b"
        texts.append(written)
    text = b"[" + b",".join(texts) + b"]"
    return _Form(tuple(rules), tuple(cuts), tuple(works), text, _decoder(*(type(events[0]) for events in told)))


@cache
def defaults(kind: type[Event]) -> dict[str, Any]:
    """What an event of this type says of a field that is left out."""
    return {
        field.name: {} if field.default_factory is dict else field.default
        for field in msgspec.structs.fields(kind)
        if not field.required
    }


@cache
def _decoder(*kinds: type[Event]) -> Callable[[bytes], tuple[Any, ...]]:
    return msgspec.json.Decoder(tuple[kinds]).decode  # type: ignore[valid-type]


@cache
def _work(convert: _Convert) -> Callable[[bytes], bytes]:
    """What makes JSON of a piece. Memory, in which most of them are told, is the same line after line."""
    if convert is fields.clock:
        return _clock_work

    @lru_cache(_REPEATED)
    def work(piece: bytes) -> bytes:
        value = convert(piece.decode("ascii", "replace"))
        return b"!" if value is None else repr(value).encode()  # no JSON: it is left to the reference reading

    return work


def _clock_work(piece: bytes) -> bytes:
    """Of a time in whole seconds, which a bar shows at each step."""
    try:
        return b"%d" % (int(piece[:-6] or 0) * 3600 + int(piece[-5:-3]) * 60 + int(piece[-2:]))
    except ValueError:
        return b"!"
