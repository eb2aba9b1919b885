"""Reads HF Trainer's metric dicts, tqdm bars, block of training settings and final metrics (transformers).

The dict is a Python repr: single quotes, bare nan and inf, and in newer versions numbers as strings. It follows a bar
on the same physical line. Each node draws its own bar and prints its own final dict.
"""

from collections.abc import Iterator
from typing import Any

from megatron_monitor.parsers.declared import TABLES
from megatron_monitor.parsers.engine.fields import clock, finite, gibibytes, integer, per_second, real
from megatron_monitor.parsers.engine.scan import Line, Rule
from megatron_monitor.parsers.engine.spans import Spanned
from megatron_monitor.parsers.events import (
    CheckpointSaveStarted,
    TrainerLogged,
    TrainerProgressed,
    TrainerSummary,
)
from megatron_monitor.parsers.patterns import lazy

_MAX_BARS = 4000  # maximum characters of a line that are read: the last bars have the current state
_MAX_DICT = 8000
_BLANKS, _LONGEST_NAME = 7, 80  # blanks between a bar's name and its figures; characters of a name
# `{'loss': 1.921, 'learning_rate': 4e-08, 'epoch': 0.0}` at the end of the segment
_DICT = lazy(r"\{'(?:[^{}]{1,8000})\}")
# `'loss': '1.921'`, `'epoch': 0.0`, `'tokens_this_step': 16303`
_PAIR = lazy(r"'([^']{1,80})':[ ]?(?:'([^']{0,80})'|([-+\w.]{1,40}))")
_KEYS = lazy("'(?:loss|eval_loss|train_runtime|train_loss|grad_norm)'")
# ` 25%|##        | 2/8 [03:45<11:17, 112.97s/it]`, `Train:   3%|# | 1/30 [00:09<04:49,  9.97s/it]`, `?it/s`; a notebook
# omits the drawing: ` 25% 2/8 [03:45<11:17, 112.97s/it]`
_BAR = lazy(
    r"\d{1,3}%(?:\|[^|]{0,400}\|)?[ ]{0,4}"
    r"(?P<step>\d{1,12})/(?P<total>\d{1,12})[ ]{1,2}\[(?P<elapsed>[\d:]{4,12})<[\d:?]{1,12},[ ]{1,4}"
    r"(?P<rate>\d{1,9}(?:\.\d{1,6})?|\?)[ ]?(?P<unit>it/s|s/it)"
)
_MARKS = lazy(r"[\r\n:|%]")  # a bar's name contains none of these
_WRITES = "Writing model shards"


def read_dict(line: Line) -> Iterator[Spanned]:
    """Read a metric dict anywhere in the line."""
    text = line.text
    for match in _DICT.finditer(text, max(0, len(text) - _MAX_DICT - 2000)):
        if _KEYS.search(text, *match.span()):
            yield _spanned(
                {pair[1]: pair.span(pair.lastindex or 0) for pair in _PAIR.finditer(text, *match.span())}, line
            )


def _spanned(places: dict[str, tuple[int, int]], line: Line) -> Spanned:
    # `include_num_input_tokens_seen` adds the time so far to each step's loss; the final dict has no step loss
    kind: Any = TrainerSummary if "train_runtime" in places and "loss" not in places else TrainerLogged
    known = line.origin_spans
    for name, at in places.items():
        field, convert = _METRICS.get(name, ("", integer))
        if field not in kind.__struct_fields__:
            continue
        if field == "step" and (bar := line.text.find("/", *at)) >= 0:
            known |= {"step": line.span((at[0], bar), convert), "max_steps": line.span((bar + 1, at[1]), integer)}
        else:
            known[field] = line.span(at, convert)
    return Spanned(kind, known)


def _finite(text: str) -> float | None:
    return None if real(text) is None else finite(text)


_READ = {"number": real, "finite": _finite, "integer": integer, "GiB": gibibytes, "it/s": per_second}
_METRICS = {name: (field, _READ[how]) for name, (field, how) in TABLES["hf_metrics"].items()}


def read_bar(line: Line) -> Iterator[Spanned]:
    """Read bars in iterations. Bars in bytes, examples and files are ignored, except the bar of a checkpoint's files:
    transformers 5 reports a save only by it unless its log level is changed (modeling_utils.py).
    """
    end = max(0, len(line.text) - _MAX_BARS)
    for match in _BAR.finditer(line.text, end):
        start, stop = _name_before(line.text, end, match.start())
        end = match.end()
        if line.text[start:stop] == _WRITES:
            yield Spanned(CheckpointSaveStarted, {"iteration": None} | line.origin_spans)  # for all figures
            continue
        found = {
            "step": line.span(match.span("step"), int),
            "total": line.span(match.span("total"), int),
            "seconds_per_step": line.span(match.span("rate"), per_second if match["unit"] == "it/s" else finite),
            "elapsed_seconds": line.span(match.span("elapsed"), clock),
            "description": line.span((start, stop), str),
        }
        yield Spanned(TrainerProgressed, found | line.origin_spans)


def _name_before(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the part before a bar's figures where its name is, or nothing if there is no name."""
    head = text[start:end].rstrip(" ")
    if not head.endswith(":") or not 0 < end - start - len(head) <= _BLANKS:
        return start, start
    name = _MARKS.split(head[:-1])[-1][-_LONGEST_NAME:]
    stop = start + len(head) - 1 - len(name) + len(name.rstrip())
    return stop - len(name.strip()), stop


def read_line(line: Line) -> Iterator[Spanned]:
    """Read the bars of a segment and the dict after them."""
    text = line.text
    if "%" in text and ("t/s" in text or "s/it" in text):
        yield from read_bar(line)
    if "{'" in text:
        yield from read_dict(line)


RULES: tuple[Rule, ...] = (
    Rule(
        "hf.dict_or_bar",
        (b"%|", b"it/s", b"s/it", b"'loss'", b"'eval_loss'", b"'train_runtime'"),
        read_line,
        by_shape=True,
        any_width=True,
    ),
)
