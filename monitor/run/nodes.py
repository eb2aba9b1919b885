"""The nodes of an attempt, which rank ran on which, and which of them its failure names.

Names stand before lines, in srun's reports of tasks, and in Slurm's own list where a dump shows it.
"""

from collections.abc import Iterable
from functools import lru_cache

from megatron_monitor.nodes.collectives import Missing, Report, missing
from megatron_monitor.nodes.hostlist import HostlistError, expand, is_node_name
from megatron_monitor.parsers.events import CollectiveStatus, ProcessExited, WatchdogTimedOut
from megatron_monitor.run.ending import NODE_FAULTS
from megatron_monitor.run.state import Attempt, RunState

MOST = 4096  # nodes believed: the largest machines have about ten thousand, a run's message names a few
MOST_SERIES = 512  # nodes of a run that are series: a job of 400 nodes costs a scrape as much as five more runs
_MOST_RANKS = 16_384  # ranks kept: of more no training is known
NODE_LIST = "SLURM_JOB_NODELIST"
_LOCAL = frozenset({"localhost", "127.0.0.1"})  # what pdsh prints for itself: the same name on every node


@lru_cache(maxsize=256)  # a run's list is asked for at each scrape
def expand_some(hostlist: str) -> tuple[str, ...]:
    """The first nodes of Slurm's list; what is no list gives none."""
    try:
        return tuple(expand(hostlist)[:MOST])
    except HostlistError:
        return ()


def freeze_node_list(attempt: Attempt) -> None:
    """What a dump says from here on of the nodes is the next attempt's."""
    if attempt.node_list is None:
        attempt.node_list = attempt.environment.get(NODE_LIST)


def listed_nodes(state: RunState) -> tuple[str, ...]:
    """Slurm's list of the present attempt's nodes, in its order: as a dump shows it, else as Slurm answered since the
    attempt began; empty where neither is known.
    """
    attempt = state.attempt
    frozen, job = attempt.node_list, state.job
    listed = attempt.environment.get(NODE_LIST) if frozen is None else frozen
    if not listed and job is not None:
        began = attempt.started_at if attempt.started_at is not None else state.first_at
        listed = job.nodes if began is not None and job.asked_at >= began else None
    return expand_some(listed) if listed else ()


def nodes_of(state: RunState) -> list[str]:
    """The nodes of the present attempt, sorted; empty where the log names none."""
    return sorted(set(state.attempt.nodes) | set(listed_nodes(state)))


def countable_nodes(state: RunState) -> list[str]:
    """The same where they are no more than MOST_SERIES, else none: a part of a run's nodes would hide the sick one."""
    nodes = [node for node in nodes_of(state) if node not in _LOCAL and is_node_name(node)]
    return nodes if len(nodes) <= MOST_SERIES else []


def note_node(state: RunState, node: str) -> None:
    """One more line of the attempt carries this node's name."""
    nodes = state.attempt.nodes
    if node in nodes or len(nodes) < MOST:
        nodes[node] = nodes.get(node, 0) + 1


def note_rank(state: RunState, rank: int, node: str) -> None:
    """A line of this rank carries its node's name."""
    known = state.attempt.rank_nodes
    if known.get(rank) != node and node not in _LOCAL and (rank in known or len(known) < _MOST_RANKS):
        known[rank] = node


def note_tasks(state: RunState, event: ProcessExited) -> None:
    """Which tasks srun ran on a node."""
    if event.node is None or event.tasks is None:
        return
    known = state.attempt.task_nodes
    for task in expand_some(f"[{event.tasks}]"):
        if len(known) < _MOST_RANKS:
            known[int(task)] = event.node


def note_collective(state: RunState, event: WatchdogTimedOut | CollectiveStatus) -> None:
    """How far a rank had come in a process group."""
    known = state.attempt.collectives
    if event.rank is None or len(known) >= _MOST_RANKS:
        return
    if isinstance(event, WatchdogTimedOut):
        # its group stands on the next line of the rank; until then the collective stands for it
        group = f"?{event.operation} {event.sequence}"
        known[f"{event.rank}/{group}"] = Report(
            event.rank, group, "", event.group_rank, event.sequence, event.operation
        )
        return
    work, operation = event.work, None
    for key in [key for key in known if key.startswith(f"{event.rank}/?") and key.endswith(f" {work}")]:
        operation = known.pop(key).operation
    key, group, name = f"{event.rank}/{event.group or ''}", event.group or "", event.group_name or ""
    before = known.get(key)
    if before is not None:
        work, operation = before.work if work is None else work, operation or before.operation
    known[key] = Report(event.rank, group, name, event.group_rank, work, operation, event.enqueued, event.completed)


def missing_ranks(attempt: Attempt) -> Missing | None:
    """The ranks that the others wait for in this attempt, by the flight recorder's dumps, else by what watchdogs print;
    None where neither tells.
    """
    if attempt.dumped is not None:
        return attempt.dumped
    if not attempt.collectives:
        return None
    return missing(list(attempt.collectives.values()), attempt.topology.world_size)


def node_of(state: RunState, rank: int) -> str | None:
    """The rank's node: named beside it, else by its place in Slurm's list, over which srun spreads ranks in blocks."""
    attempt = state.attempt
    named = attempt.rank_nodes.get(rank)
    if named is not None:
        return named
    world, tasks = attempt.topology.world_size, attempt.task_nodes
    if rank in tasks and len(set(tasks.values())) < len(tasks):
        return tasks[rank]  # several tasks ran on one node: they are ranks
    listed = listed_nodes(state)
    if not world or not listed or world % len(listed) or rank >= world:
        return None
    each = world // len(listed)
    if any(listed[known // each] != node for known, node in attempt.rank_nodes.items() if known < world):
        return None  # they are spread in another way
    return listed[rank // each]


def nodes_of_ranks(state: RunState, ranks: Iterable[int]) -> dict[int, str]:
    """Rank -> node, where it is known."""
    found = {rank: node_of(state, rank) for rank in ranks}
    return {rank: node for rank, node in found.items() if node is not None}


def blamed(state: RunState) -> list[str]:
    """The nodes that may be left out because of this one failure, most suspect first."""
    failure = state.attempt.failure
    if failure is None or failure.failure in NODE_FAULTS:
        return suspects(state)
    found = missing_ranks(state.attempt)
    return list(dict.fromkeys(nodes_of_ranks(state, found.ranks).values())) if found else []


def suspects(state: RunState) -> list[str]:
    """The nodes that the attempt's failure names, most suspect first; empty where it names none.

    A rank whose watchdog gave up is a victim: its node is no suspect. The node of the rank that it waited for is.
    """
    attempt = state.attempt
    failure, names = attempt.failure, list[str]()
    if failure is not None and not (failure.failure == "nccl" and attempt.watchdog_ranks):
        by_rank = node_of(state, failure.rank) if failure.node is None and failure.rank is not None else None
        names += [name for name in (failure.node or by_rank,) if name is not None]
    found = missing_ranks(attempt)
    if found is not None:
        names += nodes_of_ranks(state, found.ranks).values()
    return list(dict.fromkeys(names))
