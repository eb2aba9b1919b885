"""Megatron's validation, printed by the last rank. What rank 0 prints around the loop after a barrier is data
(megatron_launch.yaml, megatron_setup.yaml); forks word all of it differently.
"""

import re
from collections.abc import Iterator

from megatron_monitor.parsers.engine.fields import integer, number, split_fields
from megatron_monitor.parsers.engine.scan import Line, Rule
from megatron_monitor.parsers.events import Event, ValidationLogged
from megatron_monitor.parsers.patterns import lazy

# ` validation loss at iteration 50 | lm loss value: 8.889540E+00 | lm loss PPL: 7.255679E+03 | `
# ` validation loss at iteration 500 on 160-sample draw from validation set | ...`
_VALIDATION = lazy(r"loss at (?:iteration[ ]{1,12}(?P<iteration>\d{1,12})|the end of training)(?P<rest>[^|]{0,200})\|")
# What stands before: `validation`, `valid`, or the name of one set among several, of at most five words
_SET = lazy(r"([\w/.:-]{1,120}(?:[ ][\w/.:-]{1,60}){0,4})[ ]?$")
_DRAW = lazy(r"on[ ]{1,4}(\d{1,12})-sample draw from (\S{1,40}) set")
_FOR = lazy(r"for (\S{1,60}) data")


def _data_set(match: re.Match[str], draw: re.Match[str] | None) -> str:
    """What is named behind the words counts before what stands in front of them."""
    data = _FOR.search(match["rest"] or "")
    behind = draw[2] if draw else data[1] if data else None
    if behind and behind not in ("validation", "val"):
        return behind
    before = _SET.search(match.string[max(0, match.start() - 200) : match.start()].lstrip("-| "))
    named = before[1].strip() if before else ""
    return "validation" if named in ("valid", "") else named


def read_validation(line: Line) -> Iterator[Event]:
    """A validation result, of one set among several in BigScience's fork."""
    text = line.text
    match = _VALIDATION.search(text)
    if not match:
        return
    losses: dict[str, float] = {}
    perplexities: dict[str, float] = {}
    for name, value in split_fields(text[match.end() :]):
        figure = number(value)
        if figure is None:
            continue
        if name.endswith(" value"):
            losses[name[: -len(" value")]] = figure
        elif name.endswith(" PPL"):
            perplexities[name[: -len(" PPL")]] = figure
    if not losses and not perplexities and "loss" not in text[match.end() :]:
        return
    draw = _DRAW.search(match["rest"] or "")
    yield ValidationLogged(
        iteration=integer(match["iteration"]) if match["iteration"] else None,
        dataset=_data_set(match, draw),
        losses=losses,
        perplexities=perplexities,
        samples=int(draw[1]) if draw else None,
        **line.origin,
    )


RULES: tuple[Rule, ...] = (
    Rule("megatron.validation", (b"loss at iteration", b"loss at the end of training"), read_validation, by_shape=True),
)
