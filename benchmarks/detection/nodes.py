"""The record of nodes on simulated clusters: how often a bad node is found, after how many launches, and how often an
innocent one stands out at any look. `python -m benchmarks.detection.nodes [FIRST_SEED] [CLUSTERS] [TITLE]`

Four runs share a cluster. A launch that died is started again, mostly on the nodes that it had (Slurm requeues so);
others get a block of free nodes. Programs fail, twice in three times over again at once, until somebody mends them;
healthy nodes break at a low rate too. A bad node breaks a launch with its own chance; half of these ends name it.
"""

import random
import sys
from dataclasses import dataclass

from megatron_monitor.node_statistics.ledger import Ledger
from megatron_monitor.node_statistics.standing import standings
from megatron_monitor.nodes.hostlist import compress, expand
from megatron_monitor.run.launch_record import LaunchRecord


@dataclass(frozen=True)
class Cluster:
    """What is simulated."""

    title: str
    nodes: int
    size: int
    launches: int
    bad: int = 0
    breaks: float = 0.0
    """Of the launches that a bad node takes part in."""
    named: float = 0.5
    slows: float = 0.0
    """Part by which a bad node slows its launches."""
    static: bool = False
    """Every launch of a run has the same nodes."""
    look: int = 10
    """Launches between two looks at the record."""
    own_names: bool = False
    """Each launch's log is a run of its own, called by its job's id."""


CLUSTERS = (
    Cluster("50 nodes, launches of 16, none bad", 50, 16, 300),
    Cluster("50 nodes, launches of 16, none bad, always the same nodes", 50, 16, 300, static=True),
    Cluster("50 nodes, launches of 16, none bad, each log a run of its own", 50, 16, 300, own_names=True),
    Cluster("500 nodes, launches of 64, none bad", 500, 64, 300),
    Cluster("1 in 50 breaks 3 of 10 launches, half of them named", 50, 16, 300, 1, 0.3),
    Cluster("1 in 50 breaks 1 of 10 launches, half of them named", 50, 16, 300, 1, 0.1),
    Cluster("1 in 50 breaks 3 of 10 launches, never named", 50, 16, 300, 1, 0.3, 0.0),
    Cluster("1 in 50 slows launches by 8 %", 50, 16, 300, 1, 0.0, 0.0, 0.08),
    Cluster("1 in 500 breaks 3 of 10 launches, half of them named", 500, 64, 300, 1, 0.3),
    Cluster("1 in 500 breaks 3 of 10 launches, never named", 500, 64, 300, 1, 0.3, 0.0),
    Cluster("3 in 500 break 3 of 10 launches, half of them named", 500, 64, 300, 3, 0.3),
    Cluster("1 in 200 breaks 1 of 20 launches, all of them named", 200, 16, 1500, 1, 0.05, 1.0, look=50),
    Cluster("1 in 200 breaks 1 of 20 launches, half of them named", 200, 16, 1500, 1, 0.05, look=50),
    Cluster("1 in 200 breaks 1 of 20 launches, never named", 200, 16, 1500, 1, 0.05, 0.0, look=50),
)


def play(cluster: Cluster, seed: int) -> tuple[dict[str, int], set[str], set[str]]:
    """(node -> launches after which it first stood out, the bad ones, the innocent ones that ever stood out)."""
    rng = random.Random(seed)
    names = expand(f"n[{1:04d}-{cluster.nodes:04d}]")
    bad = set(rng.sample(names, cluster.bad))
    ledger, found = Ledger(), dict[str, int]()
    last: dict[int, tuple[list[str], bool, str | None]] = {}
    for number in range(cluster.launches):
        run = rng.randrange(4)
        nodes, failed, bug = last.get(run, ([], False, None))
        if not nodes or not (cluster.static or (failed and rng.random() < 0.8)):
            begin = rng.randrange(cluster.nodes)
            block = [names[(begin + at) % cluster.nodes] for at in range(cluster.size * 2)]
            nodes = sorted(rng.sample(block, cluster.size)) if cluster.size * 2 <= cluster.nodes else rng.sample(
                names, cluster.size
            )  # fmt: skip
        elif failed and rng.random() < 0.5:  # some were given to others meanwhile
            kept = rng.sample(nodes, cluster.size - 2)
            nodes = sorted(set(kept) | set(rng.sample(sorted(set(names) - set(kept)), 2)))
        outcome, named = "finished", dict[str, list[str]]()
        if bug is not None and rng.random() < 0.67:
            outcome = bug
        elif rng.random() < 0.15:
            outcome = rng.choice(["python_exception", "nccl", "unknown", "host_oom"])
            if outcome == "host_oom":  # the program's, on a rank that stays the same while the nodes do
                named = {nodes[min(3, len(nodes) - 1)]: ["host_oom"]}
        bug = outcome if outcome != "finished" else None
        if bug == "host_oom" and not named:
            named = {nodes[min(3, len(nodes) - 1)]: ["host_oom"]}
        for node in nodes:
            if rng.random() < (cluster.breaks if node in bad else 0.0004):
                outcome, bug = rng.choice(["ecc", "nccl", "unknown"]), None
                kind = "ecc" if outcome == "ecc" else "missing_rank"
                named = {node: [kind]} if rng.random() < cluster.named or node not in bad else {}
        slow = cluster.slows if bad & set(nodes) else 0.0
        seconds = 10.0 * (1 + rng.gauss(0, 0.006)) * (1 + slow)
        name = f"run-{'abcd'[run]}-{number * cluster.own_names}"
        ledger.put(
            LaunchRecord(
                name, number, 1e9 + 7200.0 * number, compress(nodes), True, outcome, outcome == "finished",
                named, 100, seconds if outcome == "finished" or rng.random() < 0.5 else None, "64",
            )
        )  # fmt: skip
        last[run] = (nodes, outcome != "finished", bug)
        if number % cluster.look == cluster.look - 1:
            for one in standings(ledger):
                if one.stands_out:
                    found.setdefault(one.node, number + 1)
    return found, bad, set(found) - bad


def main() -> None:
    """Print a row a cluster."""
    first = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    clusters = int(sys.argv[2]) if len(sys.argv) > 2 else 40
    print("| cluster | bad nodes found | launches until then (median) | innocent ever accused | clusters with one |")
    print("| --- | --: | --: | --: | --: |")
    for cluster in [one for one in CLUSTERS if (sys.argv[3] if len(sys.argv) > 3 else "") in one.title]:
        played = [play(cluster, seed) for seed in range(first, first + clusters)]
        bad = sum(len(one[1]) for one in played)
        delays = sorted(when for found, ill, _ in played for node, when in found.items() if node in ill)
        false = [len(innocent) for _, _, innocent in played]
        middle = str(delays[len(delays) // 2]) if delays else "-"
        healthy = clusters * cluster.nodes - bad
        print(f"| {cluster.title} | {len(delays)} of {bad} | {middle} | {sum(false)} of {healthy} "
              f"| {sum(map(bool, false))} of {clusters} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
