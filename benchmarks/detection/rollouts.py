"""Reinforcement learning: false alarms of healthy runs whose rollouts vary, hangs in a rollout, and slower rollouts.

    python -m benchmarks.detection.rollouts [--final] [--runs 50] [--noise 0.1]

Each run is a verl training of random pace (steps of 16 s to 8 min). `noise` is the relative standard deviation of the
time of a rollout, autocorrelated, with 1 % outliers of 8 % of the step in the mean. A hang is told by the budget of the
rollouts: its silence over the longest rollout of the run, and over the whole step, for which a budget of the step would
wait three times.
"""

import argparse
import collections
import json
import random

from benchmarks.detection.causes import causes
from megatron_monitor.config import Config
from megatron_monitor.incidents import Transition
from megatron_monitor.judgement import Judge
from megatron_monitor.parsers.reader import SourceReader
from megatron_monitor.replay import Replay
from megatron_monitor.run.state import RunState
from megatron_monitor.simulate import Fault, Scenario, timeline
from megatron_monitor.source_clock import Placed
from megatron_monitor.statistics.median import median

SEEDS = {"development": 20_000, "final": 3_100_000}
_ROLLOUT = 0.55  # of a step (simulate/lines.py)


def scenario(seed: int, noise: float, iterations: int, fault: Fault | None = None) -> Scenario:
    """A training of random pace."""
    pace = 2 ** random.Random(seed).uniform(4, 9)
    faults = () if fault is None else (fault,)
    return Scenario(
        dialect="verl", iterations=iterations, seconds_per_iteration=pace, noise=noise * _ROLLOUT, seed=seed,
        faults=faults,
    )  # fmt: skip


def played(each: Scenario, silence: float) -> tuple[list[Transition], RunState]:
    """What a person is told, with so many seconds of silence at the end."""
    reader, player = SourceReader(), Replay(Judge(Config(), repeats=False), "run")
    told: list[Transition] = []
    at = 0.0
    for at, text, _ in timeline(each):
        told += player.pass_until(at)
        for entry in reader.feed(text.encode()):
            told += player.play([Placed(at, entry, "log")])
    told += player.finish(at + silence - player.now)
    return [item for item in told if not item.quiet], player.run.state


def main() -> None:
    """Print one JSON object a row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--final", action="store_true")
    parser.add_argument("--runs", type=int, default=20, help="trainings a row")
    parser.add_argument("--noise", type=float, default=0.1)
    options = parser.parse_args()
    seeds = [SEEDS["final" if options.final else "development"] + number for number in range(options.runs)]
    false = collections.Counter(
        item.incident for seed in seeds for item in played(scenario(seed, options.noise, 300), 0.0)[0]
    )
    row = {"runs": len(seeds), "steps": 300 * len(seeds), "noise": options.noise, "told": dict(false)}
    print(json.dumps({"healthy": row}), flush=True)
    found, of_rollout, of_step, exact = 0, [], [], 0
    for seed in seeds:
        each = scenario(seed, options.noise, 200, Fault("hang_rollout", 100 + seed % 50))
        told, state = played(each, 20 * each.seconds_per_iteration + 600)
        hangs = [item for item in told if item.incident == "hang"]
        if len(told) == 1 and hangs and hangs[0].evidence["phase"] == "rollout":
            found += 1
            silence = float(hangs[0].evidence["silence_seconds"])
            exact += abs(silence - float(hangs[0].evidence["budget_seconds"])) < 1.0
            of_rollout.append(silence / (state.past.silences.longest("rollout") or 1.0))
            of_step.append(silence / each.seconds_per_iteration)
    print(json.dumps({"hang in rollout": {
        "found as such": found, "of": len(seeds), "at the budget": exact,
        "silence over the longest rollout": round(median(of_rollout), 2),
        "silence over a step": [round(min(of_step), 2), round(median(of_step), 2), round(max(of_step), 2)],
    }}), flush=True)  # fmt: skip
    for factor in (1.1, 1.3):
        named = [causes(scenario(seed, options.noise, 160, Fault("slow_rollout", 110, factor))) for seed in seeds]
        counts = {
            when: dict(collections.Counter(map(str, told)))
            for when, told in zip(("first", "later"), zip(*named, strict=True), strict=True)
        }
        print(json.dumps({"slow rollout": {"step longer by": factor, **counts}}), flush=True)


if __name__ == "__main__":
    main()
