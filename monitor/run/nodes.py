"""The nodes of an attempt, the node of each rank, and the nodes that a failure names.

Node names come from prefixes of lines, from srun's reports of tasks, and from Slurm's node list.
"""

from collections.abc import Iterable
from functools import lru_cache

from megatron_monitor.nodes.collectives import Missing, Report, missing
from megatron_monitor.nodes.hostlist import HostlistError, expand, is_node_name
from megatron_monitor.parsers.events import CollectiveStatus, ProcessExited, WatchdogTimedOut
from megatron_monitor.run.ending import HARDWARE_FAULTS, NODE_FAULTS
from megatron_monitor.run.state import Attempt, RunState

MOST = 4096  # nodes kept of a run: the largest machines have about ten thousand
MOST_SERIES = 512  # nodes of a run with series: a job with 400 nodes costs a scrape as much as five runs
_MAX_RANKS = 16_384  # ranks kept: no larger training is known
_MOST_GPUS = 16  # of a node
NODE_LIST = "SLURM_JOB_NODELIST"
_LOCAL = frozenset({"localhost", "127.0.0.1"})  # printed by pdsh for its own host, equal on every node


@lru_cache(maxsize=256)  # called for each run at each scrape
def expand_some(hostlist: str) -> tuple[str, ...]:
    """Return the first nodes of a Slurm node list; empty for other text."""
    try:
        return tuple(expand(hostlist)[:MOST])
    except HostlistError:
        return ()


def freeze_node_list(attempt: Attempt) -> None:
    """Fix the node list: a later printed list belongs to the next attempt."""
    if attempt.node_list is None:
        attempt.node_list = attempt.environment.get(NODE_LIST)


def listed_nodes(state: RunState) -> tuple[str, ...]:
    """Return Slurm's list of the attempt's nodes in its order: as printed, or else by Slurm's answer since the attempt
    began. Empty if unknown.
    """
    attempt = state.attempt
    frozen, job = attempt.node_list, state.job
    listed = attempt.environment.get(NODE_LIST) if frozen is None else frozen
    if not listed and job is not None:
        began = attempt.started_at if attempt.started_at is not None else state.first_at
        listed = job.nodes if began is not None and job.asked_at >= began else None
    return expand_some(listed) if listed else ()


def nodes_of(state: RunState) -> list[str]:
    """Return the known nodes of the present attempt, sorted."""
    return sorted(set(state.attempt.nodes) | set(listed_nodes(state)))


def countable_nodes(state: RunState) -> list[str]:
    """Return the same for at most MOST_SERIES nodes, otherwise none: a part of the nodes could hide a faulty one."""
    nodes = [node for node in nodes_of(state) if node not in _LOCAL and is_node_name(node)]
    return nodes if len(nodes) <= MOST_SERIES else []


def note_node(state: RunState, node: str) -> None:
    """Count a line of the attempt with this node's name."""
    nodes = state.attempt.nodes
    if node in nodes or len(nodes) < MOST:
        nodes[node] = nodes.get(node, 0) + 1


def note_rank(state: RunState, rank: int, node: str) -> None:
    """Record the node of a rank from a line that names both."""
    known = state.attempt.rank_nodes
    if known.get(rank) != node and node not in _LOCAL and (rank in known or len(known) < _MAX_RANKS):
        known[rank] = node


def note_tasks(state: RunState, event: ProcessExited) -> None:
    """Record the tasks that srun ran on a node."""
    if event.node is None or event.tasks is None:
        return
    known = state.attempt.task_nodes
    for task in expand_some(f"[{event.tasks}]"):
        if len(known) < _MAX_RANKS:
            known[int(task)] = event.node


def note_collective(state: RunState, event: WatchdogTimedOut | CollectiveStatus) -> None:
    """Record the state of a rank in a process group."""
    known = state.attempt.collectives
    if event.rank is None or len(known) >= _MAX_RANKS:
        return
    if isinstance(event, WatchdogTimedOut):
        # the rank's next line names the group; until then the collective identifies it
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
    known[key] = Report(event.rank, group, name, event.group_rank, work, operation, event.enqueued)


def missing_ranks(attempt: Attempt) -> Missing | None:
    """Return the ranks for which the others wait, by the reports of watchdogs."""
    if not attempt.collectives:
        return None
    return missing(list(attempt.collectives.values()), attempt.topology.world_size)


def node_of(state: RunState, rank: int) -> str | None:
    """Return the rank's node: from its lines, or else from Slurm's list, to which srun assigns ranks in blocks."""
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
        return None  # the ranks are distributed differently
    return listed[rank // each]


def nodes_of_ranks(state: RunState, ranks: Iterable[int]) -> dict[int, str]:
    """Return rank -> node of the ranks with a known node."""
    found = {rank: node_of(state, rank) for rank in ranks}
    return {rank: node for rank, node in found.items() if node is not None}


def blamed(state: RunState) -> list[str]:
    """Return the nodes that may be excluded because of this failure, most suspect first."""
    failure = state.attempt.failure
    if failure is None or failure.failure in NODE_FAULTS:
        return suspects(state)
    found = missing_ranks(state.attempt) if _has_several_nodes(state) else None
    return list(dict.fromkeys(nodes_of_ranks(state, found.ranks).values())) if found else []


def suspects(state: RunState) -> list[str]:
    """Return the nodes that the attempt's failure names, most suspect first.

    A rank with a watchdog time-out is a victim, so its node is not suspect. The node of the missing rank is. In a job
    of one node each failure is on that node: it is suspect only if its hardware failed.
    """
    failure, found = state.attempt.failure, missing_ranks(state.attempt)
    names = [name] if (name := _failed_node(state)) is not None else []
    if found is not None:
        names += nodes_of_ranks(state, found.ranks).values()
    if failure is not None and failure.failure in HARDWARE_FAULTS:
        if not names and failure.failure == "node_failure" and len(listed_nodes(state)) == 1:
            names += listed_nodes(state)  # the job's only node
    elif not _has_several_nodes(state):
        return []
    return list(dict.fromkeys(name for name in names if name not in _LOCAL))


def _failed_node(state: RunState) -> str | None:
    """Return the node of the failure, unless its rank is a victim."""
    failure = state.attempt.failure
    if failure is None or (failure.failure == "nccl" and state.attempt.watchdog_ranks):
        return None
    return failure.node if failure.node is not None or failure.rank is None else node_of(state, failure.rank)


def _has_several_nodes(state: RunState) -> bool:
    """Return True if the attempt is known to have more than one node."""
    topology, known = state.attempt.topology, set(nodes_of(state)) - _LOCAL
    ranks = (topology.world_size or 0) > (topology.processes_per_node or _MOST_GPUS)
    return ranks or (topology.nodes or 0) > 1 or len(known) > 1
