"""Proposes a dialect for lines that nobody reads: those that repeat with a growing number, their names and values.

Lines that are alike but for their numbers have one shape; a head line with indented lines below it is one too. Of the
shape whose first growing number has the most lines the names are guessed at. What is proposed was tried: its sample
gives what stands beside it. A proposal is for a person to correct. Pure.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Any

from monitor.reports.dialect_text import STEP, Proposal, guess, is_step, tried, written
from parsers.declared.reading import flat_json
from parsers.engine.prefixes import strip_prefixes
from parsers.events import ANSI

_NUMBER = re.compile(r"(?<![A-Za-z0-9_.])[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?[KMBT]?")
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
_GLUE = re.compile(r"[\]\s|:-]*(?:[\w.]{1,40} - (?=[A-Z]+\b))?(?:\[?\s*\b(?:INFO|DEBUG|WARNING)\b\]?[\s|:-]*)?")
_EPOCH = re.compile(r"epoch[^{}]{0,12}(\{number\})", re.IGNORECASE)
_LEAST = 3  # lines that make a step line
_GROWS, _GROWS_BY_NAME = 0.9, 0.5  # of the lines
_NAMES = 2  # with a meaning: less proves nothing
_MOST = 4000  # characters of a line that are looked at
_SHAPES = 2000
_KEPT = 40
_BLOCK = 300  # lines
_SEPARATORS = ("|", " - ", ",", ";", "  ", " ")
_CUTS = ("|", ", ", " - ", "{", "  ")


@dataclass
class Shape:
    """Lines that differ in their numbers alone: `below` are the indented lines under the last of them."""

    rows: list[list[str]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    below: list[str] = field(default_factory=list)
    seen: int = 0
    known: int = 0
    place: int = 0
    anew: bool = False
    """The number begins anew."""
    why: str = ""

    def add(self, text: str, below: Sequence[str]) -> None:
        """One more of them."""
        self.rows = [*self.rows[-_KEPT:], [match[0] for match in _numbers(text)]]
        self.texts = [*self.texts[-_KEPT:], text]
        self.below = list(below) or self.below
        self.seen += 1


def proposed(raw: Iterable[bytes], name: str) -> str | None:
    """The YAML of a dialect; None if no line tells a step with names and values."""
    blocks = list(_with_blocks(raw))
    for shape in _candidates(blocks):
        options = sorted(_options(shape), key=lambda option: -option.score)
        for option in options[:6]:
            gives = tried(name, option)
            if gives:
                return written(name, option, gives, (text for text, _ in blocks))
    return None


# --- which lines ----------------------------------------------------------------------------------------------------


def _candidates(blocks: Iterable[tuple[str, list[str]]]) -> list[Shape]:
    """Shapes that may tell a step, the likeliest first."""
    shapes: dict[tuple[str, bool], Shape] = {}
    for text, below in blocks:
        known = sum(guess(name, value) is not None for name, value in _PAIR.findall("\n".join((text, *below))))
        if not known:
            continue
        key = re.sub(r"\s+", " ", _NUMBER.sub("0", _BAR.sub("{bar}", _NO_NUMBER.sub("T", text)))), bool(below)
        shape = shapes.get(key)
        if shape is None:
            if len(shapes) >= _SHAPES:
                continue
            shape = shapes[key] = Shape()
        shape.add(text, below)
        shape.known = known
    found = [shape for shape in shapes.values() if _find_step(shape)]
    found.sort(key=lambda shape: -shape.known * (shape.seen if shape.seen >= _LEAST else 0.5))
    return found


def _with_blocks(raw: Iterable[bytes]) -> Iterator[tuple[str, list[str]]]:
    """Each line with the lines below it that begin with a blank and hold one name with its value."""
    head, below = "", list[str]()
    for data in raw:
        for part in data.decode("utf-8", "replace").rstrip("\r\n").split("\r"):
            text = strip_prefixes(ANSI.sub("", part[:_MOST]))[1].rstrip()
            if head and text[:1] in " \t" and len(_PAIR.findall(text)) == 1 and len(below) < _BLOCK:
                below.append(text)
                continue
            if head:
                yield head, below
            head, below = text, []
    if head:
        yield head, below


def _find_step(shape: Shape) -> bool:
    """Fills in which number is the step, and why: the first whole number that grows from line to line, one that is
    called so before others; in one line or two, the one that is called so.
    """
    text = shape.texts[-1]
    places = [match.start() for match in _numbers(text)]
    named = [place for place in range(len(places)) if STEP.search(text[: places[place]])]
    if shape.seen < _LEAST:
        good = [place for place in named if _whole(shape.rows[-1][place])]
        if not good or shape.known < _NAMES:
            return False
        shape.place = good[0]
        shape.why = f"a guess by its name: the log has {shape.seen} such line{'s' if shape.seen > 1 else ''}"
        return True
    count = min(len(places), *map(len, shape.rows))
    found = [
        (any(after < before for before, after in pairwise(numbers)), place not in named, place, numbers)
        for place in range(count)
        if (numbers := _growing(shape, place, _GROWS_BY_NAME if place in named else _GROWS))
    ]
    if not found:
        return False
    shape.anew, _, shape.place, numbers = min(found)  # one that begins anew counts within an epoch
    shape.why = f"the number that grows, {numbers[0]} to {numbers[-1]} in the last {len(numbers)} lines"
    return True


def _growing(shape: Shape, place: int, share: float) -> list[int]:
    """The whole numbers of this place, where they grow from line to line in so great a share of the lines."""
    column = [row[place].replace(",", "") for row in shape.rows]
    if not all(map(_whole, column)):
        return []
    numbers = [int(value) for value in column]
    grown = sum(after > before for before, after in pairwise(numbers))
    return numbers if len(set(numbers)) >= _LEAST and grown >= share * (len(numbers) - 1) else []


def _whole(text: str) -> bool:
    return text.replace(",", "").isdigit() and len(text) < 12


def _numbers(text: str) -> list[re.Match[str]]:
    """The numbers of a line that are no part of a time or a bar."""
    times = [match.span() for pattern in (_NO_NUMBER, _BAR) for match in pattern.finditer(text)]
    return [match for match in _NUMBER.finditer(text) if not any(a <= match.start() < b for a, b in times)]


# --- how they may be read -------------------------------------------------------------------------------------------


def _options(shape: Shape) -> Iterator[Proposal]:
    """Ways to read a shape's lines."""
    sample = shape.texts[-1]
    prefix, body = _prefix(sample)
    start = _numbers(sample)[shape.place].start() - (len(sample) - len(body))
    growing = _NUMBER.match(body, start) if start >= 0 else None
    if growing is None:
        return
    common: dict[str, Any] = {
        "prefix": prefix,
        "texts": shape.texts,
        "why": shape.why,
        "seen": shape.seen,
        "anew": shape.anew,
    }
    if shape.below:
        indent = shape.below[0][: len(shape.below[0]) - len(shape.below[0].lstrip())]
        mark, _, inside = _mark(body, growing)
        for assign in (":", "="):
            yield Proposal(mark, "block", "\n", assign, inside, "", _named(shape.below, assign),
                           indent=indent, below=shape.below, **common)  # fmt: skip
        return
    brace, step = body.find("{"), _name_before(body, start)
    names = flat_json(body[brace:]) if brace >= 0 and step else {}
    mark = _numbered(body[:brace])
    if names and len(mark.strip()) >= _LEAST:
        yield Proposal(mark, "json", ", ", ":", False, step, list(names.items()), **common)
        return
    yield from _pairs(shape, body, growing, step, common)


def _pairs(shape: Shape, body: str, growing: re.Match[str], step: str, common: dict[str, Any]) -> Iterator[Proposal]:
    """Ways to read names and values in one line; `step`: the name before the number, where it is one of them."""
    marks = [(*_mark(body, growing), "")]
    start, first = growing.start(), _ASSIGNED.search(body)
    named = bool(step) and first is not None and first.start() < start
    if named and first is not None:
        marks.append((_numbered(body[: first.start()]), body[first.start() :], False, step))
    for found, rest, inside, name in marks:
        mark = _by_epochs(re.sub(r"([\[(]) +\{", r"\1{", found), shape.texts[0])
        if len(re.sub(r"\{\w+\}", "", mark).strip()) < _LEAST:
            continue
        for separator, assign, pairs in _cut(rest):
            yield Proposal(mark, "pairs", separator, assign, inside, name, pairs, **common)
    if named:
        # one name of many, as in a dict: names stand before it and behind it
        mark = body[body.rfind(step, 0, start) : start] + "{step}"
        for separator, assign, pairs in _cut(body[max(0, body.rfind("{", 0, start)) :]):
            others = [pair for pair in pairs if pair[0] != step]
            yield Proposal(mark, "pairs", separator, assign, True, "", others, whole=True, **common)


def _cut(rest: str) -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """Ways to cut it into names and values, as they will be read: (separator, assign, names with values)."""
    for separator, assign in product(_SEPARATORS, (":", "=", " ")):
        if separator.strip():
            yield separator, assign, _named(rest.split(separator), assign)
        elif assign != " ":
            yield separator, assign, _named(re.sub(f"{assign}[ \t]+", assign, rest).split(separator), assign)


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
    before = text[: match.start()]
    behind = text[match.end() :]
    glue = _GLUE.match(behind)
    tail = glue[0] if glue else ""
    return f"{before}{{time}}{tail}", behind[len(tail) :]


def _numbered(text: str) -> str:
    """Literal text as a mark: each number a placeholder, and a bar."""
    pieces = _BAR.split(text.replace("{", " "))
    return "{bar}".join(re.sub(r" {2,}", "  ", re.sub(r"\d[\d,.]*", "{number}", piece)) for piece in pieces)


def _by_epochs(mark: str, first: str) -> str:
    """A mark of steps that begin anew each epoch, where it names the epoch: `Epoch 3 [ 50/1251]`."""
    match = _EPOCH.search(mark)
    if match is None or not re.search(r"\{step\} ?/ ?\{total\}", mark):
        return mark
    value = re.search(r"epoch\D{0,12}(\d+)", first, re.IGNORECASE)
    unit = "epoch number" if value and int(value[1]) > 0 else "epoch"
    mark = f"{mark[: match.start(1)]}{{{unit}}}{mark[match.end(1) :]}"
    return mark.replace("{step}", "{epoch_step}").replace("{total}", "{epoch_steps}")


def _mark(body: str, growing: re.Match[str]) -> tuple[str, str, bool]:
    """(the mark up to the step number, what follows, whether something stands before it that is left out)."""
    start = 0 if _BAR.search(body[: growing.start()]) else max(body.rfind(cut, 0, growing.start()) for cut in _CUTS) + 1
    lead = body[: growing.start()] if start <= 1 or len(_PAIR.findall(body[: growing.start()])) == 0 else ""
    lead = lead or body[start : growing.start()].lstrip()
    short = lead[lead.rfind("] ") + 2 :] if "] " in lead else lead
    lead = short if len(short.strip()) >= _LEAST else lead
    mark = _numbered(lead).rstrip(" ") + (" " if lead.endswith(" ") else "") + "{step}"
    rest = body[growing.end() :]
    total = re.match(r"\s*/\s*\d+", rest)
    if total:
        mark += re.sub(r"\d+", "{total}", total[0])
        rest = rest[total.end() :]
    tail = re.match(r"[\s\]\)|,;:-]+", rest)
    if tail and tail[0].strip():
        mark, rest = mark + tail[0].rstrip(), rest[len(tail[0].rstrip()) :]
    return mark, rest, not body.lstrip().startswith(lead.lstrip())
