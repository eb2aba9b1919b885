"""DeepSpeed's engine: steps, throughput, overflows, its own timers, memory, and the configuration that it prints.

Its logger's prefix is stripped before (prefixes.py): `line.prefix.location` is `timer.py:199:stop` or the like. GB are
GiB. `skipped` is cumulative, unlike Megatron's count per interval.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

from parsers.engine.fields import finite, gibibytes, integer, number
from parsers.engine.scan import Line, Rule
from parsers.events import (
    EngineStepLogged,
    Event,
    LossScaleExhausted,
    MemoryReported,
    ModelSettingLogged,
    OverflowSkipped,
    ThroughputReported,
)
from parsers.formats.megatron_reports import timers_of
from parsers.patterns import lazy

_N = r"[-+]?(?:\d{1,15}(?:\.\d{0,20})?(?:[eE][-+]?\d{1,4})?|nan|inf)"
# `steps: 1 loss: 11.0643 iter time (s): 2.474 samples/sec: 206.954` (pipe/engine.py train_batch); further losses may
# stand between.
_STEPS = lazy(
    rf"\bsteps: (\d{{1,12}}) loss: ({_N})((?:(?!steps: ).){{0,400}}?) ?iter time \(s\): ({_N}) samples/sec: ({_N})"
)
_NAMED = lazy(r"([A-Za-z][\w ]{0,40}?): (" + _N + ")")
# `epoch=0/micro_step=20/global_step=10, RunningAvgSamplesPerSec=46.9, CurrSamplesPerSec=50.8, MemAllocated=5.5GB`
_THROUGHPUT = lazy(
    r"(?:epoch=(\d{1,9})/micro_step=(\d{1,12})/global_step=(\d{1,12})|(?<![\d/])(\d{1,9})/(\d{1,12})), "
    r"(?=(?:RunningAvg)?SamplesPerSec=)"
)
_ASSIGNED = lazy(r"\b([A-Za-z]{3,40})=(" + _N + r")(GB)?")
# `|E2E latency=7.99s |Gather latency=...|CurSamplesPerSec=8.01 |AvgSamplesPerSec=8.01` (DeepSpeed-Chat)
_CHAT = lazy(r"E2E latency=(" + _N + r")s")
_CHAT_SAMPLES = lazy(r"\bCurSamplesPerSec=(" + _N + ")")
# `OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768`
# `... Attempted loss scale: 65536, but hysteresis is 2. Reducing hysteresis to 1`
_OVERFLOW = lazy(
    r"(?:OVERFLOW!|loss scale overflow!|Overflow detected\.).{0,80}?Attempted loss scale: (" + _N + r")"
    r"(?:, reducing to (" + _N + r")|, but hysteresis is \d{1,6}\. Reducing hysteresis to (\d{1,6}))?"
)
# `Grad overflow on iteration 3`, `Reducing dynamic loss scale from 65536.0 to 32768.0` are the same overflow told twice
_VERBOSE_SCALE = lazy(r"Reducing dynamic loss scale from (" + _N + ") to (" + _N + ")")
# `time (ms) | fwd_microstep: 101.92 | bwd_microstep: 107.56`
_TIMER = lazy(r"\|[ ]{0,4}(\w{1,80}):[ ]{0,4}(" + _N + ")")
# `MA 3.85 GB         Max_MA 5.33 GB         CA 7.4 GB         Max_CA 7 GB ` (see_memory_usage)
_SEE_MEMORY = lazy(
    r"\bMA (" + _N + r") GB[ ]{1,20}Max_MA (" + _N + r") GB[ ]{1,20}CA (" + _N + r") GB[ ]{1,20}Max_CA (" + _N + ") GB"
)
# `CPU Virtual Memory:  used = 40.54 GB, percent = 21.6%`
_HOST_MEMORY = lazy(r"CPU Virtual Memory:[ ]{1,4}used = (" + _N + r") GB, percent = (" + _N + ")%")
# `  zero_optimization_stage ...... 1` printed by config.py
_SETTING = lazy(r"^[ ]{2}(\w{1,60})[ ](?:\.{2,60}|)[ ](.{1,200})$")
_SETTINGS = {
    "world_size": "engine_world_size",  # the data-parallel size where tensor or pipeline parallelism is on
    "train_batch_size": "global_batch_size",
    "train_micro_batch_size_per_gpu": "micro_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "zero_optimization_stage": "zero_stage",
    "fp16_enabled": "fp16",
    "bfloat16_enabled": "bf16",
}


def read_steps(line: Line) -> Iterator[Event]:
    """The pipeline engine's plain print, one a step."""
    for match in _STEPS.finditer(line.text):
        losses = {name.strip(): value for name, text in _NAMED.findall(match[3]) if (value := number(text)) is not None}
        yield EngineStepLogged(
            form="steps",
            step=int(match[1]),
            loss=number(match[2]),
            losses=losses,
            seconds_per_step=finite(match[4]),
            samples_per_second=finite(match[5]),
            **line.origin,
        )


def read_throughput(line: Line) -> Iterator[Event]:
    """ThroughputTimer in its three ages, and DeepSpeed-Chat's own."""
    text = line.text
    match = _THROUGHPUT.search(text)
    if match:
        values = {name: value for name, value, _ in _ASSIGNED.findall(text[match.end() :])}
        current = values.get("CurrSamplesPerSec", values.get("SamplesPerSec"))
        average = values.get("RunningAvgSamplesPerSec")
        yield EngineStepLogged(
            form="throughput",
            step=int(match[3] or match[5]),
            epoch=int(match[1] or match[4]),
            micro_step=int(match[2]) if match[2] else None,
            samples_per_second=finite(current) if current else None,
            average_samples_per_second=finite(average) if average else None,
            allocated_bytes=gibibytes(values.get("MemAllocated", "")),
            max_allocated_bytes=gibibytes(values.get("MaxMemAllocated", "")),
            **line.origin,
        )
        return
    latency, chat = _CHAT.search(text), _CHAT_SAMPLES.search(text)
    if latency and chat:
        yield ThroughputReported(seconds_per_step=finite(latency[1]), samples_per_second=finite(chat[1]), **line.origin)


def read_overflow(line: Line) -> Iterator[Event]:
    """A skipped step; `reducing to` the same value means that hysteresis was used up."""
    text = line.text
    found = list(_OVERFLOW.finditer(text))
    for match in found:
        yield OverflowSkipped(
            loss_scale=number(match[1]),
            new_loss_scale=number(match[2]) if match[2] else None,
            hysteresis=int(match[3]) if match[3] else None,
            **line.origin,
        )
    verbose = None if found else _VERBOSE_SCALE.search(text)
    if verbose:
        yield OverflowSkipped(loss_scale=number(verbose[1]), new_loss_scale=number(verbose[2]), **line.origin)
    if "Current loss scale already at minimum" in text:
        yield LossScaleExhausted(**line.origin)


def read_memory(line: Line) -> Iterator[Event]:
    """see_memory_usage on rank 0: the device's line and the host's."""
    if match := _SEE_MEMORY.search(line.text):
        used, most, cached, most_cached = (gibibytes(group) for group in match.groups())
        yield MemoryReported(
            occasion="see_memory_usage",
            allocated_bytes=used,
            max_allocated_bytes=most,
            reserved_bytes=cached,
            # Max_CA is rounded to whole GiB: it may stand below CA, which cannot be
            max_reserved_bytes=max(most_cached or 0, cached or 0) or most_cached,
            **line.origin,
        )
    elif match := _HOST_MEMORY.search(line.text):
        percent = finite(match[2])
        ratio = round(percent / 100, 6) if percent is not None else None
        yield MemoryReported(host_used_bytes=gibibytes(match[1]), host_used_ratio=ratio, **line.origin)


def read_setting(line: Line) -> Iterator[Event]:
    """Sizes from the engine's printed configuration; only config.py prints them."""
    location = line.prefix.location or ""
    match = _SETTING.match(line.text) if location.startswith("config.py") else None
    name = _SETTINGS.get(match[1]) if match else None
    if match is None or name is None:
        return
    text = match[2].strip()
    value: Any = text if text in ("True", "False") else integer(text)
    if value is not None:
        yield ModelSettingLogged(name=name, value=value, **line.origin)


RULES: tuple[Rule, ...] = (
    Rule("deepspeed.steps", (b"iter time (s): ",), read_steps, templated=True),
    Rule("deepspeed.throughput", (b"SamplesPerSec=",), read_throughput, templated=True),
    Rule(
        "deepspeed.overflow",
        (b"Attempted loss scale", b"dynamic loss scale from", b"loss scale already at minimum"),
        read_overflow, templated=True,
    ),
    Rule("deepspeed.timers", (b"time (ms) |",), partial(timers_of, "deepspeed", _TIMER), templated=True),
    Rule("deepspeed.memory", (b"Max_MA ", b"CPU Virtual Memory:"), read_memory, templated=True),
    Rule("deepspeed.setting", (b":print] ",), read_setting),
)  # fmt: skip
