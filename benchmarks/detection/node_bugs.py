"""Bugs that look like nodes: on how many simulated clusters an innocent node stands out at any look.
`python -m benchmarks.detection.node_bugs [CLUSTERS]`

200 nodes, launches of 16; the record is looked at every three launches. No node is bad.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator

from megatron_monitor.node_statistics.ledger import Ledger
from megatron_monitor.node_statistics.standing import standings
from megatron_monitor.nodes.hostlist import compress, expand
from megatron_monitor.run.launch_record import LaunchRecord

_NAMES = expand("n[001-200]")
_LOOK = 3
_KINDS = ("segfault", "host_oom", "cuda_error", "bus_error")
Launches = Iterator[LaunchRecord]


def _launch(run: str, number: int, nodes: list[str], outcome: str, place: int | None = None) -> LaunchRecord:
    named = {} if place is None else {nodes[place]: [outcome]}
    planned = outcome == "finished"
    at = 1e9 + 7200.0 * number
    return LaunchRecord(run, number, at, compress(nodes), True, outcome, planned, named, layout="64 512 2048")


def of_a_rank(rng: random.Random, *, own_names: bool) -> Launches:
    """The same rank dies in 40 launches on the same nodes: each a run of its own, or in several ways."""
    nodes, kind = sorted(rng.sample(_NAMES, 16)), rng.choice(_KINDS[:2])
    for number in range(40):
        run = f"tr-{1700 + number}" if own_names else "run"
        yield _launch(run, number, nodes, kind if own_names else rng.choice(_KINDS), 5)


def of_a_rack(rng: random.Random, size: int, bad: float, good: float, periods: tuple[int, ...]) -> Launches:
    """By turns: launches on a rack of which many fail, launches on all nodes but those of a rack of which few do."""
    racks, number = [_NAMES[at : at + size] for at in range(0, len(_NAMES) - size + 1, size)], 0
    for turn, many in enumerate(periods):
        rack = racks[rng.randrange(len(racks))]
        pool = [name for name in _NAMES if name not in rack] if turn % 2 else rack
        for _ in range(many):
            nodes = sorted(rng.sample(pool, 16))
            failed = rng.random() < (good if turn % 2 else bad)
            yield _launch("run", number, nodes, "unknown" if failed else "finished")
            number += 1


BUGS: dict[str, Callable[[random.Random], Launches]] = {
    "a rank dies, always the same, in 40 jobs each with a run's name of its own": lambda rng: of_a_rank(
        rng, own_names=True
    ),
    "the same rank dies in one of four ways, one run": lambda rng: of_a_rank(rng, own_names=False),
    "30 launches on one rack of 32 nodes fail, the bug is mended, 60 elsewhere end well": lambda rng: of_a_rack(
        rng, 32, 1.0, 0.0, (30, 60)
    ),
    "the same, 90 % of the first fail and 10 % of the others": lambda rng: of_a_rack(rng, 32, 0.9, 0.1, (30, 60)),
    "six times: 15 launches on a rack of 40 of which 95 % fail, 15 elsewhere of which 5 % do": lambda rng: of_a_rack(
        rng, 40, 0.95, 0.05, (15, 15) * 6
    ),
}


def accused(launches: Launches) -> set[str]:
    """The nodes that stand out at any look."""
    ledger, found = Ledger(), set[str]()
    for number, launch in enumerate(launches, 1):
        ledger.put(launch)
        if number % _LOOK == 0:
            found |= {one.node for one in standings(ledger) if one.stands_out}
    return found


def main() -> None:
    """Print a row a bug."""
    clusters = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    print("| what | clusters that accuse an innocent node |")
    print("| --- | --: |")
    for title, played in BUGS.items():
        false = sum(bool(accused(played(random.Random(seed)))) for seed in range(clusters))
        print(f"| {title} | {false} of {clusters} |", flush=True)


if __name__ == "__main__":
    main()
