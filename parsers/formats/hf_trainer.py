"""HF Trainer (transformers): metric dicts, tqdm bars, the running-training block, final metrics.

The dict is a Python repr: single quotes, bare nan and inf, and in newer versions the numbers as strings. It stands
behind a bar on the same physical line. Several nodes draw their own bars and print their own final dicts.
"""

from collections.abc import Iterator
from typing import Any

from megatron_monitor.parsers.engine.fields import clock, finite, gibibytes, integer, per_second
from megatron_monitor.parsers.engine.scan import Line, Rule
from megatron_monitor.parsers.events import (
    CheckpointSaveStarted,
    Event,
    TrainerLogged,
    TrainerProgressed,
    TrainerSummary,
)
from megatron_monitor.parsers.formats import TABLES
from megatron_monitor.parsers.formats.megatron import kept
from megatron_monitor.parsers.patterns import lazy

_MAX_BARS = 4000  # of a line: the last bars tell where the training is
_MAX_DICT = 8000
_BLANKS, _LONGEST_NAME = 7, 80  # between a bar's name and its figures; characters of a name
# `{'loss': 1.921, 'learning_rate': 4e-08, 'epoch': 0.0}` at the end of the segment
_DICT = lazy(r"\{'(?:[^{}]{1,8000})\}")
# `'loss': '1.921'`, `'epoch': 0.0`, `'tokens_this_step': 16303`
_PAIR = lazy(r"'([^']{1,80})':[ ]?(?:'([^']{0,80})'|([-+\w.]{1,40}))")
_KEYS = ("'loss'", "'eval_loss'", "'train_runtime'", "'train_loss'", "'grad_norm'")
# ` 25%|##        | 2/8 [03:45<11:17, 112.97s/it]`, `Train:   3%|# | 1/30 [00:09<04:49,  9.97s/it]`, `?it/s`; a notebook
# leaves out what is drawn: ` 25% 2/8 [03:45<11:17, 112.97s/it]`
_BAR = lazy(
    r"\d{1,3}%(?:\|[^|]{0,400}\|)?[ ]{0,4}"
    r"(?P<step>\d{1,12})/(?P<total>\d{1,12})[ ]{1,2}\[(?P<elapsed>[\d:]{4,12})<(?P<left>[\d:?]{1,12}),[ ]{1,4}"
    r"(?P<rate>\d{1,9}(?:\.\d{1,6})?|\?)[ ]?(?P<unit>it/s|s/it)"
)
_MARKS = lazy(r"[\r\n:|%]")  # no name of a bar holds one
_WRITES = "Writing model shards"


def read_dict(line: Line) -> Iterator[Event]:
    """A metric dict, wherever it stands in the line."""
    text = line.text
    if not any(key in text for key in _KEYS):
        return
    for match in _DICT.finditer(text[-_MAX_DICT - 2000 :]):
        if any(key in match[0] for key in _KEYS):
            values = {name: quoted if bare == "" else bare for name, quoted, bare in _PAIR.findall(match[0])}
            yield from _from_values(values, line)


def _from_values(values: dict[str, str], line: Line) -> Iterator[Event]:
    kind: Any = TrainerSummary if "train_runtime" in values else TrainerLogged
    known: dict[str, Any] = {}
    extra: dict[str, float | str] = {}
    for name, text in values.items():
        field, convert = _METRICS.get(name, ("", kept))
        if field in kind.__struct_fields__:
            known[field] = convert(text)
            if field == "step":
                known["max_steps"] = integer(text.partition("/")[2])
        else:
            extra[name] = kept(text)
    if kind is TrainerLogged:
        known["extra"] = extra
    yield kind(**known, **line.origin)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _finite(text: str) -> float | None:
    return None if _number(text) is None else finite(text)


_READ = {"number": _number, "finite": _finite, "integer": integer, "GiB": gibibytes, "it/s": per_second}
_METRICS = {name: (field, _READ[how]) for name, (field, how) in TABLES["hf_metrics"].items()}


def read_bar(line: Line) -> Iterator[Event]:
    """Bars in iterations; bytes, examples and files are not ours. That of the files of a checkpoint is all that
    transformers 5 says of a save where its log level is not changed (modeling_utils.py).
    """
    text, end = line.text[-_MAX_BARS:], 0
    for match in _BAR.finditer(text):
        rate, name = match["rate"], _name_before(text[end : match.start()])
        end = match.end()
        if name == _WRITES:
            yield CheckpointSaveStarted(iteration=None, **line.origin)  # whatever the figures: the rule is templated
            continue
        pace = per_second(rate) if match["unit"] == "it/s" else finite(rate)
        yield TrainerProgressed(
            step=int(match["step"]),
            total=int(match["total"]),
            seconds_per_step=pace,
            elapsed_seconds=clock(match["elapsed"]),
            remaining_seconds=clock(match["left"]) if "?" not in match["left"] else None,
            description=name,
            **line.origin,
        )


def _name_before(text: str) -> str:
    """`Train` of what stands before a bar's figures; empty where no name does."""
    head = text.rstrip(" ")
    if not head.endswith(":") or not 0 < len(text) - len(head) <= _BLANKS:
        return ""
    return _MARKS.split(head[:-1])[-1][-_LONGEST_NAME:].strip()


def read_line(line: Line) -> Iterator[Event]:
    """A segment may hold bars and, behind them, a dict."""
    if "t/s" in line.text or "s/it" in line.text:
        yield from read_bar(line)
    if "{'" in line.text:
        yield from read_dict(line)


RULES: tuple[Rule, ...] = (
    Rule(
        "hf.dict_or_bar",
        (b"%|", b"it/s", b"s/it", b"'loss'", b"'eval_loss'", b"'train_runtime'"),
        read_line,
        templated=True,
    ),
)
