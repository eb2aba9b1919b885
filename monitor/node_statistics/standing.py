"""Where each node stands among its peers: what happened to it against what chance gives if all nodes are alike. Pure.

Three questions, each with an exact test; their answers are held to one limit for all nodes together (Bonferroni), so
that a cluster without a bad node accuses one of its nodes in less than one of a hundred looks:

named     Failures that name a node, or a rank on it. By chance each of the launch's nodes is as likely to be named as
          the others: a launch of 64 nodes gives each 1/64.
present   Launches that failed and named no node: is this node in more of them than its share of the launches of the
          same cause near them in time? Others may have failed, or not, of what came or was mended meanwhile.
slow      Launches slower than the others of the same cause: the same question.

A cause is who started which script with which sizes, not a run: each job's log may be a run of its own.

What would accuse an innocent node is left out:
- Failures of one cause on the same node at the same place among the ranks are one observation, not ten: they may be
  that rank's own, whatever they are called. Only what the driver or the scheduler says of a node counts each time.
- A program's failure on the launch's first node: rank 0 does what no other rank does.
- A failure that many nodes of the launch share is not of a node.
- Launches on much the same nodes that end alike, one after the other, are one.
- The node that explains most is taken first, and the others are judged by the launches without it; where two explain
  the same, neither is accused.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct, field

from megatron_monitor.node_statistics.chance import binomials_tail, strata_tail
from megatron_monitor.node_statistics.ledger import read
from megatron_monitor.run.launch_record import HARDWARE, LaunchRecord
from megatron_monitor.statistics.median import median

_SOFTWARE = frozenset({"python_exception", "disk_full", "nan_loss", "cuda_oom", "configuration"})
"""Failures of the program: no sign against any node."""
_TESTS = 3
_CHANCE = 0.01
"""That any innocent node stands out, of all nodes together and at one look. Whole numbers make it less in truth:
none did in simulated clusters at three times this (docs/detection.md)."""
_OBSERVATIONS = 3
"""Of one kind before a node may stand out: two are a coincidence that people remember."""
_DISTINCT = 10.0
"""By so many times a node's launches must be less likely than the next one's: nodes that always ran together cannot
be told apart."""
_SLOWER = 1.05
"""Over the median of the launches of the same cause, from which a launch is slow: launches of one
configuration on other nodes differ by 1 to 3 %."""
_SHARED = 0.1
"""Part of a launch's nodes, and more than two: named by so many, a failure is not of a node."""
_SAME_NODES = 0.5
"""Part of the nodes of two launches in a row that both have, from which the second says nothing new."""
_WINDOW = 12
"""Launches of one cause in a row that are compared with each other alone where failures came and went: else a bug
that was there while a job ran on one rack accuses its nodes."""
_WINDOW_SECONDS = 14 * 86400.0
"""And no further apart: another driver, another container."""


class Count(Struct):
    """Something that happened on a node `seen` times where `expected` times were due by chance."""

    seen: int = 0
    expected: float = 0.0
    chance: float = 1.0
    """Of so many or more if all nodes are alike, before the number of nodes is taken into account."""
    of: int = 0
    """Occasions that there were in all."""


class Standing(Struct):
    """A node's record."""

    node: str
    launches: int = 0
    named: Count = field(default_factory=Count)
    present: Count = field(default_factory=Count)
    slow: Count = field(default_factory=Count)
    hangs: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    """What named it -> launches."""
    chance: float = 1.0
    """Of the strongest count, for all nodes and questions together."""
    stands_out: bool = False
    last_at: float | None = None
    """Unix seconds of the last launch that named it."""

    def to_json(self) -> dict[str, Any]:
        """As the API and `nodes --json` show it."""
        return {**msgspec.to_builtins(self), "evidence": self.evidence}

    @property
    def observations(self) -> int:
        """Of the kind that speaks most against it."""
        return min((self.named, self.present, self.slow), key=lambda count: count.chance).seen

    @property
    def evidence(self) -> str:
        """Why, in a sentence."""
        parts = []
        if self.named.seen:
            kinds = ", ".join(f"{kind} {n}" if n > 1 else kind for kind, n in sorted(self.kinds.items()))
            named = f"named by {self.named.seen} of {self.named.of} failures ({kinds})"
            parts.append(f"{named}, {self.named.expected:.2g} due by chance")
        for count, what in ((self.present, "failed without naming a node"), (self.slow, "were slow")):
            if count.seen > count.expected:
                parts.append(f"in {count.seen} of {count.of} launches that {what}, {count.expected:.2g} due")
        if self.hangs:
            parts.append(f"in {self.hangs} launches that hung")
        return "; ".join(parts)


class _Draw(NamedTuple):
    """A launch: its nodes, whether it is marked, and when it ended, in Unix seconds."""

    nodes: frozenset[str]
    marked: bool
    at: float


_Draws = list[_Draw]
"""Launches that can be compared."""


def standings(record: Iterable[LaunchRecord]) -> list[Standing]:
    """Every node that a launch ran on: those that stand out first, then by how unlikely their record is."""
    launches = [(launch, nodes) for launch, nodes in read(record) if nodes]
    found: dict[str, Standing] = {}
    for launch, nodes in launches:
        for node in nodes:
            one = found.setdefault(node, Standing(node))
            one.launches += 1
            one.hangs += launch.outcome == "hang"
    _count_named(found, launches)
    _count_draws(found, _failures(launches), "present")
    _count_draws(found, _slow(launches), "slow")
    for one in found.values():
        counts = (one.named, one.present, one.slow)
        one.chance = min(1.0, min(count.chance for count in counts) * len(found) * _TESTS)
        one.stands_out = any(_beyond(count, len(found)) for count in counts)
    return sorted(found.values(), key=lambda one: (not one.stands_out, one.chance, -one.named.seen, one.node))


def eventful(found: Sequence[Standing]) -> list[Standing]:
    """The nodes to which something happened."""
    return [one for one in found if one.stands_out or one.named.seen or one.hangs or one.chance < 1.0]


def _beyond(count: Count, nodes: int) -> bool:
    return count.seen >= _OBSERVATIONS and count.chance * nodes * _TESTS < _CHANCE


# --- named ----------------------------------------------------------------------------------------------------------


def _count_named(found: dict[str, Standing], launches: Sequence[tuple[LaunchRecord, tuple[str, ...]]]) -> None:
    """What names nodes: for each node the chances of the launches that it could have been named in."""
    chances: dict[str, list[float]] = {}
    before: set[tuple[str, str, int]] = set()
    total = 0
    for launch, nodes in launches:
        new: set[str] = set()
        for node, kind in _names(launch, nodes):
            one = found.setdefault(node, Standing(node))
            one.kinds[kind] = one.kinds.get(kind, 0) + 1
            one.last_at = launch.at
            observed = launch.cause, node, nodes.index(node)
            if kind in HARDWARE or observed not in before:
                new.add(node)
            before.add(observed)
        if not new:
            continue
        total += 1
        for node in nodes:
            chances.setdefault(node, []).append(len(new) / len(nodes))
        for node in new:
            found[node].named.seen += 1
    for node, due in chances.items():
        count = found.setdefault(node, Standing(node)).named
        count.expected, count.of = sum(due), total
        if count.seen > 1:
            count.chance = binomials_tail(due, count.seen)


def _names(launch: LaunchRecord, nodes: Sequence[str]) -> set[tuple[str, str]]:
    """(node, kind) of what names a node for itself."""
    most = max(2.0, _SHARED * len(nodes))
    by_kind: dict[str, set[str]] = {}
    for node, kinds in launch.named.items():
        for kind in kinds:
            if node in nodes and (kind in HARDWARE or kind == "missing_rank" or node != nodes[0]):
                by_kind.setdefault(kind, set()).add(node)
    if len(nodes) < 2:
        return set()  # a single node has no peers
    return {(node, kind) for kind, names in by_kind.items() if len(names) <= most for node in names}


def _overlap(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / max(len(one | other), 1)


# --- present, slow --------------------------------------------------------------------------------------------------


def _failures(launches: Iterable[tuple[LaunchRecord, tuple[str, ...]]]) -> dict[str, _Draws]:
    """By cause: ended launches that named no node, and which of them failed of what no line explains."""
    draws: dict[str, _Draws] = {}
    for launch, nodes in launches:
        if launch.outcome == "running" or launch.named or not launch.whole:
            continue
        marked = not launch.planned and launch.outcome not in _SOFTWARE
        known, draw = draws.setdefault(launch.cause, []), _Draw(frozenset(nodes), marked, launch.at)
        before = next((one for one in reversed(known) if _overlap(one.nodes, draw.nodes) >= _SAME_NODES), None)
        if before is None or before.marked != marked:
            known.append(draw)
    return draws


def _slow(launches: Iterable[tuple[LaunchRecord, tuple[str, ...]]]) -> dict[str, _Draws]:
    """By cause, which has the sizes in it: launches of which the pace is known, and which of them were slow."""
    paced: dict[str, list[tuple[float, frozenset[str], float]]] = {}
    for launch, nodes in launches:
        if launch.seconds and launch.whole:
            known, members = paced.setdefault(launch.cause, []), frozenset(nodes)
            if all(_overlap(one, members) < _SAME_NODES for _, one, _ in known[-_WINDOW:]):
                known.append((launch.seconds, members, launch.at))
    draws: dict[str, _Draws] = {}
    for key, known in paced.items():
        usual = median([seconds for seconds, *_ in known])
        draws[key] = [_Draw(nodes, seconds > _SLOWER * usual, at) for seconds, nodes, at in known]
    return draws


def _windows(draws: Iterable[_Draws]) -> list[_Draws]:
    """The launches of each cause in parts that are near each other in time, which alone are compared: what was wrong
    came and went.
    """
    parts: list[_Draws] = []
    for known in draws:
        parts.append([])
        for one in known:
            last = parts[-1]
            if last and (len(last) == _WINDOW or one.at - last[0].at > _WINDOW_SECONDS):
                parts.append([])
            parts[-1].append(one)
    return parts


def _count_draws(found: dict[str, Standing], draws: dict[str, _Draws], name: str) -> None:
    """For each node: the marked launches that it was in, against its share of the launches of each window."""
    windows = _windows(draws.values())
    first = _counts(windows)
    for node, count in first.items():
        setattr(found[node], name, count)
    left, accused = first, set[str]()
    while left:
        ranked = sorted(left, key=lambda node: (left[node].chance, node))
        top = ranked[0]
        if not _beyond(left[top], len(found)):
            break
        if len(ranked) > 1 and left[ranked[1]].chance < _DISTINCT * left[top].chance:
            break
        accused.add(top)
        first[top].chance = left[top].chance
        left = _counts([[one for one in known if one.nodes.isdisjoint(accused)] for known in windows])
    for node, count in first.items():
        if node not in accused:
            other = left.get(node)
            count.chance = other.chance if other and not _beyond(other, len(found)) else 1.0


def _counts(windows: Iterable[_Draws]) -> dict[str, Count]:
    counts: dict[str, Count] = {}
    strata: dict[str, list[tuple[int, int, int]]] = {}
    marked_in_all = 0
    for known in windows:
        total, marked = len(known), sum(one.marked for one in known)
        if not 0 < marked < total:
            continue  # all alike: nothing to compare
        marked_in_all += marked
        for node in (node for one in known if one.marked for node in one.nodes):
            counts.setdefault(node, Count()).seen += 1
        for node, times in Counter(node for one in known for node in one.nodes).items():
            strata.setdefault(node, []).append((total, marked, times))
    for node, tables in strata.items():
        count = counts.setdefault(node, Count())
        count.of = marked_in_all
        count.expected = sum(marked * times / total for total, marked, times in tables)
        if count.seen > max(1.0, count.expected):
            count.chance = strata_tail(tables, count.seen)
    return counts
