"""Turns a scenario into texts with times, deterministic from its seed. `write` writes them at once or in real time.

Noise is correlated and has heavy tails: AR(1) of 0.5, and 1 % outliers of 8 % on average. `truth` of an iteration has
the printed values, that of a fault's first line has the fault's kind.
"""

import math
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import IO, Any, NamedTuple

from megatron_monitor.parsers.programs import DEEPSPEED
from megatron_monitor.simulate import lines
from megatron_monitor.simulate.lines import Step, say
from megatron_monitor.simulate.scenario import TEXTS, Fault, Scenario
from megatron_monitor.system.clock import Clock

_AR = 0.5
_OUTLIERS, _OUTLIER_MEAN = 0.01, 0.08
_FIRST_FACTOR = 1.5  # the first iteration of an attempt compiles and allocates
_SPIKE = (1.0, 1.01, 1.18, 1.02, 1.07, 2.3, 1.6, 1.45, 1.3, 1.2, 1.12, 1.08, 1.05, 1.03, 1.02, 1.01)
_SPIKE_NORM = (1.0, 4.0, 10.0, 65.0, 600.0, 4000.0, 1500.0, 1500.0, 700.0, 60.0, 10.0, 3.0, 1.5, 1.2, 1.1, 1.0)
_RESTARTS = {"crash_and_restart": 1, "resume_discontinuity": 1, "launch_blocking": 1, "crash_loop": 3}
"""Fault -> how many launches follow."""
_ENDS = frozenset({"hang", "crash_nccl", *TEXTS["ends"]} - {"checkpoint_failed"})


class Emission(NamedTuple):
    """A text and its time in seconds since the start."""

    at: float
    text: str
    truth: dict[str, Any] | None = None


@dataclass(slots=True)
class Run:
    """The state of the simulated training."""

    random: Random
    of_effects: Random
    """A separate random source for effects and timers, so that iterations are the same with and without them."""
    iteration: int
    """The last one that has ended; so `samples`."""
    samples: int
    saved: int
    saved_samples: int
    at: float = 0.0
    noise: float = 0.0
    pending_overhead: float = 0.0
    loss_scale: float = 65536.0
    last_norm: float = 1.0
    since_start: int = 0
    window: list[float] = field(default_factory=list)


def timeline(scenario: Scenario) -> Iterator[Emission]:
    """Yield the texts of the scenario in order. Faults that end the log end the iterator."""
    begun, seed = scenario.first_iteration - 1, scenario.seed
    samples = begun * scenario.global_batch_size
    run = Run(Random(seed), Random(seed), begun, samples, begun, samples)  # noqa: S311 - no secrets
    starting = any(fault.kind == "hang_starting" for fault in scenario.faults)
    yield from _attempt(scenario, run, truncated=starting)
    if starting:
        return
    pending = sorted(scenario.faults, key=lambda fault: fault.at)
    active: list[Fault] = []
    while run.iteration < scenario.iterations:
        while pending and pending[0].at <= run.iteration + 1:
            fault = pending.pop(0)
            active.append(fault)
            if fault.kind in _ENDS:
                yield from _end(scenario, run, fault.kind)
                return
            if fault.kind in _RESTARTS:
                yield from _restart(scenario, run, fault)
        step = yield from _iterate(scenario, run, active)
        if (yield from _interrupt(scenario, run, step, {fault.kind for fault in active})):
            return
    yield Emission(run.at, say("end", scenario, run.at, iteration=run.iteration))


def _attempt(scenario: Scenario, run: Run, truncated: bool = False) -> Iterator[Emission]:
    begun = run.at
    for number, (share, text) in enumerate(lines.set_up(scenario, run.iteration + 1, begun)):
        if truncated and number and share > 0.3:
            return
        run.at = begun + share * scenario.start_seconds
        if text:
            yield Emission(run.at, text)
    run.since_start = 0
    run.pending_overhead = 0.0


def _healthy(scenario: Scenario, run: Run) -> Step:
    """Return the next iteration as it is without faults."""
    rng, iteration = run.random, run.iteration + 1
    run.noise = _AR * run.noise + rng.gauss(0.0, scenario.noise * math.sqrt(1 - _AR**2))
    factor = 1 + run.noise
    if rng.random() < _OUTLIERS:
        factor += rng.expovariate(1 / _OUTLIER_MEAN) * min(1.0, scenario.noise / 0.004)
    if run.since_start == 0:
        factor *= _FIRST_FACTOR
    loss = 2.0 + _unlearned(iteration) + rng.gauss(0, 0.02)
    norm = max(0.05, 0.2 + 2.0 * math.exp(-iteration / 300) + rng.gauss(0, 0.02))
    program = scenario.program.facts
    saves = scenario.save_interval and (program.megatron or program is DEEPSPEED)
    return Step(
        iteration, run.samples + scenario.global_batch_size, scenario.global_batch_size, 0.0,
        learning_rate(scenario, iteration), loss, norm, 1.0, factor=factor,
        memory=1.0 if run.since_start + 1 == scenario.log_interval and program.megatron else None,
        save_seconds=scenario.save_seconds if saves and iteration % scenario.save_interval == 0 else None,
    )  # fmt: skip


def learning_rate(scenario: Scenario, step: int) -> float:
    """Return the learning rate of a step of the schedule: warm-up, then a cosine."""
    warm = min(1.0, step / max(1, scenario.iterations // 20))
    return 6e-05 * warm * (0.55 + 0.45 * math.cos(math.pi * step / scenario.iterations))


def _unlearned(iteration: int) -> float:
    return 8.0 * math.exp(-iteration / 400)


def stuck(step: Step, at: int) -> None:
    """Let the model learn nothing since the iteration `at`."""
    step.loss += _unlearned(at) - _unlearned(step.iteration)


def overflow(run: Run, step: Step) -> None:
    """Skip the step and halve the loss scale."""
    reduced = max(1.0, run.loss_scale / 2)
    step.overflow = (run.loss_scale, f"reducing to {reduced:.0f}")
    step.grad_norm, step.skipped, run.loss_scale = run.last_norm, 1, reduced


Effect = Callable[[Scenario, Run, Fault, Step], None]
EFFECTS: dict[str, Effect] = {}
"""Effects of faults that another module adds."""


def _affect(scenario: Scenario, run: Run, fault: Fault, step: Step) -> None:
    """Apply what the fault changes in each iteration from its first one on, before the iteration's time passes."""
    since = step.iteration - fault.at
    match fault.kind:
        case "slowdown" | "launch_blocking":
            step.factor *= fault.factor
        case "slowdown_recovered" if since < fault.length:
            step.factor *= fault.factor
        case "loss_spike" if since < len(_SPIKE):
            step.loss *= _SPIKE[since]
            step.grad_norm *= _SPIKE_NORM[since]
        case "divergence":
            stuck(step, fault.at)
            step.loss *= 1 + 0.01 * since
            step.grad_norm *= 1 + 0.02 * since
        case "nan_loss":
            step.loss = step.grad_norm = math.nan
        case "overflow_storm":
            overflow(run, step)
        case "loss_scale_collapse":
            run.loss_scale = min(run.loss_scale, 1024.0)
            overflow(run, step)
        case "memory_growth" if since % 10 == 0:
            step.memory = 1 + 0.02 * since / 10
        case "saves_stop":
            step.save_seconds = None
        case "resume_discontinuity":
            step.learning_rate *= 2.5
        case kind if kind in EFFECTS:
            EFFECTS[kind](scenario, run, fault, step)


def _iterate(scenario: Scenario, run: Run, active: list[Fault]) -> Generator[Emission, None, Step]:
    step = _healthy(scenario, run)
    for fault in active:
        if step.iteration >= fault.at or fault.kind in _RESTARTS:
            _affect(scenario, run, fault, step)
    step.pure_seconds = max(0.1, step.factor) * scenario.seconds_per_iteration + sum(step.extra.values())
    run.at += step.pure_seconds
    run.iteration, run.samples, run.last_norm = step.iteration, step.samples, step.grad_norm
    run.since_start += 1
    run.window.append(step.pure_seconds + (run.pending_overhead if scenario.program.counts_overhead else 0.0))
    run.pending_overhead = 0.0
    if step.overflow is not None:
        scale, reduced = step.overflow
        yield Emission(run.at, say("overflow", scenario, run.at, scale=scale, reduced=reduced))
    if run.iteration % scenario.log_interval and run.iteration != 1:
        return step
    step.elapsed = sum(run.window) / len(run.window)
    run.window.clear()
    if scenario.fp16:
        step.loss_scale = run.loss_scale
    text = say("step", scenario, run.at, step=step)
    if scenario.inner is not None:
        *before, (_, text) = scenario.inner(scenario, run, step, text)
        yield from (Emission(*one) for one in before)
    yield Emission(run.at, text, asdict(step))
    if step.memory is not None:
        yield Emission(run.at, say("memory", scenario, 0.0, iteration=run.iteration, grown=step.memory))
    return step


def _interrupt(scenario: Scenario, run: Run, step: Step, kinds: set[str]) -> Generator[Emission, None, bool]:
    """Evaluate and save after an iteration if their intervals require it. Return True if the log ends within."""
    if scenario.eval_interval and run.iteration % scenario.eval_interval == 0:
        run.at += scenario.eval_seconds
        run.pending_overhead += scenario.eval_seconds
        loss = 2.1 + _unlearned(run.iteration)
        yield Emission(run.at, say("validation", scenario, run.at, iteration=run.iteration, loss=loss))
        if "hang_evaluation" in kinds:
            return True
    if step.save_seconds is None:
        return False
    yield Emission(run.at, say("saving", scenario, run.at, iteration=run.iteration))
    if "hang_saving" in kinds:
        return True
    if "checkpoint_failed" in kinds:
        run.at += step.save_seconds / 2
        yield Emission(run.at, _last_lines(scenario, run, "checkpoint_failed"), {"fault": "checkpoint_failed"})
        return True
    run.at += step.save_seconds
    run.pending_overhead += step.save_seconds
    if ended := say("saved", scenario, run.at, iteration=run.iteration, duration=step.save_seconds * 1000):
        yield Emission(run.at, ended)
    run.saved, run.saved_samples = run.iteration, run.samples
    return False


def _end(scenario: Scenario, run: Run, kind: str) -> Iterator[Emission]:
    """Yield the last lines of the log. A hang has none."""
    truth = {"fault": kind}
    if kind in TEXTS["ends"]:
        yield Emission(run.at, _last_lines(scenario, run, kind), truth)
    elif kind == "crash_nccl":
        run.at += 600.0
        for rank in range(min(scenario.world_size, 16)):
            yield Emission(run.at, say("watchdog", scenario, run.at, rank=rank, local=rank % 8), truth)
        yield Emission(run.at + 60, say("launcher_end", scenario, run.at + 60, code=-6))


def _last_lines(scenario: Scenario, run: Run, kind: str) -> str:
    """Return the lines of an end, and the launcher's if it reports it."""
    end = TEXTS["ends"][kind]
    launcher = say("launcher_end", scenario, run.at, code=end["code"]) if "code" in end else ""
    return lines.filled(end["text"], scenario, run.at) + launcher


def _restart(scenario: Scenario, run: Run, fault: Fault) -> Iterator[Emission]:
    if blocking := fault.kind == "launch_blocking":
        scenario = replace(scenario, launch_blocking=1)
    for number in range(_RESTARTS[fault.kind]):
        if number:
            yield from _iterate(scenario, run, [])
        exits = say("exit", scenario, run.at, iteration=run.iteration)
        yield Emission(run.at, exits if blocking else _last_lines(scenario, run, "crash_ecc"), {"fault": fault.kind})
        run.at += 120.0
        run.iteration, run.samples = run.saved, run.saved_samples
        yield from _attempt(scenario, run)


def write(
    scenario: Scenario, stream: IO[bytes], speed: float | None = None, clock: Clock | None = None,
    shown: Callable[[], object] = lambda: None,
) -> None:  # fmt: skip
    """Write the log to `stream`. With `speed`, each text at its time divided by it, flushed; else at once. `shown` is
    called after each iteration.
    """
    began = clock.monotonic() if clock is not None else 0.0
    for emission in timeline(scenario):
        if speed is not None and clock is not None:
            clock.sleep(began + emission.at / speed - clock.monotonic())
        stream.write(emission.text.encode())
        if emission.truth is not None and "iteration" in emission.truth:
            shown()
        if speed is not None:
            stream.flush()
    stream.flush()
