"""What only tests simulate: the timers of an iteration as programs print them, with faults that lengthen one part
(`effects` has these and other faults).

The parts are computed from the iteration's own time: shares from the seed, with the noise of public logs (compute 0.2
to 0.6 %; data 16 to 24 % and communication 4 to 30 %, at most 0.5 % of the iteration), single bursts, and a remainder
outside all timers. A part that a fault lengthens has its own noise. Waiting appears where the program measures it.
"""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache

from megatron_monitor.parsers.programs import BY_NAME
from megatron_monitor.simulate.lines import Step
from megatron_monitor.simulate.scenario import PROGRAMS, Scenario
from megatron_monitor.simulate.timeline import Run
from tests.simulated import effects  # noqa: F401 - adds its faults

WITH_MEGATRON_SETUP = [name for name, program in PROGRAMS.items() if program.facts.name in BY_NAME]
"""Programs that print Megatron's lines of set-up and of saves."""

_SHARES = {"data": (0.002, 0.02), "communication": (0.02, 0.2), "optimizer": (0.01, 0.08), "outside": (0.01, 0.1)}
_NOISE = {"forward": 0.005, "backward": 0.005, "data": 0.25, "communication": 0.3, "optimizer": 0.25}
_OF_ITERATION = 0.005  # maximum variation of a part as a share of the iteration
_BURSTS = 0.03  # share of iterations in which communication or data takes much longer
_RANKS = 0.01  # relative standard deviation of compute over the ranks: GPUs differ
_STAGES = 0.08  # pipeline stages differ by design

Durations = tuple[float, float]
"""Seconds: minimum and maximum over the ranks."""


@dataclass(slots=True)
class IterationParts:
    """Seconds of one iteration: (minimum, maximum) over the ranks."""

    forward: Durations
    backward: Durations
    data: Durations
    communication: Durations
    optimizer: Durations
    whole: float
    slow: dict[int, float] = field(default_factory=dict)
    """Rank -> seconds that only this rank computes longer."""


def parts_of(scenario: Scenario, elapsed: float, extra: dict[str, float], rng: random.Random) -> IterationParts:
    """Return the parts of an iteration of `elapsed` seconds, including those of the faults (`extra`)."""
    plain = max(0.1 * elapsed, elapsed - sum(extra.values()))
    duration = {}
    for name, share in _shares(scenario.seed).items():
        noise = min(_NOISE[name], _OF_ITERATION / share)
        middle = share * plain * math.exp(rng.gauss(0.0, noise) - noise**2 / 2)
        if name in ("data", "communication") and rng.random() < _BURSTS:
            middle *= 1 + rng.expovariate(1.0)
        spread = (_STAGES if scenario.pp > 1 else _RANKS) if name in ("forward", "backward") else noise / 2
        duration[name] = (middle * (1 - spread * rng.uniform(0.9, 1.1)), middle * (1 + spread * rng.uniform(0.5, 0.6)))
    clocks, rank = extra.get("slow_gpu_clocks", 0.0), extra.get("slow_rank", 0.0)
    for name, share in (("forward", 1 / 3), ("backward", 2 / 3)):
        low, high = duration[name]
        duration[name] = low + share * clocks, high + share * (clocks + rank)
    network, data = extra.get("slow_network", 0.0), extra.get("slow_data", 0.0)
    low, high = duration["communication"]
    waits = rank + (data if scenario.pp > 1 else 0.0)  # ranks wait if the program has no barrier before
    duration["communication"] = low + network, high + network + (waits if scenario.pp > 1 or scenario.seed % 2 else 0.0)
    low, high = duration["data"]
    duration["data"] = low + (data if scenario.pp <= 2 else 0.0), high + data
    low, high = duration["forward"]  # the batch is loaded within the forward pass
    duration["forward"] = low + duration["data"][0], high + duration["data"][1]
    return IterationParts(
        **duration, whole=elapsed, slow={scenario.seed % max(1, scenario.world_size): rank} if rank else {}
    )


@cache
def _shares(seed: int) -> dict[str, float]:
    """Return part -> its share of the iteration."""
    chance = random.Random(seed)
    shares = {name: math.exp(chance.uniform(math.log(low), math.log(high))) for name, (low, high) in _SHARES.items()}
    compute = 1 - sum(shares.values())
    del shares["outside"]
    return {"forward": compute / 3, "backward": 2 * compute / 3, **shares}


def named(scenario: Scenario, parts: IterationParts) -> dict[str, Durations]:
    """Return Megatron's timers at level 2."""
    comm, step = parts.communication, parts.optimizer
    waits = (
        {"forward-recv": 0.3, "backward-recv": 0.4, "all-grads-sync": 0.3}
        if scenario.pp > 1
        else {"all-grads-sync": 1.0}
    )
    found: dict[str, Durations] = {
        "forward-backward": (parts.whole - 1.1 * step[1], parts.whole - 1.05 * step[0]),
        "forward-compute": parts.forward,
        "backward-compute": parts.backward,
        "batch-generator": parts.data,
    }
    found |= {name: (share * comm[0], share * comm[1]) for name, share in waits.items()}
    shares = {"optimizer-copy-to-main-grad": 0.1, "optimizer-clip-main-grad": 0.3, "optimizer-inner-step": 0.5}
    found |= {name: (share * step[0], share * step[1]) for name, share in shares.items()}
    return found | {"optimizer": step}


def across(timers: dict[str, Durations], head: str, form: str) -> str:
    """Return a block of Megatron's: one timer per line in ms. `form` is how minimum and maximum are shown."""
    rows = (
        f"    {(name + ' ').ljust(48, '.')}: {form.format(1000 * low, 1000 * high)}\n"
        for name, (low, high) in timers.items()
    )
    return f"{head} time across ranks (ms):\n" + "".join(rows)


def _range(scenario: Scenario, parts: IterationParts, line: str) -> str:
    return line + across(named(scenario, parts), "(min, max)", "({:.2f}, {:.2f})")


def _maximum(scenario: Scenario, parts: IterationParts, line: str) -> str:
    return line + across(named(scenario, parts), "max", "{1:.2f}")


def _passes(scenario: Scenario, parts: IterationParts, line: str) -> str:
    """At level 1: no timer inside the passes."""
    rows = _range(scenario, parts, "").splitlines(keepends=True)
    return line + "".join(row for row in rows if not any(inner in row for inner in ("-compute", "-recv", "batch-")))


def _ranks(scenario: Scenario, parts: IterationParts, line: str) -> str:
    """Each rank's time, of sixteen ranks at most."""
    ranks, text = min(scenario.world_size, 16), "times across ranks (ms):\n"
    for name, (low, high) in named(scenario, parts).items():
        text += f"  {name}:\n"
        compute = name in ("forward-compute", "backward-compute")
        slow = next(iter(parts.slow), None) if compute else None
        most = high - (sum(parts.slow.values()) * (1 / 3 if name == "forward-compute" else 2 / 3) if compute else 0.0)
        for rank in range(ranks):
            duration = low + (most - low) * _place(rank, ranks, scenario.pp)
            if slow is not None and rank == slow % ranks:
                duration += high - most
            text += f"     rank {rank:2d}: {1000 * duration:.2f}\n"
    return line + text


def _place(rank: int, ranks: int, stages: int) -> float:
    """Where a rank lies between the least (0) and the most (1): stages lie apart, their ranks close to each other."""
    mixed = (7 * rank) % ranks / max(1, ranks - 1)
    if stages == 1:
        return mixed
    size = max(1, ranks // stages)
    return 0.92 * (rank // size) / max(1, (ranks - 1) // size) + 0.08 * mixed


def _one(_scenario: Scenario, parts: IterationParts, line: str) -> str:
    """The forks' line: timers of the last rank, which loads data and waits for a slow one."""
    waits, data = sum(parts.slow.values()), parts.data[1]
    comm = parts.communication[0] + waits
    short = {
        "forward-compute": parts.forward[0] - parts.data[0] + data, "backward-compute": parts.backward[0],
        "backward-params-all-reduce": comm, "optimizer": parts.optimizer[0], "batch-generator": data,
    }  # fmt: skip
    return f"{line}time (ms)" + "".join(f" | {name}: {1000 * duration:.2f}" for name, duration in short.items()) + "\n"


def _engine(_scenario: Scenario, parts: IterationParts, line: str) -> str:
    """DeepSpeed's wall_clock_breakdown on rank 0; the data loader is in no timer of it."""
    head = "[2026-01-01 00:00:00,000] [INFO] [logging.py:128:log_dist] [Rank 0] time (ms)"
    inner, comm = parts.backward[0], parts.communication[0] + sum(parts.slow.values())
    forward, step = parts.forward[0] - parts.data[0], parts.optimizer[0]
    whole = {"fwd": forward, "bwd": inner + comm, "bwd_inner": inner, "bwd_allreduce": comm, "step": step}
    micro = {f"{name}_microstep": duration for name, duration in whole.items()}
    reported = "".join(
        head + "".join(f" | {name}: {1000 * duration:.2f}" for name, duration in timers.items()) + "\n"
        for timers in (micro, whole)
    )
    return reported + line


_FORMS: dict[str, Callable[[Scenario, IterationParts, str], str]] = {
    "range": _range, "maximum": _maximum, "ranks": _ranks, "passes": _passes, "one": _one, "engine": _engine,
}  # fmt: skip
"""A scenario, the parts of an iteration and its line -> the line with the timers where the program prints them."""


Inner = Callable[[Scenario, Run, Step, str], Iterator[tuple[float, str]]]


def printed(form: str, every: int = 1) -> Inner | None:
    """`Scenario.inner`: timers of this form, in one of `every` iteration lines; without a form none."""
    if form == "verl":
        return _verl
    if not form:
        return None

    def inner(scenario: Scenario, run: Run, step: Step, line: str) -> Iterator[tuple[float, str]]:
        if step.iteration % (every * scenario.log_interval) == 0:
            parts = parts_of(scenario, step.pure_seconds, step.extra, run.of_effects)
            line = _FORMS[form](scenario, parts, line)
        yield run.at, line

    return inner


_WORKER, _TASK = "\x1b[36m(WorkerDict pid=4243)\x1b[0m ", "\x1b[36m(TaskRunner pid=4243)\x1b[0m "
_MEMORY = "memory allocated (GB): 4.14, memory reserved (GB): 7.84, device memory used/total (GB): 20.5/79.2\n"
_VERL = (
    ("gen", 0.55, ""),
    ("old_log_prob", 0.08, f"{_WORKER}dp actor Before compute_log_prob, {_MEMORY}"),
    ("ref", 0.08, ""),
    ("adv", 0.01, ""),
    ("update_actor", 0.25, f"{_TASK}list(reward_extra_infos_dict.keys())=[]\n"),
    ("update_weights", 0.03, f"{_WORKER}After resume weights, {_MEMORY}"),
)
"""Timer of a part, its share of a usual step, and the line that tells that it begins (VERL_LOGGING_LEVEL=DEBUG)."""


def _verl(scenario: Scenario, run: Run, step: Step, line: str) -> Iterator[tuple[float, str]]:
    """The parts of verl's step: the length of responses varies, the other parts do not."""
    longer = run.noise * scenario.seconds_per_iteration + step.extra.get("slow_rollout", 0.0)
    at, timers = run.at - step.pure_seconds, ""
    for number, (timer, share, text) in enumerate(_VERL):
        if text:
            yield at, text
        seconds = share * (step.pure_seconds - longer) + (0.0 if number else longer)
        timers += f"timing_s/{timer}:{seconds:.3f} - "
        at += seconds
    yield run.at, line.replace("timing_s/step", f"{timers}timing_s/step")
