"""The timers of an iteration, in the forms that programs print them, with faults that lengthen one part of it.

The parts are made from the iteration's own time: shares that the seed decides, with the noise that each kind of part
has in public logs (compute 0.2 to 0.6 %; data 16 to 24 %, communication 4 to 30 % where it is long or short: at most
0.5 % of the iteration), single bursts, and what is left is outside all timers. A part that a fault lengthens has its
own noise, and waiting is where the program measures it.
"""

import math
import random
from dataclasses import dataclass, field
from functools import cache

from megatron_monitor.simulate.scenario import Fault, Scenario

SLOW = frozenset({"slow_data", "slow_network", "slow_rank", "slow_gpu_clocks"})
"""Faults that lengthen a part of the iteration."""
_SHARES = {"data": (0.002, 0.02), "communication": (0.02, 0.2), "optimizer": (0.01, 0.08), "outside": (0.01, 0.1)}
_NOISE = {"forward": 0.005, "backward": 0.005, "data": 0.25, "communication": 0.3, "optimizer": 0.25}
_OF_ITERATION = 0.005  # no part varies by more of the iteration
_BURSTS = 0.03  # iterations in which communication or data takes much longer
_RANKS = 0.01  # relative standard deviation of compute over the ranks: GPUs differ by their silicon
_STAGES = 0.08  # pipeline stages differ by construction

_Took = tuple[float, float]


@dataclass(slots=True)
class Parts:
    """Seconds of one iteration, (least, most) over the ranks."""

    forward: _Took
    backward: _Took
    data: _Took
    communication: _Took
    optimizer: _Took
    whole: float
    slow: dict[int, float] = field(default_factory=dict)
    """Rank -> seconds that it alone computes longer."""


def parts_of(
    scenario: Scenario, elapsed: float, extra: dict[str, float], faults: list[Fault], rng: random.Random
) -> Parts:
    """Where the time of an iteration went that took `elapsed` seconds, those of the faults (`extra`) included."""
    plain = max(0.1 * elapsed, elapsed - sum(extra.values()))
    took = {}
    for name, share in _shares(scenario.seed).items():
        noise = min(_NOISE[name], _OF_ITERATION / share)
        middle = share * plain * math.exp(rng.gauss(0.0, noise) - noise**2 / 2)
        if name in ("data", "communication") and rng.random() < _BURSTS:
            middle *= 1 + rng.expovariate(1.0)
        spread = (_STAGES if scenario.pp > 1 else _RANKS) if name in ("forward", "backward") else noise / 2
        took[name] = (middle * (1 - spread * rng.uniform(0.9, 1.1)), middle * (1 + spread * rng.uniform(0.5, 0.6)))
    hidden = sum(longer(scenario, fault, rng) for fault in faults if fault.kind == "straggler")
    clocks, rank = extra.get("slow_gpu_clocks", 0.0), extra.get("slow_rank", 0.0) + hidden
    for name, share in (("forward", 1 / 3), ("backward", 2 / 3)):
        low, high = took[name]
        took[name] = low + share * clocks, high + share * (clocks + rank)
    network, data = extra.get("slow_network", 0.0), extra.get("slow_data", 0.0)
    low, high = took["communication"]
    waits = rank + (data if scenario.pp > 1 else 0.0)  # ranks wait where the program has no barrier before
    took["communication"] = low + network, high + network + (waits if scenario.pp > 1 or scenario.seed % 2 else 0.0)
    low, high = took["data"]
    took["data"] = low + (data if scenario.pp <= 2 else 0.0), high + data
    low, high = took["forward"]  # the batch is taken inside the forward pass
    took["forward"] = low + took["data"][0], high + took["data"][1]
    return Parts(**took, whole=elapsed, slow={scenario.seed % max(1, scenario.world_size): rank} if rank else {})


@cache
def _shares(seed: int) -> dict[str, float]:
    """Part -> its share of the iteration."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    shares = {name: math.exp(chance.uniform(math.log(low), math.log(high))) for name, (low, high) in _SHARES.items()}
    compute = 1 - sum(shares.values())
    del shares["outside"]
    return {"forward": compute / 3, "backward": 2 * compute / 3, **shares}


def longer(scenario: Scenario, fault: Fault, rng: random.Random) -> float:
    """Seconds that the fault adds to this iteration: in the mean `factor`, more or less by its kind."""
    noise = {"slow_data": 0.35, "slow_network": 0.25}.get(fault.kind, 0.06)
    return (fault.factor - 1) * scenario.seconds_per_iteration * math.exp(rng.gauss(0.0, noise) - noise**2 / 2)


def _named(scenario: Scenario, parts: Parts) -> dict[str, _Took]:
    """Timers of Megatron at level 2."""
    comm, step = parts.communication, parts.optimizer
    waits = (
        {"forward-recv": 0.3, "backward-recv": 0.4, "all-grads-sync": 0.3}
        if scenario.pp > 1
        else {"all-grads-sync": 1.0}
    )
    named: dict[str, _Took] = {
        "forward-backward": (parts.whole - 1.1 * step[1], parts.whole - 1.05 * step[0]),
        "forward-compute": parts.forward,
        "backward-compute": parts.backward,
        "batch-generator": parts.data,
    }
    named |= {name: (share * comm[0], share * comm[1]) for name, share in waits.items()}
    shares = {"optimizer-copy-to-main-grad": 0.1, "optimizer-clip-main-grad": 0.3, "optimizer-inner-step": 0.5}
    named |= {name: (share * step[0], share * step[1]) for name, share in shares.items()}
    return named | {"optimizer": step}


def _across(named: dict[str, _Took], head: str, form: str) -> str:
    rows = (
        f"    {(name + ' ').ljust(48, '.')}: {form.format(1000 * low, 1000 * high)}\n"
        for name, (low, high) in named.items()
    )
    return f"{head} time across ranks (ms):\n" + "".join(rows)


def _range(scenario: Scenario, parts: Parts) -> str:
    return _across(_named(scenario, parts), "(min, max)", "({:.2f}, {:.2f})")


def _maximum(scenario: Scenario, parts: Parts) -> str:
    return _across(_named(scenario, parts), "max", "{1:.2f}")


def _passes(scenario: Scenario, parts: Parts) -> str:
    """At level 1: no timer inside the passes."""
    lines = _range(scenario, parts).splitlines(keepends=True)
    return "".join(line for line in lines if "-compute" not in line and "-recv" not in line and "batch-" not in line)


def _ranks(scenario: Scenario, parts: Parts) -> str:
    """Each rank's time, of sixteen ranks at most."""
    ranks, text = min(scenario.world_size, 16), "times across ranks (ms):\n"
    for name, (low, high) in _named(scenario, parts).items():
        text += f"  {name}:\n"
        compute = name in ("forward-compute", "backward-compute")
        slow = next(iter(parts.slow), None) if compute else None
        most = high - (sum(parts.slow.values()) * (1 / 3 if name == "forward-compute" else 2 / 3) if compute else 0.0)
        for rank in range(ranks):
            took = low + (most - low) * _place(rank, ranks, scenario.pp)
            if slow is not None and rank == slow % ranks:
                took += high - most
            text += f"     rank {rank:2d}: {1000 * took:.2f}\n"
    return text


def _place(rank: int, ranks: int, stages: int) -> float:
    """Where a rank lies between the least (0) and the most (1): stages lie apart, their ranks close to each other."""
    mixed = (7 * rank) % ranks / max(1, ranks - 1)
    if stages == 1:
        return mixed
    size = max(1, ranks // stages)
    return 0.92 * (rank // size) / max(1, (ranks - 1) // size) + 0.08 * mixed


def _one(_scenario: Scenario, parts: Parts) -> str:
    """The forks' line: timers of the last rank, which loads data and waits for a slow one."""
    waits, data = sum(parts.slow.values()), parts.data[1]
    comm = parts.communication[0] + waits
    short = {
        "forward-compute": parts.forward[0] - parts.data[0] + data, "backward-compute": parts.backward[0],
        "backward-params-all-reduce": comm, "optimizer": parts.optimizer[0], "batch-generator": data,
    }  # fmt: skip
    return "time (ms)" + "".join(f" | {name}: {1000 * took:.2f}" for name, took in short.items()) + "\n"


def _engine(_scenario: Scenario, parts: Parts) -> str:
    """DeepSpeed's wall_clock_breakdown on rank 0; the data loader is in no timer of it."""
    head = "[2026-01-01 00:00:00,000] [INFO] [logging.py:128:log_dist] [Rank 0] time (ms)"
    inner, comm = parts.backward[0], parts.communication[0] + sum(parts.slow.values())
    forward, step = parts.forward[0] - parts.data[0], parts.optimizer[0]
    whole = {"fwd": forward, "bwd": inner + comm, "bwd_inner": inner, "bwd_allreduce": comm, "step": step}
    micro = {f"{name}_microstep": took for name, took in whole.items()}
    return "".join(
        head + "".join(f" | {name}: {1000 * took:.2f}" for name, took in timers.items()) + "\n"
        for timers in (micro, whole)
    )


REPORTS = {"range": _range, "maximum": _maximum, "ranks": _ranks, "passes": _passes, "one": _one, "engine": _engine}
"""Form of the report -> its lines, of a scenario and its parts."""
