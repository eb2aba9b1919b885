"""Forms of timers that only tests simulate; `megatron_monitor.simulate` knows them once this is imported."""

from megatron_monitor.simulate.scenario import Scenario
from megatron_monitor.simulate.timers import REPORTS, IterationParts, across, named


def _maximum(scenario: Scenario, parts: IterationParts, line: str) -> str:
    return line + across(named(scenario, parts), "max", "{1:.2f}")


def _passes(scenario: Scenario, parts: IterationParts, line: str) -> str:
    """At level 1: no timer inside the passes."""
    rows = REPORTS["range"](scenario, parts, "").splitlines(keepends=True)
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


REPORTS |= {"maximum": _maximum, "ranks": _ranks, "passes": _passes, "one": _one, "engine": _engine}
