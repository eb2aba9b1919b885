"""Proposes a dialect for lines that nobody reads: those that repeat with a growing number, their names and values.

Lines that are alike but for their numbers have one shape; a head line with indented lines below it is one too. Of the
shape whose step has the most lines the names are guessed at. What is proposed was tried: its sample
gives what stands beside it. A proposal is for a person to correct. Pure.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

import msgspec

from megatron_monitor.parsers.declared.reading import flat_json
from megatron_monitor.parsers.declared.schema import LineSpec
from megatron_monitor.parsers.engine.prefixes import strip_prefixes
from megatron_monitor.parsers.events import ANSI
from megatron_monitor.reports.dialect_steps import LEAST, Count, Row, count_of, is_total
from megatron_monitor.reports.dialect_text import Proposal, guess, is_read, is_step, tried, written

_NUMBER = re.compile(r"(?<![A-Za-z0-9_.])[-+]?\d+(?:,\d{3}(?!\d))*(?:\.\d+)?(?:[eE][-+]?\d+)?[KMBT]?")
_DAY = r"\d{4}[-/]\d\d[-/]\d\d[ T,]|\d\d/\d\d/\d{4} |\d\d[-/]\d\d "
_CLOCK = r"\d{1,2}:\d\d:\d\d(?:[.,]\d{1,9})?"
_TIME = re.compile(rf"(?:{_DAY}){_CLOCK}(?:Z|[-+]\d\d:?\d\d)?")
_NO_NUMBER = re.compile(rf"(?:{_DAY})?\b{_CLOCK}")
_PAIR = re.compile(
    r"(?<![\w/.])([A-Za-z][\w/.()\[\]%-]{0,79}(?: (?:in|per) \w{1,40})?)['\"]?[ ]*(?:[:=]|(?<=\w) )[ ]*['\"]?"
    r"([-+]?(?:\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?|nan|inf)[A-Za-z%]*)"
)
_ASSIGNED = re.compile(r"(?!\w+\.py:)(?<![\w.])[A-Za-z][\w/.()-]{0,79}['\"]?[ ]*[:=][ ]*['\"]?[-+]?\d")
_BAR = re.compile(r"[ ]{0,3}\d{1,3}%\|[^|]{0,400}\|")
_DRAWN = re.compile(rf"{_BAR.pattern} *\d+/\d+ \[(?P<elapsed>[\d:.]+)<(?P<left>[\d:.?]+)")
_OF_ALL = re.compile(r"\b(?:epoch|step|iter\w{0,6})\W{1,4}\d+\s*/\s*\d", re.IGNORECASE)
_GLUE = re.compile(r"[\]\s|:-]*(?:[\w.]{1,40} - (?=[A-Z]+\b))?(?:\[?\s*\b(?:INFO|DEBUG|WARNING)\b\]?[\s|:-]*)?")
_ANY = re.compile(r"(?<![A-Za-z0-9_])[-+]?\d[\d,.]*(?<!,)|\d[\d,.]*(?<!,)")
_NAMES = 2  # with a meaning: less proves nothing
_DRAWS = 20  # of a bar that is nothing else
_MOST = 4000  # characters of a line that are looked at
_SHAPES = 2000
_KEPT = 40  # texts of a shape; of all its lines the numbers are kept
_BLOCK = 300  # lines
_SEPARATORS = ("|", " - ", ",", ";", "  ", " ")
_CUTS = ("|", ", ", " - ", "{", "  ")
_Block = tuple[str, list[str]]  # a line, and the lines below it


@dataclass
class Shape:
    """Lines that differ in their numbers alone: `below` are the indented lines under the last of them."""

    rows: list[Row] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    below: list[str] = field(default_factory=list)
    blocks: int = 0
    """Rows with lines below."""
    cut: bool = False
    """The last one has none: the log may end there."""
    known: int = 0
    """Names with a meaning, ..."""
    alone: int = 0
    """... without the lines below."""
    bar: bool = False
    """There is nothing but a progress bar."""
    count: Count | None = None

    def add(self, text: str, below: Sequence[str]) -> None:
        """One more of them."""
        self.rows.append(Row(text, [(match[0], *match.span()) for match in _numbers(text)]))
        self.texts = [*self.texts[-_KEPT:], text]
        self.below = list(below) or self.below
        self.blocks += bool(below)
        self.cut = not below


def proposed(raw: Iterable[bytes], name: str) -> str | None:
    """The YAML of a dialect; None if no line tells a step with names and values."""
    blocks = list(_with_blocks(raw))
    asked: tuple[Proposal, dict[str, object]] | None = None
    for shape in _candidates(blocks):
        best = _best(shape, name)
        if best is None or shape.count is None or (asked and not shape.count.epochs):
            continue
        if not shape.count.anew:
            return _written(name, *best, blocks, asked[0] if asked else None)
        asked = asked or best  # another line may tell the epochs in which these begin anew
    return _written(name, *asked, blocks) if asked else None


def _written(
    name: str, proposal: Proposal, gives: dict[str, object], blocks: list[_Block], anew: Proposal | None = None
) -> str:
    """The file, with what the log's other lines tell; where the mark stands in lines of no name that is known, too,
    the step's have one that those have not.
    """
    texts = [text for head, below in blocks for text in (head, *(() if proposal.below else below))]
    names = [] if proposal.below else [each for each in proposal.guessed[0] if all(each in t for t in proposal.texts)]
    first = {_key(text): text for text in texts if not any(each in text for each in names)}
    if names and any(tried(name, replace(proposal, texts=[text], below=())) for text in first.values()):
        line = msgspec.structs.replace(proposal.line, needs=(*proposal.line.needs, names[0]))
        proposal = replace(proposal, line=line)
    return written(name, proposal, gives, texts, anew)


def _key(text: str) -> str:
    """What lines that differ in their numbers alone have in common."""
    drawn = _NUMBER.sub("0", _BAR.sub("{bar}", _NO_NUMBER.sub("T", text)))
    return re.sub(r"\s*[-+]?0\s*", "0", drawn)


def _best(shape: Shape, name: str) -> tuple[Proposal, dict[str, object]] | None:
    """The way to read them of which the most is understood, and what its sample gives."""
    for option in sorted(_options(shape), key=lambda option: -option.score)[:6]:
        if gives := tried(name, option):
            return option, gives
    return None


# --- which lines ----------------------------------------------------------------------------------------------------


def _candidates(blocks: Iterable[_Block]) -> list[Shape]:
    """Shapes that may tell a step, the likeliest first; those that are read already behind all others."""
    shapes: dict[str, Shape] = {}
    for text, lines in blocks:
        bar = _DRAWN.search(text) is not None
        alone = _known(text) + 2 * bar + (_OF_ALL.search(text) is not None)
        below = [] if _known(text) else lines
        known = alone + _known("\n".join(below))
        key = _key(text)
        if not known or (key not in shapes and len(shapes) >= _SHAPES):
            continue
        shape = shapes.setdefault(key, Shape())
        shape.add(text, below)
        shape.known, shape.alone, shape.bar = max(known, shape.known), alone, bar and known < LEAST
    for shape in shapes.values():
        if shape.blocks < len(shape.rows) - shape.cut:
            shape.below, shape.known = [], shape.alone
        shape.count = count_of(shape.rows) if len(shape.rows) >= LEAST or shape.known >= _NAMES else None
    found = [shape for shape in shapes.values() if shape.count and len(shape.rows) >= _DRAWS * shape.bar]
    found.sort(key=lambda shape: -shape.known * (len(shape.rows) if len(shape.rows) >= LEAST else 0.5))
    return sorted(found, key=lambda shape: is_read("\n".join((shape.texts[-1], *shape.below))))


def _known(text: str) -> int:
    """How many names have a meaning."""
    return sum(guess(name, value) is not None for name, value in _PAIR.findall(text))


def _with_blocks(raw: Iterable[bytes]) -> Iterator[_Block]:
    """Each line with the lines below it that begin with a blank and hold one name with its value."""
    head, below, cut = "", list[str](), b""
    for data in raw:
        parts = (cut + data).rstrip(b"\r\n").split(b"\r")
        cut = b"" if data.endswith(b"\n") or len(parts[-1]) > _MOST else parts.pop()
        for part in (each.decode("utf-8", "replace") for each in parts):
            text = strip_prefixes(ANSI.sub("", part[:_MOST]))[1].rstrip()
            if head and text[:1] in " \t" and len(_PAIR.findall(text)) == 1 and len(below) < _BLOCK:
                below.append(text)
                continue
            if head:
                yield head, below
            head, below = text, []
    if head:
        yield head, below


def _numbers(text: str) -> list[re.Match[str]]:
    """The numbers of a line that are no part of a time or a bar."""
    times = [match.span() for pattern in (_NO_NUMBER, _BAR) for match in pattern.finditer(text)]
    return [match for match in _NUMBER.finditer(text) if not any(a <= match.start() < b for a, b in times)]


# --- how they may be read -------------------------------------------------------------------------------------------


def _options(shape: Shape) -> Iterator[Proposal]:
    """Ways to read a shape's lines."""
    sample, row, count = shape.texts[-1], shape.rows[-1], shape.count
    prefix, body = _prefix(sample)
    cut = len(sample) - len(body)
    if count is None or row.numbers[count.step][1] < cut:
        return
    places = {
        (start - cut, end - cut): name
        for place, name in _placed(row, count).items()
        for _, start, end in [row.numbers[place]]
        if start >= cut
    }
    drawn = _DRAWN.search(body)
    if drawn is not None:
        places |= {drawn.span("elapsed"): "elapsed_seconds clock", drawn.span("left"): "clock"}
    common: dict[str, Any] = {"prefix": prefix, "texts": shape.texts, "count": count}
    given = {} if count.length is None else {"epoch_steps": count.length}
    line = partial(LineSpec, means="step", given=given)
    if shape.below:
        indent = shape.below[0][: len(shape.below[0]) - len(shape.below[0].lstrip())]
        mark, _, inside = _mark(body, places)
        for assign in (":", "="):
            spec = line(line=mark, form="block", separator="\n", assign=assign, anywhere=inside, indent=indent)
            yield Proposal(spec, "", _named(shape.below, assign), below=shape.below, **common)
        return
    start = row.numbers[count.step][1] - cut
    brace, step = body.find("{"), _name_before(body, start)
    names = flat_json(body[brace:]) if brace >= 0 and step else {}
    mark = _numbered(body[:brace])
    if names and len(mark.strip()) >= LEAST:
        yield Proposal(line(line=mark, form="json", needs=(step,)), step, list(names.items()), **common)
        return
    yield from _pairs(body, places, start, "" if count.epoch is not None else step, line, common)


def _placed(row: Row, count: Count) -> dict[int, str]:
    """Place of a number -> the placeholder that it is in a mark."""
    if count.epoch is None:
        names = {count.step: "step"}
        totals = {count.step: "total"}
    else:
        names = {count.epoch: "epoch number" if count.from_one else "epoch", count.step: "epoch_step"}
        totals = {count.epoch: "epochs", count.step: "epoch_steps"}
    return names | {place + 1: name for place, name in totals.items() if is_total(row, place + 1)}


def _pairs(
    body: str, places: Mapping[tuple[int, int], str], start: int, step: str, line: Callable[..., LineSpec],
    common: dict[str, Any],
) -> Iterator[Proposal]:  # fmt: skip
    """Ways to read names and values in one line; `step`: the name before the number, where it is one of them."""
    marks = [(*_mark(body, places), "")]
    first = _ASSIGNED.search(body)
    named = bool(step) and first is not None and first.start() < start
    if named and first is not None:
        marks.append((_numbered(body[: first.start()]), body[first.start() :], False, step))
    for found, rest, inside, name in marks:
        mark = re.sub(r"([\[(]) +\{", r"\1{", found)
        if len(re.sub(r"\{\w+\}", "", mark).strip()) < LEAST:
            continue
        for separator, assign, pairs in _cut(rest):
            spec = line(line=mark, separator=separator, assign=assign, anywhere=inside, needs=(name,) if name else ())
            yield Proposal(spec, name, pairs, **common)
    if named:
        # one name of many, as in a dict: names stand before it and behind it
        mark = body[body.rfind(step, 0, start) : start] + "{step}"
        for separator, assign, pairs in _cut(body[max(0, body.rfind("{", 0, start)) :]):
            others = [pair for pair in pairs if pair[0] != step]
            spec = line(line=mark, separator=separator, assign=assign, anywhere=True, whole=True)
            yield Proposal(spec, "", others, **common)


def _cut(rest: str) -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """Ways to cut it into names and values, as they will be read: (separator, assign, names with values)."""
    for separator, assign in product(_SEPARATORS, (":", "=", " ")):
        if not separator.strip() and assign == " ":
            continue
        text = rest if separator.strip() else re.sub(rf"(?<![ \t])[ \t]*{assign}[ \t]+", assign, rest)
        yield separator, assign, _named(text.split(separator), assign)


def _named(pieces: Sequence[str], assign: str) -> list[tuple[str, str]]:
    """Names with their values, as they will be read."""
    found = []
    for piece in pieces:
        name, cut, value = piece.strip().rpartition(" ") if assign == " " else piece.partition(assign)
        name, value = name.strip(" \t'\"{[|"), value.strip(" \t'\"}]|")
        if cut and name and name[-1] not in ":=" and re.match(r"[-+]?\d|nan|inf", value):
            found.append((name, value))
    return found


def _name_before(body: str, start: int) -> str:
    """The name whose value begins at `start`, where it is one that a step is called by."""
    match = re.search(r"([A-Za-z][\w/.]*)['\"]?[ ]*[:= ][ ]*['\"]?$", body[:start])
    return match[1] if match and is_step(match[1]) else ""


def _prefix(text: str) -> tuple[str, str]:
    """The text of a logger before the line, as a mark, and the line behind it."""
    match = _TIME.search(text[:80])
    if match is None:
        return "", text
    behind = text[match.end() :]
    glue = _GLUE.match(behind)
    tail = glue[0] if glue else ""
    return f"{text[: match.start()]}{{time}}{tail}", behind[len(tail) :]


def _numbered(text: str) -> str:
    """Literal text as a mark: each number a placeholder, and a bar."""
    pieces = _BAR.split(text.replace("{", " "))
    return "{bar}".join(re.sub(r" {2,}", "  ", _ANY.sub("{number}", piece)) for piece in pieces)


def _mark(body: str, places: Mapping[tuple[int, int], str]) -> tuple[str, str, bool]:
    """(the mark up to the last place, what follows, whether something stands before it that is left out)."""
    spans = sorted(places)
    at = spans[0][0]
    start = 0 if _BAR.search(body[:at]) else max(body.rfind(cut, 0, at) for cut in _CUTS) + 1
    lead = body[:at] if start <= 1 or len(_PAIR.findall(body[:at])) == 0 else ""
    lead = lead or body[start:at].lstrip()
    short = lead[lead.rfind("] ") + 2 :] if "] " in lead else lead
    lead = short if len(short.strip()) >= LEAST else lead
    mark = _numbered(lead).rstrip(" ") + (" " if lead.endswith(" ") else "")
    for place, (begin, end) in enumerate(spans):
        following = spans[place + 1][0] if place + 1 < len(spans) else end
        mark += f"{{{places[begin, end]}}}" + _numbered(body[end:following])
    rest = body[spans[-1][1] :]
    tail = re.match(r"[\s\]\)|,;:-]+", rest)
    if tail and tail[0].strip():
        taken = ", " if tail[0] == ", " else tail[0].rstrip()  # `1,000, `: the blank says where the number ends
        mark, rest = mark + taken, rest[len(taken) :]
    return mark, rest, not body.lstrip().startswith(lead.lstrip())
