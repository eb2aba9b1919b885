"""Finds the ranks for which the others wait, from the ranks' reports about their collectives. Pure.

A rank that waits in any group is a victim: it waits for another rank itself. The others are
- `behind`: the rank reports that it has not begun the collective on which others gave up;
- `silent`: all others of its group gave up, and the rank reports nothing. This proof is weaker, because a killed
  process is silent too: it counts only if nearly all others report, and for at most the ranks of one node.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

_MIN_WAITING = 3  # ranks that gave up, before silence of another rank counts
_SILENT_SHARE = 4  # reporting ranks per silent one: in half of a log, half of the ranks are silent
_MAX_SILENT = 8  # ranks of one node
_WORLD_SHARE = 0.75  # of the world's ranks in an unnamed group before it counts as the whole world
DEFAULT_GROUP = "default_pg"
Proof = Literal["behind", "silent"]

_OPERATIONS = {
    "allreduce": "all-reduce", "broadcast": "broadcast", "reduce": "reduce", "allgather": "all-gather",
    "reducescatter": "reduce-scatter", "alltoall": "all-to-all", "gather": "gather", "scatter": "scatter",
    "barrier": "barrier", "send": "send", "recv": "receive", "coalesced": "grouped operation",
}  # fmt: skip


@dataclass(slots=True)
class Report:
    """The state of a rank in one process group. Collectives are numbered within the group."""

    rank: int
    group: str = ""
    """The group's name, equal for all its ranks; empty if unknown."""
    name: str = ""
    """The group's purpose, such as TENSOR_MODEL_PARALLEL_GROUP."""
    group_rank: int | None = None
    work: int | None = None
    """The collective in which it waits, or on which it gave up."""
    operation: str | None = None
    enqueued: int | None = None


@dataclass(frozen=True, slots=True)
class Missing:
    """The ranks for which the others wait."""

    ranks: tuple[int, ...]
    proof: Proof
    waiting: int
    """Number of ranks that wait in any group."""
    operation: str | None
    work: int
    """Number of the collective within its group."""
    group: str
    """The group's purpose or name."""
    all_others: bool
    """True: every other rank of the run waits."""

    def sentence(self, nodes: Mapping[int, str]) -> str:
        """Return a sentence for people. `nodes`: rank -> node, as far as known."""
        shown = ", ".join(map(str, self.ranks[:8])) + (" ..." if len(self.ranks) > 8 else "")
        hosts = list(dict.fromkeys(nodes[rank] for rank in self.ranks if rank in nodes))
        one = len(self.ranks) == 1
        who = f"rank {shown}" if one else f"ranks {shown}"
        where = f" on node{'s' if len(hosts) > 1 else ''} {', '.join(hosts[:8])}" if hosts else ""
        what = f"{operation_name(self.operation)} {self.work}"
        what += f" of {self.group}" if self.group and self.group != DEFAULT_GROUP else ""
        did = {
            "behind": f"never reached {what}",
            "silent": f"did not arrive at {what} and reported nothing",
        }
        waiting = f"the other {self.waiting} wait" if self.all_others else f"{self.waiting} ranks wait"
        return f"{who}{where} {did[self.proof]}; {waiting} for {'it' if one else 'them'}"


@dataclass(slots=True)
class _Group:
    reports: dict[int, Report] = field(default_factory=dict)

    @property
    def waiting(self) -> list[Report]:
        return [report for report in self.reports.values() if report.work is not None]

    @property
    def largest(self) -> int:
        return max((r.group_rank for r in self.reports.values() if r.group_rank is not None), default=-1)

    def layout(self) -> tuple[int, int] | None:
        """Return (rank of the first member, distance between members); None if the distances differ."""
        pairs = sorted((r.group_rank, r.rank) for r in self.reports.values() if r.group_rank is not None)
        if len(pairs) < 2 or pairs[0][0] == pairs[-1][0]:
            return None
        (first, rank), (last, other) = pairs[0], pairs[-1]
        step, rest = divmod(other - rank, last - first)
        start = rank - step * first
        if rest or step < 1 or start < 0 or any(r != start + step * g for g, r in pairs):
            return None
        return start, step


def operation_name(operation: str | None) -> str:
    """Return the plain name of an operation: all-gather for `_ALLGATHER_BASE` and `nccl:all_gather`."""
    if not operation:
        return "collective"
    plain = operation.removeprefix("nccl:").split(" ")[0].lower().replace("_", "")
    for ending in ("base", "single", "coalesced", "sparse", "tensor", "into", "v"):
        plain = plain.removesuffix(ending) or plain
    return _OPERATIONS.get(plain, operation)


def missing(reports: Sequence[Report], world_size: int | None) -> Missing | None:
    """Return the ranks for which the others wait; None if the reports do not show them."""
    waiting = {report.rank for report in reports if report.work is not None}
    groups: dict[str, _Group] = {}
    for report in reports:
        groups.setdefault(report.group, _Group()).reports[report.rank] = report
    behind, silent = _late(groups, waiting, world_size)
    found = set[int]().union(*behind.values())
    if found:
        if len(found) > max(1, len(waiting) // 2):
            return None  # few ranks wait: they may be the faulty ones
        return _reported(groups, behind, found, "behind", waiting, world_size)
    found = set[int]().union(*silent.values())
    most = min(_MAX_SILENT, max(1, len(waiting) // _SILENT_SHARE))
    if not found or len(waiting) < _MIN_WAITING or len(found) > most:
        return None
    if max(found) - min(found) >= _MAX_SILENT:
        return None  # ranks of several nodes were probably killed
    return _reported(groups, silent, found, "silent", waiting, world_size)


def _late(
    groups: Mapping[str, _Group], waiting: set[int], world_size: int | None
) -> tuple[dict[str, set[int]], dict[str, set[int]]]:
    """Return, by group in which a rank waits, the ranks that are behind and the silent ranks, without `waiting`."""
    sizes: dict[str, int] = {}
    for group in groups.values():
        for report in group.reports.values():
            if report.name:
                sizes[report.name] = max(sizes.get(report.name, 0), group.largest + 1)
    behind: dict[str, set[int]] = {}
    silent: dict[str, set[int]] = {}
    for name, group in groups.items():
        stuck = _stuck(group)
        if stuck is not None:
            late = {r.rank for r in group.reports.values() if r.enqueued is not None and r.enqueued < stuck}
            behind[name] = late - waiting
            silent[name] = set(_members(group, world_size, sizes)) - set(group.reports) - waiting
    return behind, silent


def _stuck(group: _Group) -> int | None:
    """Return the first unfinished collective of the group; None if no rank waits in the group."""
    return min((report.work for report in group.waiting if report.work is not None), default=None)


def _members(group: _Group, world_size: int | None, sizes: Mapping[str, int]) -> list[int]:
    """Return the ranks of a group, derived from those that report."""
    layout = group.layout()
    if layout is None:
        return []
    start, step = layout
    name = next((report.name for report in group.reports.values() if report.name), "")
    size = max(group.largest + 1, sizes.get(name, 0))
    whole = (start, step) == (0, 1) and world_size is not None
    if whole and world_size is not None and (name == DEFAULT_GROUP or len(group.reports) >= _WORLD_SHARE * world_size):
        size = max(size, world_size)
    return [start + step * place for place in range(size)]


def _reported(
    groups: Mapping[str, _Group], late: Mapping[str, set[int]], found: set[int], proof: Proof,
    waiting: set[int], world_size: int | None,
) -> Missing:  # fmt: skip
    """Return the result for the group in which most ranks wait."""
    name = max((name for name in late if late[name]), key=lambda name: (len(groups[name].waiting), name))
    work = _stuck(groups[name])
    assert work is not None
    first = [report for report in groups[name].waiting if report.work == work]
    times = {rank: sum(rank in ranks for ranks in late.values()) for rank in found}
    return Missing(
        ranks=tuple(sorted(found, key=lambda rank: (-times[rank], rank))),
        proof=proof,
        waiting=len(waiting - found),
        operation=next((report.operation for report in first if report.operation), None),
        work=work,
        group=next((report.name for report in first if report.name), ""),
        all_others=world_size is not None and len(waiting | found) == world_size,
    )
