"""Argonne's fork of Megatron-DeepSpeed prints `key=value` pieces (training_log).

`iteration=1/1000 | consumed_samples=768 | elapsed_time_per_iteration_ms=12345.6 | lm_loss=11.2 | ... |`
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from parsers.events import Event
from parsers.megatron import iteration_from
from parsers.scan import Line, Rule

_START = re.compile(r"(?:^|(?<=[^A-Za-z_]))iteration=[ ]{0,20}(\d{1,12})[ ]{0,20}/[ ]{0,20}(\d{1,12})[ ]{0,4}\|")

# Its names -> Megatron's; what is not here is Megatron's name with underscores for blanks.
_NAMES = {
    "elapsed_time_per_iteration_ms": "elapsed time per iteration (ms)",
    "elapsed_time_per_iteration": "elapsed time per iteration (s)",
    "elapsed_time_per_iteration_s": "elapsed time per iteration (s)",
    "learning_rate": "learning rate",
    "lr": "learning rate",
    "global_batch_size": "global batch size",
    "gbs": "global batch size",
    "lm_loss": "lm loss",
    "loss": "lm loss",
    "loss_scale": "loss scale",
    "grad_norm": "grad norm",
    "params_norm": "params norm",
    "num_zeros": "num zeros",
    "actual_seqlen": "actual seqlen",
    "number_of_skipped_iterations": "number of skipped iterations",
    "number_of_nan_iterations": "number of nan iterations",
    "consumed_samples": "consumed samples",
    "consumed_tokens": "consumed tokens",
    "samples_per_second": "samples per second",
    "samples_per_sec": "samples per second",
    "tokens_per_gpu_per_second_tgs": "tokens per gpu per second (tgs)",
    "tgs": "tokens per gpu per second (tgs)",
    "TFLOPs": "TFLOPs",
    "TFLOPS": "TFLOPs",
    "tflops": "TFLOPs",
}


def read_iteration(line: Line) -> Iterator[Event]:
    """The iteration line."""
    match = _START.search(line.text)
    if match:
        pairs = _pairs(line.text[match.end() :])
        event = iteration_from(pairs, int(match[1]), int(match[2]), line, "argonne")
        if event is not None:
            yield event


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for piece in text.split("|"):
        name, separator, value = piece.partition("=")
        if separator:
            name = name.strip()
            yield _NAMES.get(name, name), value.strip()


RULES: tuple[Rule, ...] = (Rule("argonne.iteration", (b"iteration=",), read_iteration),)
