"""Synthetic learning curves in the programs' own formats, healthy or with a fault, for benchmarks/detection/loss.py.

A model of trainings, not of detectors. Loss: a power law; noise autocorrelated (0.5) with innovations of Student's t
with 4 degrees of freedom, smaller with the square root of the batch in a ramp-up; odd batches now and then that raise
loss and grad norm together; a slow wander of a quarter of the noise over thousands of iterations. Grad norm: log noise
of 15 %, t with 5 degrees, half correlated with the loss. Loss scale: a real scaler (search from 2^32, halved with
hysteresis, doubled after 1000 clean steps) against gradients whose largest value varies. Restarts from the last
checkpoint every 1500 iterations in the mean; saves and evaluations.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from megatron_monitor.simulate import Scenario, lines
from megatron_monitor.simulate.lines import Step


@dataclass(frozen=True)
class Course:
    """One training. `fault` strikes at iteration `at`."""

    seed: int
    noise: float = 0.004
    iterations: int = 10_000
    dialect: str = "bigscience"
    fp16: bool = False
    log_interval: int = 1
    norm: str = "computed"
    """`computed`, or `zero`: printed as 0.000."""
    quantised: bool = False
    """Losses rounded to bfloat16, as some forks print them."""
    restarts: bool = True
    ramp: bool = True
    start: int = 1
    fault: str = ""
    at: int = 0


COURSES = (
    Course(0),
    Course(0, fp16=True, dialect="microsoft"),
    Course(0, fp16=True, dialect="megatron-lm"),
    Course(0, fp16=True, dialect="megatron-lm-2021", log_interval=10),
    Course(0, quantised=True, dialect="bigscience"),
    Course(0, dialect="gpt-neox", fp16=True),
    Course(0, norm="zero", fp16=True, dialect="megatron-lm-2021"),
    Course(0, start=30_000, ramp=False),
    Course(0, start=30_000, ramp=False, fp16=True, dialect="bigscience"),
    Course(0, dialect="megatron-lm", log_interval=5),
)
"""The kinds of training among which the seeds go round."""


def course(seed: int, noise: float, **changes: object) -> Course:
    """The training of a seed."""
    return replace(COURSES[seed % len(COURSES)], seed=seed, noise=noise, **changes)  # type: ignore[arg-type]


@dataclass
class _Scaler:
    rng: random.Random
    scale: float = 2.0**32
    clean: int = 0
    hysteresis: int = 2
    boost: float = 0.0
    """Added to the log of the largest gradient."""

    def step(self) -> tuple[bool, float]:
        """(overflowed, the scale before)."""
        before = self.scale
        largest = math.exp(self.rng.gauss(0.0, 0.35) + self.boost + (self.rng.random() < 0.0005) * 1.5)
        if largest * self.scale > 65504.0 * 8:
            self.clean = 0
            if self.hysteresis > 1:
                self.hysteresis -= 1
            else:
                self.scale = max(1.0, self.scale / 2)
            return True, before
        self.clean += 1
        if self.clean % 1000 == 0:
            self.scale *= 2
            self.hysteresis = 2
        return False, before


@dataclass
class _Noise:
    rng: random.Random
    ar: float
    degrees: int
    value: float = 0.0

    def next(self, sd: float) -> float:
        """The next value of a series with this standard deviation."""
        t = self.rng.gauss(0, 1) / math.sqrt(self.rng.gammavariate(self.degrees / 2, 2 / self.degrees))
        t /= math.sqrt(self.degrees / (self.degrees - 2))
        self.value = self.ar * self.value + t * math.sqrt(1 - self.ar**2)
        return sd * self.value


def texts(it: Course) -> Iterator[str]:
    """The log of the training."""
    rng = random.Random(f"{it.seed}-{it.noise}-{it.fault}")
    scenario = Scenario(
        dialect=it.dialect,
        iterations=it.start + it.iterations,
        fp16=it.fp16,
        log_interval=it.log_interval,
        rampup=(192, 16, 1_500_000) if it.ramp else None,
        save_interval=100,
    )
    loss_noise, norm_noise, wander = _Noise(rng, 0.5, 4), _Noise(rng, 0.3, 5), _Noise(rng, 0.999, 30)
    floor, height, power = rng.uniform(1.7, 2.3), rng.uniform(8.0, 10.0), rng.uniform(0.35, 0.5)
    scaler = _Scaler(rng)
    if it.start > 1:
        scaler.scale = 2.0**18
    iteration, samples, saved = it.start - 1, (it.start - 1) * 2048, (it.start - 1, (it.start - 1) * 2048)
    last_norm, skipped, first = 1.0, 0, True
    gathered: list[float] = []
    until = it.start + it.iterations - 1
    yield "".join(text for _, text in lines.set_up(scenario, it.start))
    while iteration < until:
        if it.restarts and not it.fault and rng.random() < 1 / 1500:
            iteration, samples = saved
            gathered, skipped, first = [], 0, True
            text = "".join(text for _, text in lines.set_up(scenario, iteration + 1))
            yield f"[exiting program at iteration {iteration}] datetime: x \n{text}"
        iteration += 1
        batch = scenario.batch_size_at(samples)
        samples += batch
        since = iteration - it.at if it.fault else -1
        sd = it.noise * math.sqrt(2048 / batch)
        shock = loss_noise.next(1.0)
        odd = rng.expovariate(1.0) if rng.random() < 0.002 else 0.0
        loss = (floor + height * (iteration + 20) ** -power) * (
            1 + sd * shock + 3 * sd * odd + 0.25 * it.noise * wander.next(1.0)
        )
        log_norm = math.log(0.2 + 2.0 * math.exp(-iteration / 300)) + 0.15 * (
            0.5 * max(-4.0, min(4.0, shock)) + 0.87 * norm_noise.next(1.0) + odd
        )
        factor, norm_factor, gone, boost = _fault(it, since)
        loss, norm = loss * factor, math.exp(log_norm) * norm_factor * (1e5 if it.fp16 else 1.0)
        scaler.boost = boost
        over, before = scaler.step() if it.fp16 else (False, 1.0)
        if over and it.dialect in ("bigscience", "microsoft", "gpt-neox"):
            yield _overflow(before, scaler)
        native = it.dialect.startswith("megatron-lm")
        skipped += over
        norm = last_norm if over and not native else norm
        last_norm = norm
        if not gone and not (over and native):
            gathered.append(loss)
        if iteration % it.log_interval == 0:
            mean = sum(gathered) / len(gathered) if gathered and not gone else None
            if mean is not None and it.quantised:
                mean = round(mean * 128) / 128
            step = Step(
                iteration, samples, batch, 100.0, 6e-5, mean,
                0.0 if it.norm == "zero" else norm, scaler.scale if it.fp16 else 1.0, skipped,
            )  # fmt: skip
            yield lines.say("step", scenario, 100.0 * iteration, step=step)
            gathered, skipped, first = [], 0, False
        if iteration % 100 == 0 and not first:
            saved = (iteration, samples)
            yield lines.say("saving", scenario, 0.0, iteration=iteration)
            yield lines.say("saved", scenario, 0.0, iteration=iteration, took=40_000.0)
        if iteration % 1000 == 0:
            yield lines.validation(scenario, iteration, 0, loss * 1.02)


def _overflow(before: float, scaler: _Scaler) -> str:
    reduced = (
        f"reducing to {scaler.scale:.0f}"
        if scaler.scale < before
        else (f"but hysteresis is {scaler.hysteresis + 1}. Reducing hysteresis to {scaler.hysteresis}")
    )
    return (
        "[2023-04-18 01:46:52,554] [INFO] [loss_scaler.py:188:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping "
        f"step. Attempted loss scale: {before:.0f}, {reduced}\n"
    )


_SPIKE = (1.0, 1.01, 1.18, 1.02, 1.07, 2.3, 1.6, 1.45, 1.27)
_SPIKE_NORM = (1.1, 4.3, 10.9, 72.0, 660.0, 4300.0, 1600.0, 1700.0, 2900.0)


def _fault(it: Course, since: int) -> tuple[float, float, bool, float]:
    """(factor of the loss, of the grad norm, whether the loss is NaN, what is added to the log of the gradients)."""
    if since < 0:
        return 1.0, 1.0, False, 0.0
    kind = it.fault
    if kind == "spike":  # BLOOM's, then back within 30
        if since < len(_SPIKE):
            return _SPIKE[since], _SPIKE_NORM[since], False, 0.0
        left = math.exp(-(since - 8) / 4)
        return 1 + 0.27 * left, max(1.0, 2900.0**left), False, 0.0
    if kind == "spike of 15 %":
        left = math.exp(-since / 8)
        return 1 + 0.15 * left, 1 + 5 * left, False, 0.0
    if kind == "spike that stays":
        return 1.0 + 1.2 * math.exp(-since / 2000), 1 + 30 * math.exp(-since / 50), False, 0.0
    if kind == "slow divergence, 1 % per 100":
        return 1 + 0.0001 * since, 1 + 0.0003 * since, False, 0.0
    if kind == "slow divergence, 0.3 % per 100":
        return 1 + 0.00003 * since, 1 + 0.0001 * since, False, 0.0
    if kind == "NaN":
        return 1.0, 1.0, True, 0.0
    if kind == "overflow in every step":
        return 1.0, 1.0, False, 40.0
    if kind == "scale falls 30 before the loss (GLM)":
        boost = 0.5 * min(since, 40) * math.log(2)
        return (1.0 if since < 30 else 1.0 + 0.1 * (since - 29)), 1 + 0.1 * since, False, boost
    if kind == "scale sinks 8-fold in 2300":
        return 1.0, 1.0, False, min(since, 2600) / 2300 * math.log(8) * 1.15
    raise ValueError(kind)
