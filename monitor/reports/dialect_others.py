"""Of a log's other lines those that tell of a save, an evaluation or the end, by their words, as lines of a dialect;
and what could not be placed. Pure.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from megatron_monitor.model.tables import rows_of
from megatron_monitor.parsers.declared.compiled import rules_of
from megatron_monitor.parsers.declared.marks import Mark
from megatron_monitor.parsers.declared.schema import Dialect, LineSpec, Means, Sample
from megatron_monitor.parsers.engine.memo import Memo
from megatron_monitor.parsers.engine.scan import Scanner
from megatron_monitor.parsers.reader import SourceReader
from megatron_monitor.parsers.samples import read

_SETTING = re.compile(r"\W*[\w.]+ ?[:=] ?\S{0,80}|.*\b(?:every|interval|freq\w*)\b.*", re.IGNORECASE)
_FOLDERS = re.compile(r"\S{0,200}[/\\](?=\S)")
_VARIABLE = re.compile(r"\S{0,200}/\S{1,400}|(?<![A-Za-z])[-+]?\d[\d,.:]*|(?<=[a-z]{4})\d+\b")
_LEAST = 8  # characters of text that mark a line
_MOST = 200  # of a line
_MOST_VARIABLES = 4  # before the word that tells
_UNPLACED = 5  # shapes that are listed
_OFTEN = 3  # lines of one shape that are worth a question, or too many for an end
_IN_A_ROW = 2  # results between two steps: more are an evaluation on its way


@cache
def _words() -> list[tuple[Means, re.Pattern[str]]]:
    """What a line means, by its words: the first that fit."""
    rows = rows_of("megatron_monitor.reports", "words.csv", tuple[Means, str])
    return [(means, re.compile(pattern, re.IGNORECASE)) for means, pattern in rows]


class Other(NamedTuple):
    """A line beside the steps, as it is proposed."""

    spec: LineSpec
    sample: str
    event: str


@dataclass
class _Shape:
    text: str
    body: str
    prefixed: bool
    seen: int = 0
    blocks: int = 0
    """Parts of the log between two steps in which it stands."""
    last: int = -1


def others(
    step: Dialect, texts: Iterable[str], inner: tuple[str, bool, str] | None = None
) -> tuple[list[Other], list[str]]:
    """(lines to propose, what repeats and could not be placed). Lines that are read already are neither.
    `inner`: (mark, whether it may stand anywhere, sample) of lines that tell no more than that the loop goes on.
    """
    found = []
    if inner is not None:
        mark, anywhere, sample = inner
        spec = LineSpec(means="progress", line=re.sub(r"\{\w+\}", "{number}", mark), anywhere=anywhere)
        if event := _reads(step, spec, sample):
            found.append(Other(spec, sample, event))
    unplaced = []
    for shape in _shapes(step, texts):
        if any(_reads(step, known.spec, shape.text) for known in found):
            continue
        other = _proposed(step, shape)
        if other is not None:
            found.append(other)
        elif shape.seen >= _OFTEN and _VARIABLE.search(shape.body):
            unplaced.append((-shape.seen, f"{shape.seen} x {_VARIABLE.sub('0', shape.body)[:80]}"))
    return found, [text for _, text in sorted(unplaced, key=lambda each: each[0])[:_UNPLACED]]


def _shapes(step: Dialect, texts: Iterable[str]) -> list[_Shape]:
    """Lines that nobody reads, alike but for what varies, in the order in which they came first."""
    memo = Memo(Scanner(rules_of((step,))))
    seen: dict[str, _Shape | None] = {}
    steps: set[str] = set()
    prefixes = [Mark(prefix).pattern for prefix in step.prefixes]
    block = 0
    for text in texts:
        before = next((match.end() for prefix in prefixes if (match := prefix.match(text))), 0)
        body = text[before:][:_MOST]
        key = _VARIABLE.sub("0", body)
        if key not in seen:
            own = bool(list(read(Sample(line=text), memo)))
            known = own or not body.strip() or bool(SourceReader().feed(f"{text}\n".encode()))
            seen[key] = None if known else _Shape(text, body, before > 0)
            steps |= {key} if own else set()
        block += key in steps
        shape = seen[key]
        if shape is not None:
            shape.seen += 1
            shape.blocks += shape.last != block
            shape.last = block
    return [shape for shape in seen.values() if shape is not None]


def _proposed(step: Dialect, shape: _Shape) -> Other | None:
    """The line by the first words that fit, marked as shortly as it is read."""
    body = shape.body
    if _SETTING.fullmatch(_FOLDERS.sub("", body)):
        return None
    for means, words in _words():
        match = words.search(_FOLDERS.sub("", body))
        if match is None or (means == "done" and shape.seen > _OFTEN) or (means == "progress" and shape.seen < _OFTEN):
            continue
        going_on = means == "evaluated" and shape.seen > _IN_A_ROW * shape.blocks
        word = body.find(re.split(r"\W", match[0].strip())[0])
        for line in _marks(body, max(word, 0)):
            spec = LineSpec(means="evaluating" if going_on else means, line=line, prefixed=shape.prefixed)
            if event := _reads(step, spec, shape.text):
                return Other(spec, shape.text, event)
        return None
    return None


def _marks(text: str, word: int) -> Iterator[str]:
    """The text up to what varies behind its word; where too little stands before that, with the number in it."""
    mark, start = "", 0
    for match in [*_VARIABLE.finditer(text)][:_MOST_VARIABLES]:
        mark += text[start : match.start()].replace("{", "")
        path = "/" in match[0] and not match[0][0].isdigit()
        if match.start() > word and len(re.sub(r"\{\w+\}", "", mark).strip()) >= _LEAST:
            if path:
                yield f"{mark}{{path}}"
            yield mark.rstrip()
        mark += "{word}" if path else "{clock}" if ":" in match[0] else "{number}"
        start = match.end()
    mark += _VARIABLE.split(text[start:])[0]
    if len(re.sub(r"\{\w+\}", "", mark).strip()) >= _LEAST // 2:
        yield mark.rstrip()


def memo_of(dialect: Dialect, spec: LineSpec) -> Memo | None:
    """What reads by this dialect, whose line it is; None where they are none."""
    if any(dialect.problems()) or any(spec.problems()):
        return None
    try:
        return Memo(Scanner(rules_of((dialect,))))
    except ValueError:
        return None


def _reads(step: Dialect, spec: LineSpec, text: str) -> str:
    """The event that it gives of the line; empty where it gives none, or takes a step's line."""
    memo = memo_of(Dialect(name=step.name, prefixes=step.prefixes, lines=(spec,), samples=step.samples), spec)
    if memo is None:
        return ""
    if any(list(read(sample, memo)) for sample in step.samples):
        return ""
    return next((entry.event.kind for entry in read(Sample(line=text), memo)), "")
