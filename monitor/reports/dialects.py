"""Proposes a dialect for lines that nobody reads: those that repeat with a growing number, their names and values.

Lines that are alike but for their numbers have one shape. Of the shape whose first growing number has the most lines
the names are guessed at by what trainers call them. A proposal is for a person to correct. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

from parsers.engine.prefixes import strip_prefixes
from parsers.events import ANSI

_NUMBER = re.compile(r"(?<![A-Za-z0-9_.])[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?[KMBT]?")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?|\d\d/\d\d/\d{4} \d\d:\d\d:\d\d")
_PAIR = re.compile(r"([A-Za-z][\w/.()\[\]%-]*(?: (?:in|per) \w+)?)['\"]?[ ]*([:=])[ ]*['\"]?"
                   r"([-+]?(?:\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?|nan|inf)[A-Za-z%]*)")  # fmt: skip
_CLOCK = re.compile(rf"{_TIME.pattern}|\b\d{{1,2}}:\d\d:\d\d(?:[.,]\d+)?")
_LEAST = 3  # lines that make a step line
_GROWS, _GROWS_BY_NAME = 0.9, 0.5  # of the lines
_STEP = re.compile(r"(?:step|iter(?:ation)?|update|batch)s?['\"]?[ ]*[:=#\[]?[ ]*$", re.IGNORECASE)
_PAIRS = 2  # names with values beside the step
_MOST = 4000  # characters of a line that are looked at
_SHAPES = 2000

# What trainers call it -> ours, the first that fits; a name is compared in small letters
_GUESSES: tuple[tuple[str, str], ...] = (
    (r"^(?:.*[/_ ])?(?:global_?step|num_updates|iteration|iter|step|update|batch)s?$", "step"),
    (r"grad.*norm|gnorm", "grad_norm"),
    (r"^(?:lr|learning.?rate.*|.*/lr.*)$", "learning_rate"),
    (r"loss.?scale", "loss_scale"),
    (r"^(?:train/|lm.?|reduced_train_|total_?)?(?:loss|ce.?loss|nll)(?:/train)?$|^ce$", "lm_loss"),
    (r"loss", "losses"),
    (r"tok.*(?:gpu|device)|^tps$|^tgs$", "tokens_per_second_per_gpu"),
    (r"tok.*(?:/s|per.?s|sec)|^wps$", "tokens_per_second"),
    (r"sampl.*(?:/s|per.?s|sec)", "samples_per_second"),
    (r"consumed.*sampl|samples.?seen|num_samples", "consumed_samples"),
    (r"consumed.*tok|tokens.?seen|total.?tokens", "consumed_tokens"),
    (r"global.?batch|^gbs$|^bsz$", "global_batch_size"),
    (r"tflop", "tflops"),
    (r"^mfu|/mfu", "mfu"),
    (r"elapsed|wall(?!.*step)", "elapsed_seconds"),
    (r"(?:step|iter).*(?:time|sec|ms)|(?:time|sec|ms).*(?:step|iter)|^seconds?$|^sec$|^dt$|^time$",
     "seconds_per_iteration"),
    (r"(?:it|step|batch)(?:e?s)?/s|steps?.?per.?sec|^ups$", "seconds_per_iteration it/s"),
    (r"max.*reserved", "max_reserved"), (r"max.*alloc|peak.*mem", "max_allocated"),
    (r"reserved", "reserved"), (r"mem|alloc|vram", "allocated"),
    (r"^epoch$", "epoch"),
)  # fmt: skip


def proposed(raw: Iterable[bytes], name: str) -> str | None:
    """The YAML of a dialect; None if no line repeats with a growing number and a name beside it."""
    best = _step_lines(raw)
    if best is None:
        return None
    lines, place = best
    sample = lines[-1]
    prefix, body = _prefix(sample)
    shift = len(sample) - len(body)
    start = _numbers(sample)[place].start() - shift
    growing = _NUMBER.match(body, start) if start >= 0 else None
    if growing is None:
        return None
    mark, rest, inside = _mark(body, growing)
    pairs = _PAIR.findall(rest)
    assign = pairs[0][1] if pairs else ":"
    return _written(name, prefix, mark, rest, pairs, assign, sample, growing[0], inside)


def _step_lines(raw: Iterable[bytes]) -> tuple[list[str], int] | None:
    """The last lines of the shape that repeats most with a number that grows, and which of its numbers that is."""
    shapes: dict[str, tuple[list[list[str]], list[str], int]] = {}
    for data in raw:
        for part in data.decode("utf-8", "replace").rstrip("\n").split("\r"):
            text = strip_prefixes(ANSI.sub("", part[:_MOST]))[1].rstrip()
            if len(_PAIR.findall(text)) < _PAIRS:
                continue
            shape = re.sub(r"\s+", " ", _NUMBER.sub("0", _CLOCK.sub("T", text)))
            if shape not in shapes and len(shapes) >= _SHAPES:
                continue
            values, kept, seen = shapes.get(shape, ([], [], 0))
            values.append([match[0] for match in _numbers(text)])
            kept.append(text)
            shapes[shape] = (values[-200:], kept[-3:], seen + 1)
    candidates = []
    for values, kept, seen in shapes.values():
        place = _growing(values, kept[-1]) if seen >= _LEAST else None
        known = sum(_guess(name, value) is not None for name, _, value in _PAIR.findall(kept[-1]))
        if place is not None and known:
            candidates.append((seen * known, kept, place))
    return max(candidates, key=lambda item: item[0])[1:] if candidates else None


def _growing(rows: Sequence[Sequence[str]], text: str) -> int | None:
    """The first whole number of the lines that grows from line to line; one that is called a step may do so less often,
    where launches begin anew or two write at once.
    """
    places = [match.start() for match in _numbers(text)]
    for place in range(min(len(places), *map(len, rows))):
        column = [row[place].replace(",", "") for row in rows]
        if not all(value.isdigit() and len(value) < 10 for value in column):
            continue
        numbers = [int(value) for value in column]
        steps = [after - before for before, after in pairwise(numbers)]
        share = _GROWS_BY_NAME if _STEP.search(text[: places[place]]) else _GROWS
        if len(set(numbers)) >= _LEAST and sum(step > 0 for step in steps) >= share * len(steps):
            return place
    return None


def _numbers(text: str) -> list[re.Match[str]]:
    """The numbers of a line that are no part of a time."""
    times = [match.span() for match in _CLOCK.finditer(text)]
    return [match for match in _NUMBER.finditer(text) if not any(a <= match.start() < b for a, b in times)]


def _prefix(text: str) -> tuple[str, str]:
    """The text of a logger before the line, as a mark, and the line behind it."""
    match = _TIME.search(text[:80])
    if match is None:
        return "", text
    before = text[: match.start()]
    behind = text[match.end() :]
    glue = re.match(r"[\]\s|:-]*(?:\[?\b(?:INFO|DEBUG|WARNING)\b\]?[\s|:-]*)?", behind)
    tail = glue[0] if glue else ""
    return f"{before}{{time}}{tail}", behind[len(tail) :]


def _mark(body: str, growing: re.Match[str]) -> tuple[str, str, bool]:
    """(the mark up to the step number, what follows, whether something stands before it that is left out)."""
    start = max(body.rfind(cut, 0, growing.start()) for cut in ("|", ", ", " - ", "{", "  ")) + 1
    lead = body[: growing.start()] if start <= 1 or len(_PAIR.findall(body[: growing.start()])) == 0 else ""
    lead = lead or body[start : growing.start()].lstrip()
    short = lead[lead.rfind("] ") + 2 :] if "] " in lead else lead
    lead = short if len(short.strip()) >= _LEAST else lead
    mark = re.sub(r" {2,}", "  ", re.sub(r"\d+", "{number}", lead)) + "{step}"
    rest = body[growing.end() :]
    total = re.match(r"\s*/\s*\d+", rest)
    if total:
        mark += re.sub(r"\d+", "{total}", total[0])
        rest = rest[total.end() :]
    tail = re.match(r"[\s\]\)|,;:-]+", rest)
    if tail and tail[0].strip():
        mark, rest = mark + tail[0].rstrip(), rest[len(tail[0].rstrip()) :]
    return mark, rest, not body.lstrip().startswith(lead)


def _separator(rest: str) -> str:
    for text in (" | ", "|", " - ", ", ", "; ", ";", ",", "  "):
        if rest.count(text) >= 2:
            return text.strip() or text
    return " "


def _guess(name: str, value: str) -> str | None:
    small = name.lower()
    for pattern, target in _GUESSES:
        if re.search(pattern, small):
            if target == "step":
                return None
            if target == "seconds_per_iteration" and re.search(r"(?:^|[_( ])ms\b|_ms$|\(ms\)", small):
                return "seconds_per_iteration ms"
            if target in ("allocated", "reserved", "max_allocated", "max_reserved"):
                unit = "printed" if re.search(r"[KMGT]i?B", value) else "MiB" if re.search(r"mi?b", small) else "GiB"
                return f"{target} {unit}"
            return f"{target} %" if target == "mfu" and value.endswith("%") else target
    return None


def _written(
    name: str, prefix: str, mark: str, rest: str, pairs: Sequence[tuple[str, str, str]], assign: str, sample: str,
    step: str, inside: bool,
) -> str:  # fmt: skip
    out = [
        "# Proposed from a log: correct it, then check it (`dialects:` in the configuration, check-config).",
        "# Names that mean nothing to the monitor are left out below; targets and units: docs/dialects.md.",
        f"name: {name}",
        'about: "what prints these lines"',
    ]
    if prefix:
        out.append(f"prefixes: [{_quoted(prefix)}]")
    fields, given = [], [f"iteration: {step.replace(',', '')}"]
    unknown = []
    taken: set[str] = set()
    for field, _, value in pairs:
        target = _guess(field, value)
        if target is None or (target in taken and target != "losses"):
            unknown.append(field)
            continue
        taken.add(target)
        fields.append(f"  {_quoted(field)}: {target}")
        if target in ("lm_loss", "grad_norm") and re.fullmatch(r"[-+\d.eE]+", value):
            given.append(f"{target}: {float(value)!r}")
    out += ["fields:", *fields] if fields else []
    if unknown:
        out.append(f"  # not guessed: {', '.join(unknown[:30])}")
    out += [
        "lines:",
        "  - means: step",
        f"    line: {_quoted(mark)}",
        *(["    anywhere: true"] if inside else []),
        f"    separator: {_quoted(_separator(rest))}",
        f"    assign: {_quoted(assign)}",
        "samples:",
        f"  - line: {_quoted(sample)}",
        f"    gives: {{{', '.join(given)}}}",
    ]
    return "\n".join(out) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
