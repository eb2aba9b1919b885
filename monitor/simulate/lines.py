"""The printed texts: templates of programs.toml, filled with the values of the scenario and the step."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

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


_SIZES = ("hidden_size", "ffn_hidden_size", "num_layers", "num_attention_heads", "padded_vocab_size")


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


def say(name: str, scenario: Scenario, at: float, **others: Any) -> str:
    """Return the text of this name as the scenario's program prints it `at` seconds after the start."""
    return filled(scenario.program.says.get(name) or TEXTS["texts"].get(name, ""), scenario, at, **others)


def filled(template: str, scenario: Scenario, at: float, **others: Any) -> str:
    """Return the template with the values of the scenario `at` seconds after the start."""
    return template.format_map(_Figures(scenario=scenario, at=at, **others))


class _Figures(dict[str, Any]):
    """The values for a template, computed when they are used."""

    def __missing__(self, name: str) -> Any:
        of_step = _OF_STEP.get(name)
        if of_step is not None:
            return of_step(self["scenario"], self["step"])
        return _OF_INSTANT[name](self["scenario"], self["at"])


_OF_INSTANT: dict[str, Callable[[Scenario, float], Any]] = {
    "now": lambda scenario, at: datetime.fromtimestamp(scenario.start_epoch + at, UTC),
    "month": lambda scenario, at: datetime.fromtimestamp(scenario.start_epoch + at, UTC).month,
    "millis": lambda _scenario, at: int(at * 1000) % 1000,
    "passed": lambda _scenario, at: _clock(at),
    "last_index": lambda scenario, _at: scenario.iterations - 1,
}


def arguments(scenario: Scenario, first_iteration: int) -> str:
    """Return the arguments dump of the scenario. A size of 0 is not printed."""
    figures = {
        "dp": scenario.dp,
        "ffn": 4 * scenario.hidden,
        "bf16": not scenario.fp16,
        "evaluations": scenario.eval_interval or 1_000_000_000,
        "evaluates": int(bool(scenario.eval_interval)),
        "loaded": first_iteration - 1,
    }
    values = {name: text.format(scenario=scenario, **figures) for name, text in TEXTS["arguments"].items()}
    values = {name: value for name, value in values.items() if value != "0" or name not in _SIZES}
    return "".join(f"  {name} {'.' * max(2, 48 - len(name))} {value}\n" for name, value in values.items())


def set_up(scenario: Scenario, first_iteration: int, begun: float = 0.0) -> Iterator[tuple[float, str]]:
    """Yield (share of the start-up time, text) of an attempt that began at `begun`: banners, arguments, milestones."""
    if not scenario.program.facts.megatron:
        examples = scenario.iterations * scenario.global_batch_size
        yield 0.1, say("running", scenario, begun, examples=examples)
        return
    dummies = min(200, scenario.vocab - 1)
    values = {
        "memory fault": any(fault.kind == "memory_growth" for fault in scenario.faults),
        "launch blocking": scenario.launch_blocking is not None,
        "vocabulary": scenario.vocab,
        "resumed": first_iteration > 1,
        None: True,
    }
    figures = {
        "arguments": arguments(scenario, first_iteration),
        "dummies": dummies,
        "unpadded": scenario.vocab - dummies,
        "loaded": first_iteration - 1,
    }
    for row in TEXTS["set_up"]:
        if values[row.get("when")]:
            at = begun + row["share"] * scenario.start_seconds
            yield row["share"], filled(row["text"], scenario, at, **figures)


def _tflops(scenario: Scenario, step: Step) -> float:
    topology, format_name = topology_of(scenario), scenario.program.facts.name
    found = flops.computed_tflops(topology, step.elapsed, step.batch_size, scenario.sequence_length, format_name)
    return found[1] if found else 0.0


def _loss(step: Step, name: str) -> str:
    # `if avg > 0.0` is false for NaN, so that the field is missing
    return "" if math.isnan(step.loss) else f"{name}: {step.loss:.6E} | "


def _passes(scenario: Scenario, step: Step) -> str:
    passes = f"forward-compute: {step.elapsed * 300:.2f} | backward-compute: {step.elapsed * 600:.2f}"
    return "" if scenario.inner else f"time (ms) | {passes}\n"


def _percent(scenario: Scenario, step: Step) -> int:
    return 100 * step.iteration // scenario.iterations


def _bar(scenario: Scenario, step: Step) -> str:
    done = _percent(scenario, step) // 10
    return "#" * done + " " * (10 - done)


def _clock(seconds: float) -> str:
    hours, rest = divmod(int(seconds), 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{left:02d}" if hours else f"{minutes:02d}:{left:02d}"


_OF_STEP: dict[str, Callable[[Scenario, Step], Any]] = {
    "index": lambda _scenario, step: step.iteration - 1,
    "ms": lambda _scenario, step: step.elapsed * 1000,
    "tokens": lambda scenario, step: step.samples * scenario.sequence_length,
    "rate": lambda _scenario, step: step.batch_size / step.elapsed,
    "tgs": lambda scenario, step: step.batch_size / step.elapsed * scenario.sequence_length / scenario.world_size,
    "tflops": _tflops,
    "lm_loss": lambda _scenario, step: _loss(step, "lm loss"),
    "neox_loss": lambda _scenario, step: _loss(step, "lm_loss"),
    "loss_or_zero": lambda _scenario, step: 0.0 if math.isnan(step.loss) else step.loss,
    "loss_scale": lambda scenario, step: f"loss scale: {step.loss_scale:.1f} | " if scenario.fp16 else "",
    "passes": _passes,
    "percent": _percent,
    "bar": _bar,
    "left": lambda scenario, step: _clock((scenario.iterations - step.iteration) * step.elapsed),
    "epoch": lambda scenario, step: step.iteration / scenario.iterations,
}
"""Name in a template -> the function that computes it."""


def memory_lines(scenario: Scenario, iteration: int, grown: float = 1.0) -> str:
    """Return memory reports of the first ranks. Two are joined in one line, as when ranks print at once."""
    reports = []
    for rank in range(min(scenario.world_size, 8)):
        used, extra, kept = (21633.0859375 + 97 * rank) * grown, 2799.0, 7683.0
        figures = {"rank": rank, "iteration": iteration, "used": used, "most": used + extra, "kept": used + kept}
        reports.append(say("memory", scenario, 0.0, **figures))
    return "".join(reports[:2]) + "\n\n" + "".join(report + "\n" for report in reports[2:])


def validation(scenario: Scenario, iteration: int, loss: float, at: float) -> str:
    """Return the result of a validation."""
    figures = {"loss": loss, "perplexity": math.exp(loss), "dashes": "-" * 91}
    return say("validation", scenario, at, iteration=iteration, **figures)
