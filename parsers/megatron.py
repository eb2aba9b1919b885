"""The training loop's iteration line of Megatron-LM and its forks (`training_log`), in every age.

One split over `|`, one dictionary look-up a field: fields match by name, unknown ones are kept, any may be missing. A
NaN loss makes its field vanish, so a line without a loss is a finding and no parse error. The unit stands in the label.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from parsers.events import Event, IterationLogged, Malformed
from parsers.fields import integer, number, seconds, split_fields, teraflops
from parsers.scan import Line, Rule

# ` iteration       30/    1000 | ...`, `iteration 12/infinity |`, `iteration=1/1000 |` is Argonne's (argonne.py)
_START = re.compile(r"(?:^|(?<=[^A-Za-z_]))iteration[ ]{1,20}(\d{1,12})[ ]{0,20}/[ ]{0,20}(\d{1,12}|infinity|inf)[ ]{0,4}\|")

_Convert = Callable[[str], Any]


def _ratio(text: str) -> float | None:
    """`35.8%` as 0.358."""
    value = number(text.replace("%", ""))
    return None if value is None else value / 100


def _milliseconds(text: str) -> float | None:
    return seconds(number(text), "ms")


# Printed name -> (attribute, converter). Spellings of all forks; see log-formats for who prints which.
FIELDS: dict[str, tuple[str, _Convert]] = {
    "consumed samples": ("consumed_samples", integer),
    "consumed tokens": ("consumed_tokens", integer),
    "elapsed time per iteration (ms)": ("seconds_per_iteration", _milliseconds),
    "elapsed time per iteration (s)": ("seconds_per_iteration", number),
    "iteration time": ("seconds_per_iteration", number),
    "learning rate": ("learning_rate", number),
    "global batch size": ("global_batch_size", integer),
    "gloabl batch size": ("global_batch_size", integer),  # a fork's misspelling
    "batch size": ("global_batch_size", integer),
    "lm loss": ("lm_loss", number),
    "lm-loss": ("lm_loss", number),
    "lm_loss": ("lm_loss", number),
    "loss scale": ("loss_scale", number),
    "grad norm": ("grad_norm", number),
    "params norm": ("params_norm", number),
    "num zeros": ("num_zeros", number),
    "number of skipped iterations": ("skipped_iterations", integer),
    "number of nan iterations": ("nan_iterations", integer),
    "samples per second": ("samples_per_second", number),
    "samples/sec": ("samples_per_second", number),
    "tokens per gpu per second (tgs)": ("tokens_per_second_per_gpu", number),
    "tokens-per-second-per-gpu": ("tokens_per_second_per_gpu", number),
    "tokens per GPU (tokens/s/GPU)": ("tokens_per_second_per_gpu", number),
    "tokens/sec/GPU": ("tokens_per_second_per_gpu", number),
    "TFLOPs": ("tflops", number),
    "throughput per GPU (TFLOP/s/GPU)": ("tflops", number),
    "approx flops per GPU": ("tflops", teraflops),
    "actual seqlen": ("sequence_length", integer),
    "curriculum seqlen": ("sequence_length", integer),
    "MFU": ("mfu", _ratio),
    "HFU": ("hfu", _ratio),
}
_SECONDS = "elapsed time per iteration (s)"
_LOSS_WORD = re.compile(r"(?:^|[ _-])loss$|_loss$|^loss[ _]", re.IGNORECASE)
_NO_LOSSES = frozenset({"loss scale"})


def _dialect(names: set[str]) -> str:
    """Which fork prints such a line, from the fields that only it prints."""
    if "hip mem usage/free/total/usage_ratio" in names:
        return "primus"
    if "approx flops per GPU" in names or ("samples/sec" in names and "lm_loss" in names):
        return "gpt-neox"
    if "lm-loss" in names or _SECONDS in names:
        return "bigscience"
    if "tokens per gpu per second (tgs)" in names or "actual seqlen" in names:
        return "microsoft"
    if "samples per second" in names or "consumed tokens" in names or "TFLOPs" in names:
        return "microsoft" if "elapsed time per iteration (ms)" in names and "TFLOPs" in names else "bigscience"
    return "megatron-lm"


def iteration_from(
    pairs: Iterator[tuple[str, str]], iteration: int, total: int | None, line: Line, dialect: str | None = None
) -> IterationLogged | None:
    """The event for named fields; None if not one of them is known."""
    values: dict[str, Any] = {}
    losses: dict[str, float] = {}
    extra: dict[str, float | str] = {}
    names: set[str] = set()
    for name, text in pairs:
        known = FIELDS.get(name)
        if known is not None:
            names.add(name)
            value = known[1](text)
            if value is not None:
                values.setdefault(known[0], value)
            elif text:
                extra[name] = text
            continue
        value = number(text)
        if _LOSS_WORD.search(name) and name not in _NO_LOSSES and value is not None:
            losses[name] = value
            names.add(name)
        elif text:
            extra[name] = text if value is None or not _is_plain(text) else value
            names.add(name)
    if not any(name in FIELDS for name in names) and not losses:
        return None
    return IterationLogged(
        iteration=iteration,
        train_iterations=total,
        losses=losses,
        extra=extra,
        dialect=dialect or _dialect(names),
        **values,
        **line.origin,
    )


def _is_plain(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def read_iterations(line: Line) -> Iterator[Event]:
    """Every iteration line that stands in the line; text before and after is tolerated."""
    text = line.text
    starts = list(_START.finditer(text))
    for index, match in enumerate(starts):
        end = starts[index + 1].start() if index + 1 < len(starts) else len(text)
        body = text[match.end() : end]
        before = text[: match.start()] if index == 0 else ""
        pairs = [*split_fields(body), *_leading(before)]
        event = iteration_from(iter(pairs), int(match[1]), _total(match[2]), line)
        if event is not None:
            yield event
        elif body.strip() and "|" in body:
            yield Malformed(rule="megatron.iteration", text=text.strip()[:500], **line.origin)


def _leading(before: str) -> Iterator[tuple[str, str]]:
    """Fields before the iteration, as gpt-neox prints: ` samples/sec: 206.693 | iteration ...`."""
    if "samples/sec" in before:
        yield from ((name, value) for name, value in split_fields(before) if name == "samples/sec")


def _total(text: str) -> int | None:
    return int(text) if text.isdigit() else None


RULES: tuple[Rule, ...] = (Rule("megatron.iteration", (b"iteration ",), read_iterations),)
