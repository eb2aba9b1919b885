"""Trainings in time: what a log would say of healthy and slowed runs. Written from the record, not from the detector.

Modelled on BLOOM-176B (105.2 s an iteration, saves of 40 s every 100, evaluations of 12 min every 1000, restarts, a
linear batch size ramp-up), with noise as clusters show it: heavy-tailed, autocorrelated, slow outliers in bursts.
"""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from megatron_monitor.parsers.events import (
    ArgumentsDumped,
    CheckpointSaved,
    CheckpointSaveStarted,
    Event,
    IterationLogged,
    MilestoneReached,
    ProgramExited,
    ValidationLogged,
)


@dataclass(frozen=True)
class Series:
    """A training. `noise` is the relative standard deviation of an iteration's time."""

    seed: int
    iterations: int = 10_000
    noise: float = 0.004
    first: int = 1
    ramp: bool = True
    save_every: int = 100
    save_seconds: float = 40.0
    evaluate_every: int = 1000
    evaluation_sets: int = 29
    evaluation_seconds: float = 25.0
    restart_every: int = 1500
    outliers: float = 0.01
    bursts: float = 0.3
    """Probability that a slow outlier is followed by another: hiccups of a shared file system come together."""
    slow: Callable[[int], float] = lambda iteration: 1.0  # noqa: ARG005
    """Iteration -> factor on its time: the fault."""


_RAMP_SAMPLES = sum(30 * (192 + 16 * step) for step in range(116))


def batch_size(series: Series, iteration: int) -> int:
    """192 to 2048 in steps of 16, thirty iterations each."""
    return min(2048, 192 + 16 * (iteration // 30)) if series.ramp else 2048


def events(series: Series) -> Iterator[tuple[float, Event]]:
    """(time, event) of the whole training."""
    rng = random.Random(series.seed)
    now, wander, burst, shift, since = 0.0, 0.0, False, 0.0, 0
    samples = 0
    next_restart = series.first + max(200, int(rng.expovariate(1 / series.restart_every)))
    yield from _set_up(now, series)
    pending = 0.0
    for iteration in range(series.first, series.first + series.iterations):
        if iteration == next_restart:
            yield now + 5.0, ProgramExited(reason="duration", iteration=iteration - 1)
            next_restart += max(200, int(rng.expovariate(1 / series.restart_every)))
            now += 900 + rng.random() * 600
            yield from _set_up(now, series)
            now += 300
            shift, since, pending = rng.gauss(0, 0.003), 0, 0.0
        since += 1
        size = batch_size(series, iteration)
        samples += size
        wander = 0.5 * wander + _student(rng) * series.noise * math.sqrt(1 - 0.25)
        burst = rng.random() < (series.bursts if burst else series.outliers)
        seconds = (12.0 + 0.0465 * size) * math.exp(wander + shift) * series.slow(iteration)
        if burst:
            seconds *= 1 + rng.expovariate(1 / 0.08)
        seconds *= {1: 1.35, 2: 1.05}.get(since, 1.0)
        now += seconds
        yield now, IterationLogged(
            iteration=iteration, train_iterations=series.first + 200_000, consumed_samples=samples,
            seconds_per_iteration=seconds + pending, global_batch_size=size, format="bigscience",
            lm_loss=2.0 + 8.0 * math.exp(-iteration / 3000) + rng.gauss(0, 0.01),
            grad_norm=math.exp(rng.gauss(-1.4, 0.1)), learning_rate=6e-5,
        )  # fmt: skip
        pending = 0.0
        if iteration % series.evaluate_every == 0:
            for place in range(series.evaluation_sets):
                spent = series.evaluation_seconds * (1 + 0.2 * rng.random())
                now, pending = now + spent, pending + spent
                yield now, ValidationLogged(iteration=iteration, dataset=f"set-{place}", losses={"lm loss": 2.3})
        if iteration % series.save_every == 0:
            yield now, CheckpointSaveStarted(iteration=iteration)
            spent = series.save_seconds * (1 + 0.3 * rng.random())
            now, pending = now + spent, pending + spent
            yield now, CheckpointSaved(iteration=iteration)


def _set_up(now: float, series: Series) -> Iterator[tuple[float, Event]]:
    arguments = {
        "num_layers": "70", "hidden_size": "14336", "num_attention_heads": "112", "seq_length": "2048",
        "world_size": "384", "tensor_model_parallel_size": "4", "pipeline_model_parallel_size": "12",
        "micro_batch_size": "2", "global_batch_size": "2048", "padded_vocab_size": "250880",
        "log_interval": "1", "save_interval": str(series.save_every), "eval_interval": str(series.evaluate_every),
        "rampup_batch_size": f"['192', '16', '{_RAMP_SAMPLES}']" if series.ramp else "None",
        "start": f"{now:.3f}",
    }  # fmt: skip
    yield now, ArgumentsDumped(values=arguments)
    yield now + 60.0, MilestoneReached(milestone="setup_done", logged_at=None)


def _student(rng: random.Random) -> float:
    """Student's t of 5 degrees, of unit variance: heavier tails than a normal."""
    chi = sum(rng.gauss(0, 1) ** 2 for _ in range(5))
    return rng.gauss(0, 1) / math.sqrt(chi / 5) / math.sqrt(5 / 3)
