"""Megatron's lines around the loop: topology, validation, exits. Milestones and more are data (megatron_setup.yaml).

Most are printed by rank 0 after a barrier, validation by the last rank; forks word them differently.
"""

import re
from collections.abc import Iterator
from typing import Any

from parsers.engine.fields import integer, number, split_fields
from parsers.engine.prefixes import iso_time
from parsers.engine.scan import Line, Rule
from parsers.events import (
    Event,
    ExitReason,
    ProgramExited,
    TopologyLogged,
    ValidationLogged,
)
from parsers.patterns import lazy

_DATETIME = r"datetime:[ ]{0,4}(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,9})?)"
# `[exiting program at iteration 500] datetime: ...`, `... after 1190.03 minutes`, `... after receiving SIGTERM.`,
# in forks other reasons: `... after consuming all available data at iteration 19]`
_EXIT = lazy(r"\[exiting program[ ](?=[^\]]{0,200}(?:\]|$))")
_EXIT_ITERATION = lazy(r"at iteration[ ]{1,4}(\d{1,12})")
_EXIT_MINUTES = lazy(r"after[ ]{1,4}[\d.]{1,30}[ ]minutes")
# `[Detected kill switch at /path/kill. Exiting] datetime: ...`
_KILL_SWITCH = lazy(r"\[?Detected kill switch at")
# `using world size: 64, data-parallel-size: 1, tensor-model-parallel size: 4, pipeline-model-parallel size: 16 `
_WORLD = lazy(r"using world size:[ ]{0,4}(\d{1,7})")
_SIZES = {
    "data_parallel_size": lazy(r"data-parallel[- ]size:[ ]{0,4}(\d{1,7})"),
    "tensor_parallel_size": lazy(r"tensor-model-parallel size:[ ]{0,4}(\d{1,7})"),
    "pipeline_parallel_size": lazy(r"pipeline-model-parallel size:[ ]{0,4}(\d{1,7})"),
    "context_parallel_size": lazy(r"(?<!hierarchical )context-parallel size:[ ]{0,4}(\d{1,7})"),
}
# ` validation loss at iteration 50 | lm loss value: 8.889540E+00 | lm loss PPL: 7.255679E+03 | `
# ` validation loss at iteration 500 on 160-sample draw from validation set | ...`
_VALIDATION = lazy(r"loss at (?:iteration[ ]{1,12}(?P<iteration>\d{1,12})|the end of training)(?P<rest>[^|]{0,200})\|")
# What stands before: `validation`, `valid`, or the name of one set among several, of at most five words
_SET = lazy(r"([\w/.:-]{1,120}(?:[ ][\w/.:-]{1,60}){0,4})[ ]?$")
_DRAW = lazy(r"on[ ]{1,4}(\d{1,12})-sample draw from (\S{1,40}) set")
_FOR = lazy(r"for (\S{1,60}) data")


def read_exit(line: Line) -> Iterator[Event]:
    """The loop ended by itself."""
    match = _EXIT.search(line.text)
    when = re.search(_DATETIME, line.text)
    origin = {**line.origin, "logged_at": iso_time(when[1])} if when else line.origin
    if match:
        words = line.text[match.end() : match.end() + 200].partition("]")[0]
        reached = _EXIT_ITERATION.search(words)
        reason: ExitReason = (
            "iterations" if words.startswith("at iteration")
            else "signal" if "receiving" in words
            else "duration" if _EXIT_MINUTES.search(words)
            else "unknown"
        )  # fmt: skip
        yield ProgramExited(reason=reason, iteration=int(reached[1]) if reached else None, **origin)
    elif _KILL_SWITCH.search(line.text):
        yield ProgramExited(reason="kill_switch", **origin)


def read_topology(line: Line) -> Iterator[Event]:
    """World size and its factors."""
    world = _WORLD.search(line.text)
    if world:
        sizes: dict[str, Any] = {
            name: int(match[1]) for name, form in _SIZES.items() if (match := form.search(line.text))
        }
        yield TopologyLogged(world_size=int(world[1]), **sizes, **line.origin)


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
    Rule("megatron.exit", (b"[exiting program", b"Detected kill switch at"), read_exit),
    Rule("megatron.topology", (b"using world size:",), read_topology),
    Rule(
        "megatron.validation", (b"loss at iteration", b"loss at the end of training"), read_validation, templated=True
    ),
)
