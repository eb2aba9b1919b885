"""Who did not arrive: what the ranks say of their collectives, to those they wait for. Pure.

A rank that waits in any group is a victim, whatever else it is late for: it waits for somebody itself. What is left is
either `behind`: it told itself that it had not begun the collective that others gave up on; or `stuck`: in one that the
others have finished, which only the flight recorder tells; or `silent`: all others of
its group gave up, and it said nothing. Silence is a weaker proof, since a killed process is silent too: it names a rank
only where nearly all others were heard, and never more than one node's worth.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

_LEAST_WAITING = 3  # ranks that gave up, before the silence of another one means anything
_SILENT_SHARE = 4  # ranks heard for each silent one: where half of a log is missing, half of the ranks are silent
_MOST_SILENT = 8  # ranks: those of one node
_WORLD_SHARE = 0.75  # of the world's ranks seen in a group without a name before it is taken for the whole of it
DEFAULT_GROUP = "default_pg"
Proof = Literal["behind", "stuck", "silent"]

_OPERATIONS = {
    "allreduce": "all-reduce", "broadcast": "broadcast", "reduce": "reduce", "allgather": "all-gather",
    "reducescatter": "reduce-scatter", "alltoall": "all-to-all", "gather": "gather", "scatter": "scatter",
    "barrier": "barrier", "send": "send", "recv": "receive", "coalesced": "grouped operation",
}  # fmt: skip


@dataclass(slots=True)
class Report:
    """Where a rank stood in one process group. Numbers of collectives are counted within the group."""

    rank: int
    group: str = ""
    """The name that its ranks share; empty if unknown."""
    name: str = ""
    """What the group is for, such as TENSOR_MODEL_PARALLEL_GROUP."""
    group_rank: int | None = None
    work: int | None = None
    """The collective that it gave up waiting for, or waits in."""
    operation: str | None = None
    enqueued: int | None = None
    completed: int | None = None


@dataclass(frozen=True, slots=True)
class Missing:
    """The ranks that the others wait for."""

    ranks: tuple[int, ...]
    proof: Proof
    waiting: int
    """Ranks that wait, in whatever group."""
    operation: str | None
    work: int
    """The collective, counted within its group."""
    group: str
    """The group's purpose or name."""
    all_others: bool
    """Every other rank of the run waits."""
    group_key: str
    """The name that its ranks share."""

    def sentence(self, nodes: Mapping[int, str]) -> str:
        """As people say it; `nodes` are those known."""
        shown = ", ".join(map(str, self.ranks[:8])) + (" ..." if len(self.ranks) > 8 else "")
        hosts = list(dict.fromkeys(nodes[rank] for rank in self.ranks if rank in nodes))
        one = len(self.ranks) == 1
        who = f"rank {shown}" if one else f"ranks {shown}"
        where = f" on node{'s' if len(hosts) > 1 else ''} {', '.join(hosts[:8])}" if hosts else ""
        what = f"{operation_name(self.operation)} {self.work}"
        what += f" of {self.group}" if self.group and self.group != DEFAULT_GROUP else ""
        did = {
            "stuck": f"{'is' if one else 'are'} stuck in {what}, which others have finished",
            "behind": f"never reached {what}",
            "silent": f"did not arrive at {what} and said nothing",
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
        """(rank of the first member, distance of two members); None where the members stand in no such row."""
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
    """`_ALLGATHER_BASE`, `nccl:all_gather` -> all-gather."""
    if not operation:
        return "collective"
    plain = operation.removeprefix("nccl:").split(" ")[0].lower().replace("_", "")
    for ending in ("base", "single", "coalesced", "sparse", "tensor", "into", "v"):
        plain = plain.removesuffix(ending) or plain
    return _OPERATIONS.get(plain, operation)


def missing(
    reports: Sequence[Report], world_size: int | None, members: Mapping[str, Sequence[int]] | None = None
) -> Missing | None:
    """The ranks that the others wait for; None where the reports do not tell. `members`: group -> its ranks, where that
    is known (flight recorder); else it is worked out from the ranks within the group.
    """
    waiting = {report.rank for report in reports if report.work is not None}
    groups: dict[str, _Group] = {}
    for report in reports:
        groups.setdefault(report.group, _Group()).reports[report.rank] = report
    behind, silent = _late(groups, waiting, world_size, members)
    found = set[int]().union(*behind.values())
    if found:
        if len(found) > max(1, len(waiting) // 2):
            return None  # the few that wait are the odd ones: they may have gone astray
        return _reported(groups, behind, found, "behind", waiting, world_size)
    stuck_in = {name: _stuck_ranks(group) for name, group in groups.items()} if members else {}
    found = set[int]().union(*stuck_in.values())
    if found and len(found) <= max(1, len(waiting - found) // 2):
        return _reported(groups, stuck_in, found, "stuck", waiting, world_size)
    found = set[int]().union(*silent.values())
    most = min(_MOST_SILENT, max(1, len(waiting) // _SILENT_SHARE))
    if not found or len(waiting) < _LEAST_WAITING or len(found) > most:
        return None
    if max(found) - min(found) >= _MOST_SILENT:
        return None  # more than one node's ranks: rather killed than late
    return _reported(groups, silent, found, "silent", waiting, world_size)


def _late(
    groups: Mapping[str, _Group], waiting: set[int], world_size: int | None, members: Mapping[str, Sequence[int]] | None
) -> tuple[dict[str, set[int]], dict[str, set[int]]]:
    """By group in which somebody waits: the ranks that are behind, and those that were not heard. None of `waiting`."""
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
            ranks = members.get(name, ()) if members else _members(group, world_size, sizes)
            silent[name] = set(ranks) - set(group.reports) - waiting
    return behind, silent


def _stuck(group: _Group) -> int | None:
    """The first collective of the group that did not end; None where nobody waits in it."""
    return min((report.work for report in group.waiting if report.work is not None), default=None)


def _stuck_ranks(group: _Group) -> set[int]:
    """Ranks that wait in a collective that another rank has finished: their own GPU or its link does not go on."""
    finished = max((report.completed for report in group.reports.values() if report.completed is not None), default=-1)
    return {report.rank for report in group.waiting if report.work is not None and report.work <= finished}


def _members(group: _Group, world_size: int | None, sizes: Mapping[str, int]) -> list[int]:
    """The ranks of a group of which nobody tells them, from those that were heard."""
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
    """Of the groups that wait for them, the one in which most ranks do."""
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
        group_key=name,
    )
