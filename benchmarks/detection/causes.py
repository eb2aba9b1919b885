"""The cause of a slowdown: how often it is named right, wrong, or not, by the form in which a log prints its timers.

    python -m benchmarks.detection.causes [--final] [--runs 20] [--factor 1.05] [--form range ...]

Each run is a training of random size, pace, noise and shares, with one fault. A log that prints one rank's timers
cannot tell the network from a slow rank elsewhere, DeepSpeed has no timer for the data loader, and a log without timers
inside the passes tells nothing of what is in them: there `communication`, `outside_timers` and `unknown` are right. The
cause of the first notification is judged, and that of the incident 30 iterations later. `alone` is DeepSpeed's engine
without Megatron's line; `saves` are runs of three programs whose saves take longer, by `factor` less 1 of the time
between two saves. Each form ends with healthy runs: there nothing is right but to tell nothing.
"""

import argparse
import collections
import json
import random
from collections.abc import Sequence

from megatron_monitor.config import Config
from megatron_monitor.detectors import slowdown
from megatron_monitor.judgement import Judge
from megatron_monitor.parsers.reader import SourceReader
from megatron_monitor.replay import Replay
from megatron_monitor.simulate import Fault, Scenario, timeline
from megatron_monitor.simulate.timers import REPORTS
from megatron_monitor.source_clock import Placed
from tests import simulated as simulated  # further forms of timers

SEEDS = {"development": 10_000, "final": 3_900_000}
_EXACT = {
    "slow_data": {"data"}, "slow_network": {"network"}, "slow_rank": {"slow_rank"}, "slow_gpu_clocks": {"compute"},
}  # fmt: skip
RIGHT: dict[str, dict[str, set[str]]] = {
    "range": _EXACT,
    "ranks": _EXACT,
    "maximum": _EXACT | {"slow_network": {"communication"}, "slow_rank": {"slow_rank", "compute"}},
    "one": _EXACT | {"slow_network": {"communication"}, "slow_rank": {"communication"}},
    "engine": _EXACT | {
        "slow_data": {"outside_timers"}, "slow_network": {"communication"}, "slow_rank": {"communication"},
    },
    "alone": _EXACT | {
        "slow_data": {"outside_timers"}, "slow_network": {"communication"}, "slow_rank": {"communication"},
    },
    "saves": {"slow_save": {"checkpoint"}},
    "passes": {
        "slow_data": {"unknown"}, "slow_network": {"network", "unknown"}, "slow_rank": {"unknown", "communication"},
        "slow_gpu_clocks": {"unknown"},
    },
}  # fmt: skip
"""Form -> fault -> what its timers can prove."""
_DIALECT = {"one": "megatron-lm-2021", "engine": "microsoft", "alone": "deepspeed"}
_SAVING = ("megatron-lm", "bigscience", "deepspeed")
_EVERY = 20  # iterations between two saves
HEALTHY = "none"


def scenario(form: str, kind: str, factor: float, seed: int) -> Scenario:
    """A training of random size and pace whose fault strikes between its 110th and 140th iteration."""
    chance = random.Random(seed)
    if form == "saves":
        return _saving(chance, kind, factor, seed)
    pp = chance.choice((1, 1, 2, 4, 8))
    at = chance.randrange(110, 140)
    return Scenario(
        dialect=_DIALECT.get(form, "megatron-lm"), iterations=at + 45, seed=seed,
        timers="engine" if form == "alone" else form,
        seconds_per_iteration=2 ** chance.uniform(0, 6), noise=chance.choice((0.002, 0.004, 0.007, 0.01)),
        world_size=8 * pp * chance.choice((1, 2, 8)), tp=chance.choice((1, 2, 4)), pp=pp, save_interval=0,
        global_batch_size=512, faults=_faults(kind, at, factor),
    )  # fmt: skip


def _faults(kind: str, at: int, factor: float) -> tuple[Fault, ...]:
    return () if kind == HEALTHY else (Fault(kind, at, factor),)


def _saving(chance: random.Random, kind: str, factor: float, seed: int) -> Scenario:
    """A training that saves every 20 iterations, in 0.2 to 4 % of its time; the fault strikes behind 7 to 11 saves."""
    seconds = 2 ** chance.uniform(1, 6)
    at = _EVERY * chance.randrange(8, 12)
    return Scenario(
        dialect=chance.choice(_SAVING), iterations=at + 8 * _EVERY, seed=seed, seconds_per_iteration=seconds,
        noise=chance.choice((0.002, 0.004, 0.007, 0.01)), world_size=64, tp=2, pp=1, global_batch_size=512,
        save_interval=_EVERY, save_seconds=0.002 * 20 ** chance.random() * _EVERY * seconds,
        save_noise=chance.choice((0.03, 0.1, 0.2)), faults=_faults(kind, at, factor),
    )  # fmt: skip


def causes(played: Scenario) -> tuple[str | None, str | None]:
    """(the cause when the incident is first shown, and at the end); None where none is."""
    reader, player = SourceReader(), Replay(Judge(Config(), repeats=False), "run")
    first: str | None = None
    for emission in timeline(played):
        if "[after training is done]" in emission.text:
            break
        for entry in reader.feed(emission.text.encode()):
            for told in player.play([Placed(emission.at, entry, "log")]):
                slower = told.incident == "slowdown" and told.status == "firing" and told.severity != "info"
                if slower and first is None:
                    first = told.evidence.get("cause", "unknown")
    state = player.run.state
    memory = state.memory_of.get(slowdown.NAME)
    if not isinstance(memory, slowdown.Memory):
        return first, None
    standing = slowdown.check(state, memory, player.now, slowdown.SlowdownSettings())
    slower = standing.status == "firing" and standing.severity != "info"
    return first, standing.evidence.get("cause", "unknown") if slower else None


def row(form: str, kind: str, factor: float, seed: int, runs: int) -> dict[str, object]:
    """Counts over `runs` trainings."""
    told = [causes(scenario(form, kind, factor, seed + number)) for number in range(runs)]
    right = RIGHT[form].get(kind, set())

    def counts(named: Sequence[str | None]) -> dict[str, int]:
        found = [cause for cause in named if cause is not None]
        hits = sum(cause in right for cause in found)
        unknown = sum(cause == "unknown" and cause not in right for cause in found)
        return {
            "right": hits,
            "unknown": unknown,
            "wrong": len(found) - hits - unknown,
            "not found": len(named) - len(found),
        }

    later = [cause for _, cause in told]
    wrong = collections.Counter(cause for pair in told for cause in pair if cause not in (*right, None, "unknown"))
    return {"form": form, "fault": kind, "factor": factor, "first": counts([cause for cause, _ in told]),
            "later": counts(later), "wrong": dict(wrong)}  # fmt: skip


def main() -> None:
    """Print one JSON object a row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--final", action="store_true")
    parser.add_argument("--runs", type=int, default=20, help="trainings a row")
    parser.add_argument("--factor", type=float, default=1.05)
    parser.add_argument("--form", nargs="*", default=[*REPORTS, "alone", "saves"])
    options = parser.parse_args()
    seed = SEEDS["final" if options.final else "development"]
    for form in options.form:
        for kind in (*RIGHT[form], HEALTHY):
            print(json.dumps(row(form, kind, options.factor, seed, options.runs)), flush=True)


if __name__ == "__main__":
    main()
