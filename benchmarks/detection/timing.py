"""Hangs and slowdowns: false alarms on healthy runs, delay after a step or a drift.

    python -m benchmarks.detection.timing [--final] [--healthy 10] [--faults 20]

Without --final the development seeds are used, with it the seeds that nothing was tuned on.
"""

import argparse
import collections
import json
import random
import statistics
from collections.abc import Callable
from typing import Any

from benchmarks.detection.timing_series import Series, events
from megatron_monitor.config import Config
from megatron_monitor.evaluation import Evaluator, MonitoredRun
from megatron_monitor.parsers.events import LogEvent
from megatron_monitor.run.state import RunState
from megatron_monitor.source_clock import TimedEvent

SEEDS = {"development": 1_000, "final": 1_900_000}


def reported(series: Series) -> list[dict[str, Any]]:
    """Everything that is notified of the run: firing, not quiet."""
    judge, run = Evaluator(Config()), MonitoredRun(RunState(name=f"series-{series.seed}", live=True))
    out: list[dict[str, Any]] = []
    for number, (at, event) in enumerate(events(series)):
        placed = TimedEvent.of(at, LogEvent(number, "bench", event, ""), "bench")
        transitions = judge.take(run, [placed], "bench", at, True)
        out.extend(item.to_json() for item in transitions if item.status == "firing" and not item.display_only)
    return out


def healthy(seed: int, runs: int, noise: float, iterations: int, bursts: float = 0.3) -> dict[str, object]:
    """False incidents of each kind over `runs` x `iterations`."""
    kinds: collections.Counter[str] = collections.Counter()
    for number in range(runs):
        for item in reported(Series(seed=seed + number, noise=noise, iterations=iterations, bursts=bursts)):
            kinds[item["incident"]] += 1
    return {"noise": noise, "bursts": bursts, "iterations": runs * iterations, "false": dict(kinds)}


def delays(
    what: dict[str, object], seed: int, runs: int, noise: float, slow: Callable[[int], float], horizon: int
) -> dict[str, object]:
    """Iterations until a run is reported whose iterations are `slow(n)` times as long, n iterations after the onset."""
    waits, before = [], 0
    for number in range(runs):
        at = 4_000 + (random.Random(seed + number).randrange(200) if "step" in what else 0)
        series = Series(
            seed=seed + number, noise=noise, first=3_600, iterations=at - 3_600 + horizon, ramp=False,
            restart_every=10**9, slow=lambda i, at=at: slow(i - at) if i >= at else 1.0,  # type: ignore[misc]
        )  # fmt: skip
        found = [item["iteration"] for item in reported(series) if item["incident"] == "slowdown"]
        before += sum(i < at for i in found)
        waits.append(min((i - at + 1 for i in found if i >= at), default=10**6))
    ordered = sorted(waits)
    seen = [wait for wait in ordered if wait < 10**6]
    median, p95 = statistics.median(seen) if seen else None, ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    found = {"found": f"{len(seen)}/{len(ordered)}", "median": median, "p95": p95, "max": ordered[-1]}
    return {"noise": noise, **what, **found, "false before": before}


def main() -> None:
    """Print one JSON object a row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--final", action="store_true")
    parser.add_argument("--healthy", type=int, default=10, help="healthy runs of 10,000 iterations")
    parser.add_argument("--faults", type=int, default=20, help="runs a fault")
    options = parser.parse_args()
    seed = SEEDS["final" if options.final else "development"]
    for noise in (0.004, 0.01, 0.02):
        for bursts in (0.3, 0.01):
            print(json.dumps({"healthy": healthy(seed, options.healthy, noise, 10_000, bursts)}), flush=True)
    for noise in (0.004, 0.01, 0.02):
        for factor in (1.02, 1.03, 1.05, 1.10):
            row = delays({"step": factor}, seed, options.faults, noise, lambda _, f=factor: f, 300)
            print(json.dumps(row), flush=True)
        row = delays({"drift": "1 % per 100"}, seed, options.faults, noise, lambda n: 1.0 + n * 1e-4, 900)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
