"""Finds the ranks for which the others wait, from the ranks' reports about their collectives. Pure.

A rank that waits in any group is a victim: it waits for another rank itself. The others are
- `behind`: the rank reports that it has not begun the collective on which others gave up;
- `silent`: all others of its group gave up, and the rank reports nothing. This proof is weaker, because a killed
  process is silent too: it counts only if nearly all others report, and for at most the ranks of one node.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

_MIN_WAITING = 3  # ranks that gave up, before silence of another rank counts
_SILENT_SHARE = 4  # reporting ranks per silent one: in half of a log, half of the ranks are silent
_MAX_SILENT = 8  # ranks of one node
_WORLD_SHARE = 0.75  # of the world's ranks in an unnamed group before it counts as the whole world
DEFAULT_GROUP = "default_pg"
Proof = Literal["behind", "silent"]


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

    @property
    def collective(self) -> str:
        """The operation as printed, and the number of the collective."""
        return f"{self.operation or 'collective'} {self.work}"

    def sentence(self, nodes: Mapping[int, str]) -> str:
        """Return a sentence for people. `nodes`: rank -> node, as far as known."""
        shown = ", ".join(map(str, self.ranks[:8])) + (" ..." if len(self.ranks) > 8 else "")
        hosts = list(dict.fromkeys(nodes[rank] for rank in self.ranks if rank in nodes))
        one = len(self.ranks) == 1
        who = f"rank {shown}" if one else f"ranks {shown}"
        where = f" on node{'s' if len(hosts) > 1 else ''} {', '.join(hosts[:8])}" if hosts else ""
        what = self.collective + (f" of {self.group}" if self.group not in ("", DEFAULT_GROUP) else "")
        did = {
            "behind": f"never reached {what}",
            "silent": f"did not arrive at {what} and reported nothing",
        }
        waiting = f"the other {self.waiting} wait" if self.all_others else f"{self.waiting} ranks wait"
        return f"{who}{where} {did[self.proof]}; {waiting} for {'it' if one else 'them'}"


_Group = Mapping[int, Report]
"""Rank -> its report, of one process group."""


def missing(reports: Sequence[Report], world_size: int | None) -> Missing | None:
    """Return the ranks for which the others wait; None if the reports do not show them."""
    waiting = {report.rank for report in reports if report.work is not None}
    groups: dict[str, dict[int, Report]] = {}
    for report in reports:
        groups.setdefault(report.group, {})[report.rank] = report
    sizes = _sizes(reports)
    stuck = {name: work for name, group in groups.items() if (work := _stuck(group)) is not None}
    behind = {name: _behind(groups[name], work) - waiting for name, work in stuck.items()}
    silent = {name: set(_members(groups[name], world_size, sizes)) - set(groups[name]) - waiting for name in stuck}
    proof: Proof = "behind" if any(behind.values()) else "silent"
    late = behind if proof == "behind" else silent
    found = set[int]().union(*late.values())
    if not _proved(proof, found, len(waiting)):
        return None
    many = {name: sum(report.work is not None for report in groups[name].values()) for name in late if late[name]}
    group = max(many, key=lambda name: (many[name], name))  # the one in which most ranks wait
    first = [report for report in groups[group].values() if report.work == stuck[group]]
    times = {rank: sum(rank in ranks for ranks in late.values()) for rank in found}
    return Missing(
        ranks=tuple(sorted(found, key=lambda rank: (-times[rank], rank))),
        proof=proof,
        waiting=len(waiting - found),
        operation=next((report.operation for report in first if report.operation), None),
        work=stuck[group],
        group=next((report.name for report in first if report.name), ""),
        all_others=world_size is not None and len(waiting | found) == world_size,
    )


def _proved(proof: Proof, found: set[int], waiting: int) -> bool:
    """Return True if these ranks are the faulty ones."""
    if proof == "behind":
        return len(found) <= max(1, waiting // 2)  # if few ranks wait, they may be the faulty ones
    most = min(_MAX_SILENT, max(1, waiting // _SILENT_SHARE))
    # ranks of several nodes were probably killed
    near = bool(found) and max(found) - min(found) < _MAX_SILENT
    return near and waiting >= _MIN_WAITING and len(found) <= most


def _stuck(group: _Group) -> int | None:
    """Return the first unfinished collective of the group; None if no rank waits in the group."""
    return min((report.work for report in group.values() if report.work is not None), default=None)


def _sizes(reports: Sequence[Report]) -> dict[str, int]:
    """Return purpose -> the size of its largest group, as far as ranks report."""
    sizes: dict[str, int] = {}
    for report in reports:
        if report.name and report.group_rank is not None:
            sizes[report.name] = max(sizes.get(report.name, 0), report.group_rank + 1)
    return sizes


def _behind(group: _Group, work: int) -> set[int]:
    """Return the ranks that have not begun this collective."""
    return {rank for rank, report in group.items() if report.enqueued is not None and report.enqueued < work}


def _members(group: _Group, world_size: int | None, sizes: Mapping[str, int]) -> range:
    """Return the ranks of a group, derived from those that report; empty if their distances differ."""
    pairs = [(report.group_rank, rank) for rank, report in group.items() if report.group_rank is not None]
    places = dict(pairs)
    if len(places) < 2 or len(places) < len(pairs):
        return range(0)
    first, last = min(places), max(places)
    step = (places[last] - places[first]) // (last - first)
    start = places[first] - step * first
    if step < 1 or start < 0 or any(rank != start + step * place for place, rank in places.items()):
        return range(0)
    name = next((report.name for report in group.values() if report.name), "")
    size = max(last + 1, sizes.get(name, 0))
    if (start, step) == (0, 1) and world_size and (name == DEFAULT_GROUP or len(group) >= _WORLD_SHARE * world_size):
        size = max(size, world_size)
    return range(start, start + step * size, step)
