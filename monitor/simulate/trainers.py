"""Trainers that are no Megatron: how their logs begin, what they print of a step, of an evaluation, and at the end.

Wording follows the programs (parsers/trainers/). Their lines hold what their samples there hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from monitor.simulate.lines import Step, stamp
from monitor.simulate.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Trainer:
    """What one of them prints."""

    begin: Callable[[Scenario, float], str]
    step: Callable[[Scenario, Step, float], str]
    validation: Callable[[Scenario, int, float, float], str]
    """Of the scenario, an iteration, its loss, and the time."""
    end: Callable[[Scenario, float], str]
    parts: Callable[[float, float], Iterator[tuple[float, str]]] | None = None
    """Of the seconds of a step and those by which its rollout was longer: what is written in the step, and when."""


def _titan(scenario: Scenario, at: float, text: str) -> str:
    millis = int(at * 1000) % 1000
    return f"[rank0]:[titan] {stamp(scenario, at)},{millis:03d} - root - INFO - {text}\n"


def _titan_begin(scenario: Scenario, at: float) -> str:
    sizes = (
        f"local batch size {scenario.micro_batch_size}, global batch size {scenario.global_batch_size}, "
        f"sequence length {scenario.sequence_length}, total steps {scenario.iterations} (warmup 20)"
    )
    return _titan(scenario, at, f"Training starts at step 1, with {sizes}")


def _titan_step(scenario: Scenario, step: Step, at: float) -> str:
    tokens = step.batch_size * scenario.sequence_length / step.elapsed / scenario.world_size
    loss = float("nan") if step.loss is None else step.loss
    red, green, blue, off = ("\x1b[31m", "\x1b[32m", "\x1b[34m", "\x1b[39m")
    return _titan(
        scenario, at,
        f"{red}step: {step.iteration:2}  {green}loss: {loss:8.5f}  grad_norm: {step.grad_norm:7.4f}  "
        f"memory: 30.94GiB(39.07%)  {blue}tps: {round(tokens):,}  tflops: 301.22  mfu: 30.46%{off}",
    )  # fmt: skip


def _titan_validation(scenario: Scenario, iteration: int, loss: float, at: float) -> str:
    return _titan(
        scenario, at, f"validate step: {iteration:2}  loss: {loss:7.4f}  memory: 30.94GiB(39.07%)  tps: 6,512"
    )


def _nemo_step(scenario: Scenario, step: Step, _at: float) -> str:
    loss = float("nan") if step.loss is None else step.loss
    index = step.iteration - 1
    return (
        f"Training epoch 0, iteration {index}/{scenario.iterations - 1} | lr: {step.learning_rate:.4} | "
        f"global_batch_size: {step.batch_size} | global_step: {index} | reduced_train_loss: {loss:.4} | "
        f"grad_norm: {step.grad_norm:.4} | train_step_timing in s: {step.elapsed:.4} | "
        f"consumed_samples: {step.samples}\n"
    )


_VERL_PARTS = {
    "gen": (0.55, ""),
    "old_log_prob": (0.08, "WorkerDict dp actor Before compute_log_prob"),
    "ref": (0.08, ""),
    "adv": (0.01, ""),
    "update_actor": (0.25, "TaskRunner list(reward_extra_infos_dict.keys())=[]"),
    "update_weights": (0.03, "WorkerDict After resume weights"),
}
"""Timer -> its share of a usual step, and the process and line that tell that it begins (VERL_LOGGING_LEVEL=DEBUG)."""


def _verl_seconds(elapsed: float, generation: float) -> dict[str, float]:
    usual = elapsed - generation
    return {name: share * usual + (generation if name == "gen" else 0.0) for name, (share, _) in _VERL_PARTS.items()}


def _verl_parts(elapsed: float, generation: float) -> Iterator[tuple[float, str]]:
    memory = ", memory allocated (GB): 4.14, memory reserved (GB): 7.84, device memory used/total (GB): 20.5/79.2"
    passed = 0.0
    for name, seconds in _verl_seconds(elapsed, generation).items():
        process, _, line = _VERL_PARTS[name][1].partition(" ")
        if line:
            told = memory if process == "WorkerDict" else ""
            yield passed, f"\x1b[36m({process} pid=4243)\x1b[0m {line}{told}\n"
        passed += seconds


def _verl_step(scenario: Scenario, step: Step, _at: float) -> str:
    tokens = step.batch_size * scenario.sequence_length / step.elapsed / scenario.world_size
    took = _verl_seconds(step.elapsed, step.generation)
    timing = " - ".join(f"timing_s/{name}:{seconds:.3f}" for name, seconds in took.items())
    return (
        f"\x1b[36m(TaskRunner pid=4242)\x1b[0m step:{step.iteration} - actor/pg_loss:{step.learning_rate:.5f} - "
        f"actor/grad_norm:{step.grad_norm:.3f} - {timing} - timing_s/step:{step.elapsed:.3f} - "
        f"perf/throughput:{tokens:.3f}\n"
    )


TRAINERS: dict[str, Trainer] = {
    "torchtitan": Trainer(
        _titan_begin, _titan_step, _titan_validation,
        lambda scenario, at: _titan(scenario, at, "Training completed"),
    ),
    "nemo": Trainer(
        lambda _scenario, _at: "[NeMo I nemo_logging:393] Experiments will be logged at /results\n",
        _nemo_step,
        lambda _scenario, _iteration, _loss, _at: "Validation: iteration 1/1\n",
        lambda scenario, _at: f"`Trainer.fit` stopped: `max_steps={scenario.iterations}` reached.\n",
    ),
    "verl": Trainer(
        lambda scenario, _at: f"(TaskRunner pid=4242) Total training steps: {scenario.iterations}\n",
        _verl_step,
        lambda _scenario, iteration, _loss, _at: f"(TaskRunner pid=4242) step:{iteration} - val-core/gsm8k/acc:0.3\n",
        lambda _scenario, _at: "(TaskRunner pid=4242) 'Final validation metrics: None'\n",
        _verl_parts,
    ),
}  # fmt: skip


def lines_in_step(scenario: Scenario, at: float, elapsed: float, generation: float) -> Iterator[tuple[float, str]]:
    """What is written in a step of `elapsed` seconds that begins at `at`, and when."""
    trainer = TRAINERS.get(scenario.dialect)
    if trainer is not None and trainer.parts is not None:
        for passed, line in trainer.parts(elapsed, generation):
            yield at + passed, line
