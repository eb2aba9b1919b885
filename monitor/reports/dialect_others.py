"""Of a log's other lines those that tell of a save, an evaluation or the end, by their words, as lines of a dialect;
and what could not be placed. Pure.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from parsers.declared.compiled import rules_of
from parsers.declared.marks import Mark
from parsers.declared.schema import Dialect, LineSpec, Means, Sample
from parsers.engine.memo import Memo
from parsers.engine.scan import Scanner
from parsers.reader import SourceReader
from parsers.samples import read

_THING = r"(?:checkpoint|ckpt|model|weights|state)"
_WORDS: tuple[tuple[Means, re.Pattern[str]], ...] = (
    (
        "saved",
        re.compile(rf"\b(?:saved|wrote)\b.{{0,80}}{_THING}|{_THING}.{{0,80}}\bsaved\b", re.IGNORECASE),
    ),
    ("saving", re.compile(rf"\b(?:saving|writing)\b.{{0,80}}{_THING}", re.IGNORECASE)),
    ("evaluating", re.compile(r"\b(?:evaluating|validating)\b|\b(?:run|start)\w{0,4} (?:eval|valid)", re.IGNORECASE)),
    ("evaluated", re.compile(r"\b(?:eval|val|valid|validation|evaluation)(?:\b|_\w).{0,40}\d", re.IGNORECASE)),
    ("done", re.compile(r"\btraining (?:is |has )?(?:done|finished|complete)|\bfinished training", re.IGNORECASE)),
)
"""What a line means, by its words: the first that fit."""
_VARIABLE = re.compile(r"\S{0,200}/\S{1,400}|(?<![A-Za-z])[-+]?\d[\d,.:]*")
_LEAST = 8  # characters of text that mark a line
_MOST = 200  # of a line
_UNPLACED = 5  # shapes that are listed
_OFTEN = 3  # lines of one shape that are worth a question


class Other(NamedTuple):
    """A line beside the steps, as it is proposed."""

    spec: LineSpec
    sample: str
    event: str


def others(step: Dialect, texts: Iterable[str]) -> tuple[list[Other], list[str]]:
    """(lines to propose, what repeats and could not be placed). Lines that are read already are neither."""
    memo = Memo(Scanner(rules_of((step,))))
    found: dict[str, Other] = {}
    unplaced: Counter[str] = Counter()
    seen: dict[str, bool] = {}
    prefixes = [Mark(prefix).pattern for prefix in step.prefixes]
    for text in texts:
        before = next((match.end() for prefix in prefixes if (match := prefix.match(text))), 0)
        body = text[before:][:_MOST]
        shape = _VARIABLE.sub("0", body)
        if shape not in seen:
            seen[shape] = not body.strip() or _is_read(text, memo)
            other = None if seen[shape] else _proposed(step, text, body)
            if other is not None and not any(_reads(step, known.spec, text) for known in found.values()):
                found[other.spec.line] = other
                seen[shape] = True
        if not seen[shape] and _VARIABLE.search(body):
            unplaced[shape] += 1
    rest = [f"{count} x {shape[:80]}" for shape, count in unplaced.most_common(_UNPLACED) if count >= _OFTEN]
    return list(found.values()), rest


def _is_read(text: str, memo: Memo) -> bool:
    """Whether the steps' own dialect, or the monitor's rules, read it."""
    return bool(list(read(Sample(line=text), memo)) or SourceReader().feed(f"{text}\n".encode()))


def _proposed(step: Dialect, text: str, body: str) -> Other | None:
    """The line by the first words that fit, marked as shortly as it is read."""
    for means, words in _WORDS:
        if words.search(body):
            for line in _marks(body):
                spec = LineSpec(means=means, line=line, prefixed=len(body) < len(text))
                if event := _reads(step, spec, text):
                    return Other(spec, text, event)
            return None
    return None


def _marks(text: str) -> Iterator[str]:
    """The text up to what varies; where too little stands before that, with the number in it."""
    match = _VARIABLE.search(text)
    lead = text if match is None else text[: match.start()]
    if match is not None and "/" in match[0] and len(lead.strip()) >= _LEAST:
        yield f"{lead}{{path}}"
    if len(lead.strip()) >= _LEAST:
        yield lead.rstrip()
    if match is not None and "/" not in match[0]:
        behind = text[match.end() :]
        following = _VARIABLE.search(behind)
        yield f"{lead}{{number}}{behind if following is None else behind[: following.start()].rstrip()}"


def _reads(step: Dialect, spec: LineSpec, text: str) -> str:
    """The event that it gives of the line; empty where it gives none, or takes a step's line."""
    if list(spec.problems()):
        return ""
    try:
        dialect = Dialect(name=step.name, prefixes=step.prefixes, lines=(spec,), samples=step.samples)
        memo = Memo(Scanner(rules_of((dialect,))))
    except ValueError:
        return ""
    if any(list(read(sample, memo)) for sample in step.samples):
        return ""
    return next((entry.event.kind for entry in read(Sample(line=text), memo)), "")
