"""What trainers call things -> our names, guessed for a person to correct. Pure."""

from __future__ import annotations

import re

STEP = re.compile(
    r"(?:^|[^A-Za-z])(?:global_?step|num_updates|iteration|iter|step|update|upd|batch|it)s?"
    r"['\"]?[ ]*[:=#\[(]?[ ]*['\"]?$",
    re.IGNORECASE,
)
"""What stands before the number of a step."""
_STEP_NAME = re.compile(r"^(?:.*[/_ .])?(?:global_?step|num_updates|iteration|iter|step|update|batch)s?$")

# The first that fits; a name is compared in small letters
_GUESSES: tuple[tuple[str, str], ...] = (
    (r"grad.*norm|gnorm|global_norm", "grad_norm"),
    (r"^(?:lr|learning.?rate.*|.*/lr.*)$", "learning_rate"),
    (r"loss.?scale", "loss_scale"),
    (r"^(?:val|valid|eval|test)", ""),
    (r"^(?:train[/_ ]|lm.?|reduced_train_|total_?)?(?:loss|ce.?loss|nll)(?:[/_ ]train)?$|^ce$|train/loss", "lm_loss"),
    (r"loss", "losses"),
    (r"tok.*(?:gpu|device)|^tps$|^tgs$", "tokens_per_second_per_gpu"),
    (r"tok.*(?:/s|per.?s|sec)|^wps$", "tokens_per_second"),
    (r"^wpb$", "tokens_per_iteration"),
    (r"sampl.*(?:/s|per.?s|sec)", "samples_per_second"),
    (r"consumed.*sampl|samples.?seen|num_samples", "consumed_samples"),
    (r"consumed.*tok|tokens.?seen|total.?tokens", "consumed_tokens"),
    (r"global.?batch|^gbs$|^bsz$", "global_batch_size"),
    (r"tflop", "tflops"),
    (r"^mfu|/mfu", "mfu"),
    (r"elapsed(?!.*(?:iter|step))|^(?:train|total|run|wall)(?:ing)?_?time$", "elapsed_seconds"),
    (r"data.*time|time.*data|fetch|^eta$|remaining|train_wall|^wall|cpu|host", ""),
    (r"(?:it|step|batch)(?:e?s)?/s|(?:steps?|batch(?:es)?|iter(?:ation)?s?).?per.?sec", "seconds_per_iteration it/s"),
    (r"(?:step|iter|batch).*(?:time|sec|ms)|(?:time|sec|ms).*(?:step|iter)|^seconds?$|^sec$|^dt$|^time$",
     "seconds_per_iteration"),
    (r"(?:max|peak).*reserved", "max_reserved"), (r"max.*alloc|peak.*mem", "max_allocated"),
    (r"reserved", "reserved"), (r"mem|alloc|vram", "allocated"),
)  # fmt: skip
_MEMORY = ("allocated", "reserved", "max_allocated", "max_reserved")
_MEBIBYTES = 2000  # a number above it is no GiB of one GPU
_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")


def is_step(name: str) -> bool:
    """Whether a name is what a step is called by."""
    return _STEP_NAME.match(name.lower()) is not None and not re.search(r"tim|sec|dur", name.lower())


def guess(name: str, value: str) -> str | None:
    """Our name with its unit; None where nothing is known."""
    small = name.lower()
    if is_step(name):
        return None
    target = next((target for pattern, target in _GUESSES if re.search(pattern, small)), "")
    if target in ("seconds_per_iteration", "elapsed_seconds"):
        milliseconds = re.search(r"(?:^|[_( ])ms\b|_ms$|\(ms\)", small) or re.search(r"\d[ ]?ms\b", value)
        return f"{target} ms" if milliseconds else target
    if target in _MEMORY:
        return f"{target} {_unit_of_memory(small, value)}"
    if target == "mfu" and value.endswith("%"):
        return "mfu %"
    return target or None


def _unit_of_memory(small: str, value: str) -> str:
    if re.search(r"\d[ ]?[KMGT]i?B", value):
        return "printed"
    match = _NUMBER.match(value)
    amount = float(match[0].replace(",", "")) if match else 0.0
    if amount > _MEBIBYTES * 1024**2 / 10:
        return "B"
    return "MiB" if re.search(r"mi?b", small) or amount > _MEBIBYTES else "GiB"
