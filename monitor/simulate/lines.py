"""The printed texts: templates of programs.toml, filled with the values of the scenario and the step."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any

from jinja2 import Environment, StrictUndefined, Template

from megatron_monitor.model import flops
from megatron_monitor.model.topology import Topology
from megatron_monitor.simulate.scenario import TEXTS, Scenario


@dataclass(slots=True)
class Step:
    """The values of one iteration before they are printed."""

    iteration: int
    samples: int
    batch_size: int
    elapsed: float
    """Seconds as printed: the mean since the last line, with what the program counts beside the iteration."""
    learning_rate: float
    loss: float
    grad_norm: float
    loss_scale: float
    skipped: int = 0
    factor: float = 1.0
    """How many times as long as usual it takes; `extra` comes in addition."""
    extra: dict[str, float] = field(default_factory=dict)
    """Fault -> the seconds that it adds."""
    pure_seconds: float = 0.0
    overflow: tuple[float, str] | None = None
    """The loss scale at which it overflowed, and what becomes of the scale."""
    memory: float | None = None
    """Memory in use as a multiple of the usual, if it is reported."""
    save_seconds: float | None = None
    """Seconds of the save behind it, if there is one."""


_TOPOLOGY = {
    **{name: name for name in ("world_size", "micro_batch_size", "global_batch_size", "layers", "sequence_length",
                               "log_interval")},
    "tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "dp": "data_parallel_size", "hidden": "hidden_size",
    "heads": "attention_heads", "vocab": "padded_vocab_size",
}  # fmt: skip


def topology_of(scenario: Scenario) -> Topology:
    """Return the scenario's sizes under the monitor's names."""
    return Topology(
        **{name: getattr(scenario, ours) for ours, name in _TOPOLOGY.items()}, ffn_hidden_size=4 * scenario.hidden,
        dtype="fp16" if scenario.fp16 else "bf16", glu=False,
        activation_checkpointing="full",
    )  # fmt: skip


def _tflops(scenario: Scenario, step: Step) -> float:
    topology, format_name = topology_of(scenario), scenario.program.facts.name
    found = flops.computed_tflops(topology, step.elapsed, step.batch_size, scenario.sequence_length, format_name)
    return found[1] if found else 0.0


def _clock(seconds: float) -> str:
    hours, rest = divmod(int(seconds), 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{left:02d}" if hours else f"{minutes:02d}:{left:02d}"


_TEMPLATES = Environment(undefined=StrictUndefined, keep_trailing_newline=True)  # noqa: S701 - text, not HTML
_TEMPLATES.filters.update(f=format, repr=repr)


@cache
def _template(text: str) -> Template:
    return _TEMPLATES.from_string(text)


def filled(template: str, scenario: Scenario, at: float, **others: Any) -> str:
    """Return the template with the values of the scenario `at` seconds after the start."""
    now = datetime.fromtimestamp(scenario.start_epoch + at, UTC)
    return _template(template).render(scenario=scenario, at=at, now=now, **others)


def say(name: str, scenario: Scenario, at: float, **others: Any) -> str:
    """Return the text of this name as the scenario's program prints it `at` seconds after the start."""
    return filled(scenario.program.says.get(name) or TEXTS["texts"].get(name, ""), scenario, at, **others)


def _arguments(scenario: Scenario, loaded: int) -> str:
    values = {name: filled(text, scenario, 0.0, loaded=loaded) for name, text in TEXTS["arguments"].items()}
    return "".join(f"  {name} {'.' * max(2, 48 - len(name))} {value}\n" for name, value in values.items() if value)


def set_up(scenario: Scenario, first_iteration: int, begun: float = 0.0) -> Iterator[tuple[float, str]]:
    """Yield (share of the start-up time, text or "") of an attempt that began at `begun`: banners, arguments."""
    for row in scenario.program.set_up:
        at = begun + row["share"] * scenario.start_seconds
        yield row["share"], filled(row["text"], scenario, at, loaded=first_iteration - 1)


_TEMPLATES.globals.update(arguments=_arguments, clock=_clock, exp=math.exp, tflops=_tflops)
