"""Loss and loss-scale detectors: false incidents on healthy runs, delays on faulty ones.

    python -m benchmarks.detection.loss [--final] [--healthy 10] [--faults 10] [--noise 0.004 0.02] [--verbose]

Without --final the development seeds are used, with it the seeds that nothing was tuned on. Text goes through the real
parser and the daemon's own judgement; every incident counts, information too.
"""

import argparse
import statistics
import sys
from collections import Counter

from benchmarks.detection.learning import Course, course, texts
from megatron_monitor.config import Config
from megatron_monitor.incidents import Transition
from megatron_monitor.judgement import Judge, Judged
from megatron_monitor.parsers.reader import SourceReader
from megatron_monitor.run.state import RunState

KINDS = ("loss_spike", "divergence", "nan_loss", "loss_scale_collapse", "overflow_storm")
SEEDS = {"development": 1_000, "final": 800_000}
FAULTS: tuple[tuple[str, tuple[str, ...], dict[str, object]], ...] = (
    ("spike", ("loss_spike",), {}),
    ("spike of 15 %", ("loss_spike",), {}),
    ("spike that stays", ("loss_spike",), {}),
    ("slow divergence, 1 % per 100", ("divergence",), {"start": 30_000, "ramp": False}),
    ("slow divergence, 0.3 % per 100", ("divergence",), {"start": 30_000, "ramp": False}),
    ("NaN", ("nan_loss",), {}),
    ("overflow in every step", ("overflow_storm",), {"fp16": True}),
    ("overflow in every step", ("loss_scale_collapse",), {"fp16": True}),
    ("scale falls 30 before the loss (GLM)", ("loss_scale_collapse", "overflow_storm"), {"fp16": True}),
    ("scale sinks 8-fold in 2300", ("loss_scale_collapse",), {"fp16": True}),
)


def judged(it: Course) -> tuple[int, list[Transition]]:
    """(iterations, the daemon's transitions of the kinds measured here)."""
    judge, run, reader = Judge(Config()), Judged(RunState(name="bench", read_at=0.0)), SourceReader()
    transitions: list[Transition] = []
    at = 0.0
    for text in texts(it):
        for entry in reader.feed(text.encode()):
            at += 1.0
            transitions += judge.take(run, [entry], "log", at, True)
    transitions += judge.judge(run, at)
    return run.state.iterations_total, [item for item in transitions if item.incident in KINDS]


def healthy(first_seed: int, noise: float, runs: int, iterations: int, verbose: bool) -> str:
    """One row of the table of false incidents."""
    total, found = 0, Counter[str]()
    for seed in range(first_seed, first_seed + runs):
        it = course(seed, noise, iterations=iterations)
        done, transitions = judged(it)
        total += done
        firing = [item for item in transitions if item.status == "firing"]
        found.update(item.incident for item in firing)
        if verbose:
            for item in firing:
                print(f"  {it}: {item.iteration} {item.severity} {item.summary}", file=sys.stderr)
    count = sum(found.values())
    kinds = ", ".join(f"{kind} {number}" for kind, number in found.items()) or "-"
    return f"| {100 * noise:g} % | {total} | {count} | {10_000 * count / max(total, 1):.2f} | {kinds} |"


def faulty(
    first_seed: int, noise: float, runs: int, fault: str, kinds: tuple[str, ...], changes: dict[str, object]
) -> str:
    """One row of the table of delays, in iterations after the onset."""
    delays, before, paged = [], 0, 0
    for seed in range(first_seed, first_seed + runs):
        lead = 4500 if "sinks" in fault else 600
        length = lead + (3600 if "sinks" in fault or "0.3" in fault else 1200)
        given: dict[str, object] = {"log_interval": 1, "iterations": length, "start": 1, "fault": fault, **changes}
        at = int(str(given["start"])) + lead
        it = course(seed, noise, at=at, **given)
        transitions = judged(it)[1]
        hits = [item for item in transitions if item.incident in kinds and item.status == "firing"]
        before += sum((item.iteration or 0) < at for item in hits)
        after = [item for item in hits if (item.iteration or 0) >= at]
        paged += any(item.severity != "info" for item in after)
        if after:
            delays.append((after[0].iteration or 0) - at)
    figures = (
        f"{statistics.median(delays):.0f} | {sorted(delays)[min(len(delays) - 1, int(0.95 * len(delays)))]}"
        if delays
        else "- | -"
    )
    named = " or ".join(kinds)
    return f"| {fault} | {named} | {100 * noise:g} % | {len(delays)}/{runs} | {figures} | {paged} | {before} |"


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--final", action="store_true")
    parser.add_argument("--healthy", type=int, default=10, help="healthy runs of 10,000 iterations at each noise")
    parser.add_argument("--faults", type=int, default=10, help="runs of each fault at each noise")
    parser.add_argument("--noise", type=float, nargs="+", default=[0.004, 0.02], help="of the loss, parts of one")
    parser.add_argument("--verbose", action="store_true", help="name each false incident")
    given = parser.parse_args()
    kind = "final" if given.final else "development"
    seed = SEEDS[kind]
    print(f"Seeds from {seed} ({kind}).\n")
    print("| noise | healthy iterations | false incidents | per 10,000 | which |\n| --- | --- | --- | --- | --- |")
    for noise in given.noise:
        print(healthy(seed, noise, given.healthy, 10_000, given.verbose), flush=True)
    print("\n| fault | incident | noise | found | median | p95 | warned or worse | before the onset |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for fault, kinds, changes in FAULTS:
        for noise in given.noise:
            print(faulty(seed, noise, given.faults, fault, kinds, changes), flush=True)


if __name__ == "__main__":
    main()
