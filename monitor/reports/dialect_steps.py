"""Which number of lines that are alike is the step, and what it counts: a run's steps, an epoch's, or epochs. Pure."""

import re
from collections.abc import Sequence
from itertools import pairwise
from statistics import median_low
from typing import NamedTuple

from megatron_monitor.parsers.formats.unread import EPOCH_NAME, STEP_NAME

STEP = re.compile(rf"{STEP_NAME}$|%\|[^|]*\|[ ]*$", re.IGNORECASE)
"""What stands before the number of a step."""
_EPOCH = re.compile(rf"{EPOCH_NAME}$", re.IGNORECASE)
_OF = re.compile(r"\s*(?:/|of)\s*")
LEAST = 3  # lines that make a step line
_GROWS, _GROWS_BY_NAME = 0.9, 0.5  # of the lines
_EXPLAINED = 0.8  # of the times that a number begins anew


class Count(NamedTuple):
    """Places are those of a line's numbers."""

    step: int
    why: str
    epoch: int | None = None
    """Where the epoch stands, if the step is one of an epoch."""
    from_one: bool = False
    """The first epoch is 1."""
    length: int | None = None
    """Steps of an epoch, by the greatest that was seen; None where the lines print it."""
    anew: bool = False
    """The number begins anew, as an epoch's does, and the line does not say in which."""
    epochs: bool = False
    """The number is that of an epoch."""


class Row(NamedTuple):
    """A line's numbers: (text, start, end) of each."""

    text: str
    numbers: Sequence[tuple[str, int, int]]


def count_of(rows: Sequence[Row]) -> Count | None:
    """How the lines count; None if no number is a step. In one line or two it is the one that is called so."""
    last = rows[-1]
    width = min(len(row.numbers) for row in rows)
    named = [place for place in range(width) if STEP.search(last.text[: last.numbers[place][1]])]
    if len(rows) < LEAST:
        return _guess(last, named, len(rows))
    columns = {place: numbers for place in range(width) if (numbers := _column(rows, place))}
    epoch = next((place for place in columns if _EPOCH.search(last.text[: last.numbers[place][1]])), None)
    epochs = columns.get(-1 if epoch is None else epoch, [0] * len(rows))
    found = [
        (bool(_falls(numbers)), place not in named, place)
        for place, numbers in columns.items()
        if place != epoch
        and not is_total(last, place)
        and _grows(epochs, numbers, _GROWS_BY_NAME if place in named else _GROWS)
    ]
    if found:
        step = min(found)[2]  # a number that never falls is the step before one that does
        return _count(last, step, columns[step], epoch, epochs)
    if epoch is None or not _grows([0] * len(rows), epochs, _GROWS_BY_NAME):
        return None
    return Count(epoch, f"an epoch: no other number grows, {_span(epochs)}", epochs=True)


def _guess(last: Row, named: Sequence[int], lines: int) -> Count | None:
    good = next((place for place in named if _whole(last.numbers[place][0])), None)
    why = f"a guess by its name: the log has {lines} such line{'s' if lines > 1 else ''}"
    return Count(good, why) if good is not None else None


def _count(last: Row, step: int, numbers: Sequence[int], epoch: int | None, epochs: Sequence[int]) -> Count:
    """What the number that grows counts."""
    why, falls, total = f"the number that grows, {_span(numbers)}", _falls(numbers), is_total(last, step + 1)
    by_epochs = sum(epochs[at] > epochs[at - 1] for at in falls) >= _EXPLAINED * len(falls)
    only = len(set(epochs)) == 1 and total
    if epoch is not None and ((falls and by_epochs) or only):
        first = min(epochs)
        ends_so = is_total(last, epoch + 1) and str(max(epochs)) == _text(last, epoch + 1)
        from_one = first == 1 or (first > 1 and ends_so)
        return Count(step, why, epoch, from_one, None if total else max(numbers) + _stride(numbers))
    ends = [numbers[at - 1] for at in falls]
    planned = int(_text(last, step + 1)) if total else max(ends, default=0)
    complete = sum(end + _stride(numbers) >= planned for end in ends) >= _EXPLAINED * len(ends)
    return Count(step, why, anew=complete and len(ends) >= 2 - total)


def is_total(row: Row, place: int) -> bool:
    """Whether this number stands behind another one as its total: `3/100`, `3 of 100`."""
    if not 0 < place < len(row.numbers):
        return False
    (_, _, end), (text, start, _) = row.numbers[place - 1], row.numbers[place]
    return _whole(text) and _OF.fullmatch(row.text[end:start]) is not None


def _column(rows: Sequence[Row], place: int) -> list[int]:
    """The whole numbers of this place; nothing where one of them is none."""
    texts = [row.numbers[place][0] for row in rows]
    return [int(text.replace(",", "")) for text in texts] if all(map(_whole, texts)) else []


def _grows(epochs: Sequence[int], numbers: Sequence[int], share: float) -> bool:
    """Whether they grow from line to line of one epoch, in so great a share of the lines."""
    inside = [after > before for at, (before, after) in enumerate(pairwise(numbers)) if epochs[at] == epochs[at + 1]]
    return len(set(numbers)) >= LEAST and bool(inside) and sum(inside) >= share * len(inside)


def _falls(numbers: Sequence[int]) -> list[int]:
    return [at + 1 for at, (before, after) in enumerate(pairwise(numbers)) if after < before]


def _stride(numbers: Sequence[int]) -> int:
    return median_low([after - before for before, after in pairwise(numbers) if after > before] or [1])


def _span(numbers: Sequence[int]) -> str:
    return f"{numbers[0]} to {numbers[-1]} in {len(numbers)} lines"


def _text(row: Row, place: int) -> str:
    return row.numbers[place][0].replace(",", "")


def _whole(text: str) -> bool:
    return text.replace(",", "").isdigit() and len(text) < 12
