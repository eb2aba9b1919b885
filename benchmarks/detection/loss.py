"""Loss and loss-scale detectors: false incidents on healthy runs, delays on faulty ones.

    python -m benchmarks.detection.loss [--final] [--healthy 10] [--faults 10] [--noise 0.004 0.02]

Without --final the development seeds are used, with it the seeds that nothing was tuned on. Text goes through the real
parser and the daemon's own judgement; every incident counts, information too. The trainings: a power law of the loss;
noise autocorrelated (0.5) of Student's t with 4 degrees of freedom, odd batches that raise loss and grad norm together;
a real loss scaler (search from 2^32, halved with hysteresis, doubled after 1000 clean steps); restarts from the last
checkpoint every 1500 iterations in the mean.
"""

import argparse
import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from megatron_monitor.config import Config
from megatron_monitor.evaluation import Evaluator, MonitoredRun
from megatron_monitor.incidents import Transition
from megatron_monitor.parsers.reader import SourceReader
from megatron_monitor.run.state import RunState
from megatron_monitor.simulate import Scenario, lines
from megatron_monitor.simulate.lines import Step

KINDS = ("loss_spike", "divergence", "nan_loss", "overflow_storm")
SEEDS = {"development": 1_000, "final": 800_000}
Effect = Callable[[int], tuple[float, float, float]]
"""Iterations since the fault -> factor of the loss, of the grad norm, what is added to the log of the gradients."""
FAULTS: dict[str, tuple[str, dict[str, object], Effect]] = {
    "spike of 15 %": (
        "loss_spike", {}, lambda since: (1 + 0.15 * math.exp(-since / 8), 1 + 5 * math.exp(-since / 8), 0.0)
    ),
    "divergence, 1 % per 100": (
        "divergence", {"start": 30_000}, lambda since: (1 + 1e-4 * since, 1 + 3e-4 * since, 0.0)
    ),
    "divergence, 0.3 % per 100": (
        "divergence", {"start": 30_000}, lambda since: (1 + 3e-5 * since, 1 + 1e-4 * since, 0.0)
    ),
    "NaN": ("nan_loss", {}, lambda _: (math.nan, 1.0, 0.0)),
    "overflow in every step": ("overflow_storm", {"fp16": True}, lambda _: (1.0, 1.0, 40.0)),
}  # fmt: skip


@dataclass(frozen=True)
class Course:
    """One training. `fault` strikes at iteration `at`."""

    seed: int
    noise: float = 0.004
    iterations: int = 10_000
    format: str = "bigscience"
    fp16: bool = False
    log_interval: int = 1
    restarts: bool = True
    start: int = 1
    fault: str = ""
    at: int = 0


COURSES = (
    Course(0), Course(0, fp16=True, format="microsoft"), Course(0, fp16=True, format="megatron-lm"),
    Course(0, fp16=True, format="megatron-lm-2021", log_interval=10), Course(0, fp16=True, format="gpt-neox"),
    Course(0, start=30_000), Course(0, format="megatron-lm", log_interval=5),
)  # fmt: skip
"""The kinds of training among which the seeds go round."""


def course(seed: int, noise: float, **changes: object) -> Course:
    """The training of a seed."""
    return replace(COURSES[seed % len(COURSES)], seed=seed, noise=noise, **changes)  # type: ignore[arg-type]


class _Scaler:
    """DeepSpeed's and Megatron's dynamic loss scale."""

    def __init__(self, scale: float) -> None:
        self.scale, self.clean, self.hysteresis = scale, 0, 2

    def overflows(self, largest: float) -> bool:
        """Whether this step is skipped."""
        if largest * self.scale <= 65504.0 * 8:
            self.clean += 1
            if self.clean % 1000 == 0:
                self.scale, self.hysteresis = self.scale * 2, 2
            return False
        self.clean = 0
        self.hysteresis -= 1
        if self.hysteresis < 1:
            self.scale, self.hysteresis = max(1.0, self.scale / 2), 1
        return True


def texts(it: Course) -> Iterator[str]:
    """The log of the training."""
    rng, shock = random.Random(f"{it.seed}-{it.noise}-{it.fault}"), 0.0
    scenario = Scenario(format=it.format, iterations=it.start + it.iterations, fp16=it.fp16,
                        log_interval=it.log_interval, save_interval=100)  # fmt: skip
    floor, height, power = rng.uniform(1.7, 2.3), rng.uniform(8.0, 10.0), rng.uniform(0.35, 0.5)
    scaler, iteration = _Scaler(2.0**18 if it.start > 1 else 2.0**32), it.start - 1
    saved, skipped, gathered, last_norm = iteration, 0, list[float](), 1.0
    yield "".join(text for _, text in lines.set_up(scenario, it.start))
    while iteration < it.start + it.iterations - 1:
        if it.restarts and not it.fault and rng.random() < 1 / 1500:
            iteration, skipped, gathered = saved, 0, []
            text = "".join(text for _, text in lines.set_up(scenario, iteration + 1))
            yield f"[exiting program at iteration {iteration}] datetime: x \n{text}"
        iteration += 1
        since = iteration - it.at if it.fault else -1
        student = rng.gauss(0, 1) / math.sqrt(rng.gammavariate(2.0, 0.5)) / math.sqrt(2.0)
        shock = 0.5 * shock + student * math.sqrt(0.75)
        odd = rng.expovariate(1.0) if rng.random() < 0.002 else 0.0
        loss = (floor + height * (iteration + 20) ** -power) * (1 + it.noise * (shock + 3 * odd))
        norm = math.exp(0.15 * (0.5 * max(-4.0, min(4.0, shock)) + 0.87 * rng.gauss(0, 1) + odd))
        factor, norm_factor, boost = FAULTS[it.fault][2](since) if since >= 0 else (1.0, 1.0, 0.0)
        loss, norm = loss * factor, norm * norm_factor
        before, largest = scaler.scale, math.exp(rng.gauss(0.0, 0.35) + boost + (rng.random() < 0.0005) * 1.5)
        over, native = it.fp16 and scaler.overflows(largest), it.format.startswith("megatron-lm")
        if over and not native:
            norm = last_norm
            reported = f"reducing to {scaler.scale:.0f}" if scaler.scale < before else (
                f"but hysteresis is {scaler.hysteresis + 1}. Reducing hysteresis to {scaler.hysteresis}")  # fmt: skip
            yield ("[2023-04-18 01:46:52,554] [INFO] [loss_scaler.py:188:update_scale] [deepspeed] OVERFLOW! Rank 0 "
                   f"Skipping step. Attempted loss scale: {before:.0f}, {reported}\n")  # fmt: skip
        skipped, last_norm = skipped + over, norm
        if math.isfinite(factor) and not (over and native):
            gathered.append(loss)
        if iteration % it.log_interval == 0:
            mean = sum(gathered) / len(gathered) if gathered and math.isfinite(factor) else math.nan
            scale = scaler.scale if it.fp16 else 1.0
            step = Step(iteration, iteration * 2048, 2048, 100.0, 6e-5, mean, norm, scale, skipped)
            yield lines.say("step", scenario, 100.0 * iteration, step=step)
            skipped, gathered = 0, []
        if iteration % 100 == 0:
            saved = iteration
            yield lines.say("saving", scenario, 0.0, iteration=iteration)
            yield lines.say("saved", scenario, 0.0, iteration=iteration, duration=40_000.0)


def evaluated(it: Course) -> tuple[int, list[Transition]]:
    """(iterations, the daemon's transitions of the kinds measured here)."""
    judge, run, reader = Evaluator(Config()), MonitoredRun(RunState(name="bench", read_at=0.0)), SourceReader()
    transitions, at = list[Transition](), 0.0
    for text in texts(it):
        for entry in reader.feed(text.encode()):
            at += 1.0
            transitions += judge.take(run, [entry], "log", at, True)
    transitions += judge.judge(run, at)
    return run.state.iterations_total, [item for item in transitions if item.incident in KINDS]


def healthy(first_seed: int, noise: float, runs: int) -> str:
    """One row of the table of false incidents."""
    total, found = 0, Counter[str]()
    for seed in range(first_seed, first_seed + runs):
        done, transitions = evaluated(course(seed, noise))
        total += done
        found.update(item.incident for item in transitions if item.status == "firing")
    kinds = ", ".join(f"{kind} {number}" for kind, number in found.items()) or "-"
    return f"| {100 * noise:g} % | {total} | {found.total()} | {kinds} |"


def faulty(first_seed: int, noise: float, runs: int, fault: str) -> str:
    """One row of the table of delays, in iterations after the onset."""
    (kind, changes, _), delays, before = FAULTS[fault], list[int](), 0
    at = int(str(changes.get("start", 1))) + 600
    given = {"log_interval": 1, "start": 1, **changes, "iterations": 4200 if "0.3" in fault else 1800}
    for seed in range(first_seed, first_seed + runs):
        found = evaluated(course(seed, noise, fault=fault, at=at, **given))[1]
        hits = [item.iteration or 0 for item in found if (item.incident, item.status) == (kind, "firing")]
        before += sum(hit < at for hit in hits)
        delays += [hit - at for hit in hits if hit >= at][:1]
    ordered = sorted(delays) or [-1]
    figures = f"{statistics.median(ordered):.0f} | {ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]}"
    return f"| {fault} | {kind} | {100 * noise:g} % | {len(delays)}/{runs} | {figures} | {before} |"


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--final", action="store_true")
    parser.add_argument("--healthy", type=int, default=10, help="healthy runs of 10,000 iterations at each noise")
    parser.add_argument("--faults", type=int, default=10, help="runs of each fault at each noise")
    parser.add_argument("--noise", type=float, nargs="+", default=[0.004, 0.02], help="of the loss, parts of one")
    given = parser.parse_args()
    seed = SEEDS["final" if given.final else "development"]
    print("| noise | healthy iterations | false incidents | which |\n| --- | --- | --- | --- |")
    for noise in given.noise:
        print(healthy(seed, noise, given.healthy), flush=True)
    print("\n| fault | incident | noise | found | median | p95 | before the onset |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for fault, noise in product(FAULTS, given.noise):
        print(faulty(seed, noise, given.faults, fault), flush=True)


if __name__ == "__main__":
    main()
