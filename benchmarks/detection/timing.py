"""Hangs and slowdowns: false alarms on healthy runs, delay after a step or a drift.

    python -m benchmarks.detection.timing [--final] [--healthy 10] [--faults 20]

Without --final the development seeds are used, with it the seeds that nothing was tuned on.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import statistics
import time
from typing import Any

from benchmarks.detection.timing_series import Series, events
from monitor.config import Config
from monitor.judgement import Judge
from monitor.replay import Replay
from parsers.events import LogEvent

SEEDS = {"development": 1_000, "final": 1_500_000}


def told(series: Series) -> list[dict[str, Any]]:
    """Everything that a person would be told of the run: firing, not quiet."""
    player = Replay(Judge(Config()), f"series-{series.seed}")
    out: list[dict[str, Any]] = []
    for number, (at, event) in enumerate(events(series)):
        transitions = player.play(at, LogEvent(number, "bench", event, ""), "bench")
        out.extend(item.to_json() for item in transitions if item.status == "firing" and not item.quiet)
    return out


def healthy(seed: int, runs: int, noise: float, iterations: int, bursts: float = 0.3) -> dict[str, object]:
    """False incidents of each kind over `runs` x `iterations`."""
    kinds: collections.Counter[str] = collections.Counter()
    for number in range(runs):
        for item in told(Series(seed=seed + number, noise=noise, iterations=iterations, bursts=bursts)):
            kinds[item["incident"]] += 1
    return {"noise": noise, "bursts": bursts, "iterations": runs * iterations, "false": dict(kinds)}


def step(seed: int, runs: int, noise: float, factor: float, horizon: int = 300) -> dict[str, object]:
    """Iterations until a step of `factor` is told."""
    delays, before = [], 0
    for number in range(runs):
        at = 4_000 + random.Random(seed + number).randrange(200)
        series = Series(seed=seed + number, noise=noise, first=3_600, iterations=at - 3_600 + horizon, ramp=False,
                        restart_every=10**9, slow=lambda i, at=at: factor if i >= at else 1.0)  # fmt: skip
        found = [item["iteration"] for item in told(series) if item["incident"] == "slowdown"]
        before += sum(i < at for i in found)
        delays.append(min((i - at + 1 for i in found if i >= at), default=10**6))
    return _delays({"noise": noise, "step": factor}, delays, before)


def drift(seed: int, runs: int, noise: float) -> dict[str, object]:
    """Iterations until a drift of 1 % per 100 iterations is told."""
    delays, before = [], 0
    for number in range(runs):
        at = 4_000
        series = Series(seed=seed + number, noise=noise, first=3_600, iterations=at - 3_600 + 900, ramp=False,
                        restart_every=10**9, slow=lambda i, at=at: 1.0 + max(0, i - at) * 1e-4)  # fmt: skip
        found = [item["iteration"] for item in told(series) if item["incident"] == "slowdown"]
        before += sum(i < at for i in found)
        delays.append(min((i - at + 1 for i in found if i >= at), default=10**6))
    return _delays({"noise": noise, "drift": "1 % per 100"}, delays, before)


def _delays(head: dict[str, object], delays: list[int], before: int) -> dict[str, object]:
    ordered = sorted(delays)
    found = [delay for delay in ordered if delay < 10**6]
    return {
        **head,
        "found": f"{len(found)}/{len(delays)}",
        "median": statistics.median(found) if found else None,
        "p95": ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))],
        "max": ordered[-1],
        "false before": before,
    }


def main() -> None:
    """Print one JSON object a row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--final", action="store_true")
    parser.add_argument("--healthy", type=int, default=10, help="healthy runs of 10,000 iterations")
    parser.add_argument("--faults", type=int, default=20, help="runs a fault")
    options = parser.parse_args()
    seed = SEEDS["final" if options.final else "development"]
    began = time.perf_counter()
    for noise in (0.004, 0.01, 0.02):
        for bursts in (0.3, 0.01):
            print(json.dumps({"healthy": healthy(seed, options.healthy, noise, 10_000, bursts)}), flush=True)
    for noise in (0.004, 0.01, 0.02):
        for factor in (1.02, 1.03, 1.05, 1.10):
            print(json.dumps(step(seed, options.faults, noise, factor)), flush=True)
        print(json.dumps(drift(seed, options.faults, noise)), flush=True)
    print(json.dumps({"seconds": round(time.perf_counter() - began, 1)}))


if __name__ == "__main__":
    main()
