"""Turns a scenario into texts with times, deterministic from its seed. `write` writes them at once or in real time.

Noise is correlated and has heavy tails: AR(1) of 0.5, and 1 % outliers of 8 % on average. `truth` of an iteration has
the printed values, that of a fault's first line has the fault's kind.
"""

import math
import random
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import IO, Any, NamedTuple

from megatron_monitor.parsers.programs import DEEPSPEED
from megatron_monitor.simulate import lines
from megatron_monitor.simulate.lines import StepFigures, say
from megatron_monitor.simulate.scenario import TEXTS, Fault, Scenario
from megatron_monitor.system.clock import Clock

_AR = 0.5
_OUTLIERS, _OUTLIER_MEAN = 0.01, 0.08
_FIRST_FACTOR = 1.5  # the first iteration of an attempt compiles and allocates
_STUCK = ("divergence", "slow_divergence", "loss_spike_stays")
_SPIKE = (1.0, 1.01, 1.18, 1.02, 1.07, 2.3, 1.6, 1.45, 1.3, 1.2, 1.12, 1.08, 1.05, 1.03, 1.02, 1.01)
_SPIKE_NORM = (1.0, 4.0, 10.0, 65.0, 600.0, 4000.0, 1500.0, 1500.0, 700.0, 60.0, 10.0, 3.0, 1.5, 1.2, 1.1, 1.0)
_RESTARTS = frozenset(
    {"crash_and_restart", "resume_bump", "resume_discontinuity", "lr_restart", "launch_blocking", "crash_loop"}
)
_SLOW_PART = frozenset({"slow_data", "slow_network", "slow_rank", "slow_gpu_clocks"})
"""Faults that lengthen a part of the iteration."""
_CANCELLED, _CRASHES = TEXTS["cancelled"], TEXTS["crashes"]
_ENDS = frozenset(
    {"hang", "hang_rollout", "growing_hang", "kill_switch", "crash_nccl", *_CANCELLED, *_CRASHES}
    - {"checkpoint_failed"}
)


class Emission(NamedTuple):
    """A text and its time in seconds since the start."""

    at: float
    text: str
    truth: dict[str, Any] | None = None


@dataclass(slots=True)
class _Run:
    """The state of the simulated training."""

    random: random.Random
    of_timers: Random
    """A separate random source, so that iterations are the same with and without timers."""
    at: float = 0.0
    iteration: int = 0
    samples: int = 0
    saved: int = 0
    saved_samples: int = 0
    noise: float = 0.0
    pending_overhead: float = 0.0
    loss_scale: float = 65536.0
    last_norm: float = 1.0
    slow: float = 1.0
    rate_factor: float = 1.0
    schedule_from: int = 0
    since_start: int = 0
    window: list[float] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)
    """Seconds by which the data loader is slow, for the same iterations."""


def timeline(scenario: Scenario) -> Iterator[Emission]:
    """Yield the texts of the scenario in order. Faults that end the log end the iterator."""
    chance, of_timers = random.Random(scenario.seed), random.Random(scenario.seed)  # noqa: S311 - no secrets
    run = _Run(chance, of_timers, iteration=scenario.first_iteration - 1)
    run.saved = run.iteration
    run.samples = run.saved_samples = run.iteration * scenario.global_batch_size
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
            if (yield from _strike(scenario, run, fault)):
                return
        yield from _iterate(scenario, run, active)
        if (yield from _interrupt(scenario, run, active)):
            return
    yield Emission(run.at, say("end", scenario, run.at, iteration=run.iteration))


def _attempt(scenario: Scenario, run: _Run, truncated: bool = False) -> Iterator[Emission]:
    begun = run.at
    if "begin" in scenario.program.says:
        run.at += scenario.start_seconds / 2
        yield Emission(run.at, say("begin", scenario, run.at))
        run.at += scenario.start_seconds / 2
        return
    for share, text in lines.set_up(scenario, run.iteration + 1, begun):
        run.at = begun + share * scenario.start_seconds
        if truncated and share > 0.3:
            return
        yield Emission(run.at, text)
    run.since_start = 0
    run.pending_overhead = 0.0


def _pure_seconds(scenario: Scenario, run: _Run, active: list[Fault], extra: dict[str, float]) -> float:
    rng = run.random
    run.noise = _AR * run.noise + rng.gauss(0.0, scenario.noise * math.sqrt(1 - _AR**2))
    factor = 1 + run.noise
    if rng.random() < _OUTLIERS:
        factor += rng.expovariate(1 / _OUTLIER_MEAN) * min(1.0, scenario.noise / 0.004)
    batch = scenario.batch_size_at(run.samples)
    # linear in the batch size with a constant part for filling the pipeline, as measured for BLOOM
    factor *= 0.11 + 0.89 * batch / scenario.global_batch_size
    for fault in active:
        since = run.iteration + 1 - fault.at
        if fault.kind == "slowdown" or (fault.kind == "slowdown_recovered" and since < fault.length):
            factor *= fault.factor
        elif fault.kind == "slow_rollout":
            factor += fault.factor - 1
        elif fault.kind == "drift":
            factor *= 1 + 0.0001 * since
        elif fault.kind == "transient_slow" and since == 0:
            factor *= max(fault.factor, 1.3)
    if run.since_start == 0:
        factor *= _FIRST_FACTOR
    return max(0.1, factor) * scenario.seconds_per_iteration * run.slow + sum(extra.values())


def _longer(scenario: Scenario, fault: Fault, chance: Random) -> float:
    """Return the seconds that the fault adds to this iteration: `factor` on average, varied by its kind."""
    noise = {"slow_data": 0.35, "slow_network": 0.25}.get(fault.kind, 0.06)
    return (fault.factor - 1) * scenario.seconds_per_iteration * math.exp(chance.gauss(0.0, noise) - noise**2 / 2)


def _generation(scenario: Scenario, run: _Run, active: list[Fault]) -> float:
    """Return the seconds above the usual ones: the length of responses varies, the other parts do not."""
    slower = sum(fault.factor - 1 for fault in active if fault.kind == "slow_rollout")
    return (run.noise + slower) * scenario.seconds_per_iteration


def _iterate(scenario: Scenario, run: _Run, active: list[Fault]) -> Iterator[Emission]:
    extra = {one.kind: _longer(scenario, one, run.of_timers) for one in active if one.kind in _SLOW_PART}
    pure = _pure_seconds(scenario, run, active, extra)
    batch = scenario.batch_size_at(run.samples)
    generation = _generation(scenario, run, active)
    for at, line in lines.lines_in_step(scenario, run.at, pure, generation):
        yield Emission(at, line)
    run.at += pure
    run.iteration += 1
    run.samples += batch
    run.since_start += 1
    overhead = run.pending_overhead if scenario.program.counts_overhead else 0.0
    run.pending_overhead = 0.0
    run.window.append(pure + overhead)
    run.loads.append(extra.get("slow_data", 0.0))
    loss, norm, skipped, text = _learning(scenario, run, active)
    if text:
        yield Emission(run.at, text)
    if run.iteration % scenario.log_interval and run.iteration != 1:
        return
    elapsed = sum(run.window) / len(run.window)
    run.window.clear()
    run.loads, loads = [], run.loads
    loading = sum(loads) / len(loads)
    printed = scenario.timers(scenario, run.iteration, pure, extra, run.of_timers) if scenario.timers else None
    if printed is not None:
        loading += printed.loading - loads[-1]
    step = StepFigures(
        run.iteration, run.samples, batch, elapsed, _learning_rate(scenario, run) * run.rate_factor, loss, norm,
        run.loss_scale if scenario.fp16 else 1.0, skipped, generation,
        loading if scenario.program.facts is DEEPSPEED else 0.0,
    )  # fmt: skip
    text = say("step", scenario, run.at, step=step)
    truth = {"pure_seconds": pure, **step._asdict()}
    if printed is not None:
        text = printed.around(text)
    yield Emission(run.at, text, truth)
    yield from _memory(scenario, run, {fault.kind: fault for fault in reversed(active)})


def _memory(scenario: Scenario, run: _Run, faults: dict[str, Fault]) -> Iterator[Emission]:
    """Yield memory reports after an iteration line."""
    if run.since_start == scenario.log_interval and scenario.program.facts.megatron:
        yield Emission(run.at, lines.memory_lines(scenario, run.iteration))
    grows = faults.get("memory_growth")
    if grows is not None and (run.iteration - grows.at) % 10 == 0:
        yield Emission(run.at, lines.memory_lines(scenario, run.iteration, 1 + 0.02 * (run.iteration - grows.at) / 10))


_Effect = Callable[[_Run, Fault, int, float, float], tuple[float | None, float]]
_EFFECTS: dict[str, _Effect] = {
    "loss_spike": lambda _run, _fault, since, loss, norm: (
        (loss * _SPIKE[since], norm * _SPIKE_NORM[since]) if since < len(_SPIKE) else (loss, norm)
    ),
    "loss_spike_stays": lambda _run, _fault, since, loss, norm: (loss * 1.8, norm * (1 + 30 * math.exp(-since / 20))),
    "resume_bump": lambda run, _fault, _since, loss, norm: (
        (loss * 1.2, norm * 2) if run.since_start <= 10 else (loss, norm)
    ),
    "slow_divergence": lambda _run, _fault, since, loss, norm: (loss * (1 + 0.0005 * since), norm),
    "divergence": lambda _run, _fault, since, loss, norm: (loss * (1 + 0.01 * since), norm * (1 + 0.02 * since)),
    "nan_loss": lambda _run, _fault, _since, _loss, _norm: (None, math.nan),
    "inf_loss": lambda _run, _fault, _since, _loss, norm: (math.inf, norm),
    "frozen_grad_norm": lambda run, fault, since, loss, norm: (loss, run.last_norm if since < fault.length else norm),
}
"""Fault -> loss and grad norm of the iteration `since` iterations after its first one."""


def _learning(scenario: Scenario, run: _Run, active: list[Fault]) -> tuple[float | None, float, int, str]:
    """Return (loss, grad norm, skipped iterations, lines before the iteration's own)."""
    rng = run.random
    # a diverging model does not learn
    learned = min([run.iteration, *(fault.at for fault in active if fault.kind in _STUCK)])
    loss: float | None = 2.0 + 8.0 * math.exp(-learned / 400) + rng.gauss(0, 0.02)
    norm = max(0.05, 0.2 + 2.0 * math.exp(-run.iteration / 300) + rng.gauss(0, 0.02))
    skipped, text = 0, ""
    for fault in active:
        since = run.iteration - fault.at
        if loss is None:
            break
        if since < 0 and fault.kind not in _RESTARTS:
            continue  # a restart went back before it
        if fault.kind in _EFFECTS:
            loss, norm = _EFFECTS[fault.kind](run, fault, since, loss, norm)
        elif fault.kind in ("scale_search", "scale_cycle", "loss_scale_decline"):
            text, frozen = _scaler(scenario, run, fault, since)
            norm, skipped = (run.last_norm, 1) if frozen else (norm, 0)
        elif fault.kind in ("overflow_storm", "loss_scale_collapse"):
            text = lines.overflow(scenario, run.at, run.loss_scale)
            run.loss_scale = max(1.0, run.loss_scale / 2)
            norm, skipped = run.last_norm, 1
    run.last_norm = norm
    return loss, norm, skipped, text


def _scaler(scenario: Scenario, run: _Run, fault: Fault, since: int) -> tuple[str, bool]:
    """Return the loss scaler's (overflow lines, whether this step is skipped)."""
    halves = {
        "scale_search": run.loss_scale > 65536.0,
        "scale_cycle": since % 60 in (1, 2),
        "loss_scale_decline": since in (200, 600, 1000),
    }[fault.kind]
    if fault.kind == "scale_cycle" and since % 60 == 0:
        run.loss_scale *= 2
    if not halves:
        return "", False
    kept = fault.kind == "scale_cycle" and since % 60 == 1  # hysteresis
    text = lines.overflow(scenario, run.at, run.loss_scale, kept)
    if not kept:
        run.loss_scale /= 2
    return text, True


def _learning_rate(scenario: Scenario, run: _Run) -> float:
    step = run.iteration - run.schedule_from
    warm = min(1.0, step / max(1, scenario.iterations // 20))
    return 6e-05 * warm * (0.55 + 0.45 * math.cos(math.pi * step / scenario.iterations))


def _interrupt(scenario: Scenario, run: _Run, active: list[Fault]) -> Generator[Emission, None, bool]:
    """Evaluate and save after an iteration if their intervals require it. Return True if the log ends within."""
    kinds = {fault.kind for fault in active}
    if scenario.eval_interval and run.iteration % scenario.eval_interval == 0:
        for index in range(scenario.eval_sets):
            run.at += scenario.eval_seconds
            run.pending_overhead += scenario.eval_seconds
            loss = 2.1 + 8.0 * math.exp(-run.iteration / 400)
            yield Emission(run.at, lines.validation(scenario, run.iteration, index, loss, run.at))
            if "hang_evaluation" in kinds:
                return True
    program = scenario.program.facts
    saves = scenario.save_interval and (program.megatron or program is DEEPSPEED) and "saves_stop" not in kinds
    if saves and run.iteration % scenario.save_interval == 0:
        return (yield from _save(scenario, run, active, kinds))
    return False


def _save(scenario: Scenario, run: _Run, active: list[Fault], kinds: set[str]) -> Generator[Emission, None, bool]:
    """Save. Return True if the log ends within."""
    yield Emission(run.at, say("saving", scenario, run.at, iteration=run.iteration))
    if kinds & {"hang_saving", "save_unfinished"}:
        return "hang_saving" in kinds
    if "checkpoint_failed" in kinds:
        run.at += scenario.save_seconds / 2
        yield Emission(run.at, _crash(scenario, run, "checkpoint_failed"), {"fault": "checkpoint_failed"})
        return True
    longer = sum(fault.factor - 1 for fault in active if fault.kind == "slow_save")
    duration = scenario.save_seconds + longer * scenario.save_interval * scenario.seconds_per_iteration
    run.at += duration
    run.pending_overhead += duration
    if ended := say("saved", scenario, run.at, iteration=run.iteration, duration=duration * 1000):
        yield Emission(run.at, ended)
    run.saved, run.saved_samples = run.iteration, run.samples
    return False


def _strike(scenario: Scenario, run: _Run, fault: Fault) -> Generator[Emission, None, bool]:
    """Begin the fault. Return True if the log ends with it."""
    kind = fault.kind
    truth = {"fault": kind, "iteration": run.iteration, "at": run.at}
    if kind in _ENDS:
        yield from _end(scenario, run, kind, truth)
        return True
    if kind in _RESTARTS:
        yield from _restart(scenario, run, fault, truth)
    elif kind == "hang_then_resume":
        run.at += fault.seconds
    elif kind == "loss_scale_collapse":
        run.loss_scale = min(run.loss_scale, 1024.0)
    elif kind == "scale_search":
        run.loss_scale = 2.0**32
    return False


def _end(scenario: Scenario, run: _Run, kind: str, truth: dict[str, Any]) -> Iterator[Emission]:
    """Yield the last lines of the log. A hang has none; after verl's last line a rollout begins."""
    if kind == "growing_hang":
        for hour in range(1, 7):
            text = say("pulse", scenario, run.at, hour=hour)
            yield Emission(run.at + 3600 * hour, text, truth if hour == 1 else None)
    elif kind == "kill_switch":
        yield Emission(run.at, say("kill_switch", scenario, run.at), truth)
    elif kind in _CANCELLED:
        yield Emission(run.at, say("cancelled", scenario, run.at, reason=_CANCELLED[kind]), truth)
    elif kind in _CRASHES:
        yield Emission(run.at, _crash(scenario, run, kind), truth)
    elif kind == "crash_nccl":
        run.at += 600.0
        for rank in range(min(scenario.world_size, 16)):
            text = say("watchdog", scenario, run.at, rank=rank, local=rank % 8)
            yield Emission(run.at, text, truth if rank == 0 else None)
        yield Emission(run.at + 60, say("launcher_end", scenario, run.at + 60, code=-6))


def _crash(scenario: Scenario, run: _Run, kind: str) -> str:
    """Yield the lines of a crash, and the launcher's if it reports it."""
    crash = _CRASHES[kind]
    end = say("launcher_end", scenario, run.at, code=crash["code"]) if "code" in crash else ""
    return str(crash["text"]) + end


def _restart(scenario: Scenario, run: _Run, fault: Fault, truth: dict[str, Any]) -> Iterator[Emission]:
    times = 3 if fault.kind == "crash_loop" else 1
    for number in range(times):
        if fault.kind != "launch_blocking":
            yield Emission(run.at, _crash(scenario, run, "crash_ecc"), truth if number == 0 else None)
        else:
            yield Emission(run.at, say("exit", scenario, run.at, iteration=run.iteration), truth)
        run.at += 120.0
        run.iteration, run.samples = run.saved, run.saved_samples
        if fault.kind == "launch_blocking":
            scenario = replace(scenario, launch_blocking=1)
            run.slow = fault.factor
        if fault.kind == "resume_discontinuity":
            run.rate_factor = 2.5
        if fault.kind == "lr_restart":
            run.schedule_from = run.iteration
        yield from _attempt(scenario, run)
        if number < times - 1:
            yield from _iterate(scenario, run, [])


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
