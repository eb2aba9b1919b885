"""NeMo 2 (Lightning around Megatron-Core): its progress bar and the lines that it prints where there is no terminal.

Both count in an epoch, `1/20` steps done or `iteration 45/99` the index of a batch; `global_step` is the step of the
run. `train_step_timing` is a moving mean over a few steps, in seconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from parsers.dialects import NEMO
from parsers.engine.fields import finite, integer, number
from parsers.engine.scan import Line, Rule
from parsers.events import EngineStepLogged, Event, IterationLogged

# `Epoch 0: :  10%|#   | 2/20 [00:49<07:25, v_num=None, reduced_train_loss=11.20, global_step=1.000, ...]`
_BAR = re.compile(
    r"Epoch (\d{1,9}):[^|\]]{0,20}\|[^|]{0,400}\|[ ]{1,4}(\d{1,12})/(\d{1,12})[ ]{1,2}\[([^\]]{0,2000})\]"
)
_ASSIGNED = re.compile(r"(\w[\w ]{0,60})=([^,\]]{1,40})")
# `Training epoch 0, iteration 45/99 | lr: 0.0001 | global_step: 45 | reduced_train_loss: 7.1 | train_step_timing ...`
_PRINTED = re.compile(r"Training epoch (\d{1,9}), iteration (\d{1,12})/(\d{1,12})[ ]?\|([^\r\n]{0,4000})")
_NAMED = re.compile(r"\|?[ ]{0,4}([A-Za-z][\w /()-]{0,60}?)[ ]?: ([^|]{1,40})")


def read_steps(line: Line) -> Iterator[Event]:
    """The last bar of the line, or the printed form."""
    text = line.text
    match = _PRINTED.search(text)
    if match:
        values = {name: value.strip() for name, value in _NAMED.findall(match[4])}
        step = integer(values.get("global_step") or str(match[2]))
        if step is not None:
            total = integer(match[3]) if step == integer(match[2]) else None
            yield _logged(line, step, total, values)
        return
    bars = [bar for bar in _BAR.finditer(text[-8000:]) if "train_step_timing in s=" in bar[4]]
    if bars:
        yield from _of_bar(line, bars[-1])


def _of_bar(line: Line, bar: re.Match[str]) -> Iterator[Event]:
    """A bar is drawn once with the figures of the step before, which says nothing new, and once with its own."""
    values = {name.strip(): value for name, value in _ASSIGNED.findall(bar[4])}
    step, total = integer(bar[2]), integer(bar[3])
    told = values.get("global_step", "")
    before = None if "e" in told else integer(told)  # of `1.23e+3` the last digits are lost
    if integer(bar[1]):  # it counts in its epoch
        step, total = None if before is None else before + 1, None
    if step is not None and before in (None, step - 1):
        yield EngineStepLogged(
            form="throughput",
            step=step,
            train_steps=total,
            loss=number(values.get("reduced_train_loss", "")),
            seconds_per_step=finite(values.get("train_step_timing in s", "")),
            dialect=NEMO.name,
            **line.origin,
        )


def _logged(line: Line, step: int, total: int | None, values: dict[str, str]) -> IterationLogged:
    def of(*names: str, convert: Callable[[str], float | None] = finite) -> float | None:
        return next((convert(values[name]) for name in names if name in values), None)

    return IterationLogged(
        iteration=step,
        train_iterations=total,
        consumed_samples=integer(values.get("consumed_samples", "")),
        global_batch_size=integer(values.get("global_batch_size", "")),
        learning_rate=of("lr", convert=number),
        lm_loss=of("reduced_train_loss", convert=number),
        grad_norm=of("grad_norm", convert=number),
        seconds_per_iteration=of("train_step_timing in s"),
        tflops=of("TFLOPS_per_GPU", "tflops_per_sec_per_gpu"),
        dialect=NEMO.name,
        **line.origin,
    )


RULES: tuple[Rule, ...] = (Rule("nemo.step", (b"train_step_timing in s=", b"Training epoch "), read_steps),)
