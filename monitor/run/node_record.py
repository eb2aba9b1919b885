"""What a launch adds to the record of the nodes (monitor/nodes/record.py)."""

from monitor.nodes.hostlist import compress, is_node_name
from monitor.nodes.record import LaunchRecord
from monitor.run.ending import NODE_FAULTS, PLANNED
from monitor.run.nodes import blamed, listed_nodes, missing_ranks, node_of, nodes_of, nodes_of_ranks
from monitor.run.state import RunState

_PACED = 32  # iterations after which a launch's normal pace is its own


def launch_of(state: RunState) -> LaunchRecord | None:
    """The present launch as it stands; None where no line names its nodes."""
    launch = state.launch
    nodes = [node for node in nodes_of(state) if is_node_name(node)]
    if not nodes:
        return None
    attempt, top, job = launch, launch.topology, state.job
    outcome, planned = _outcome(state)
    paced = attempt.iterations >= _PACED
    batch = launch.latest.global_batch_size or top.global_batch_size
    sizes = (top.world_size, batch, top.sequence_length, top.layers, top.hidden_size)
    at = state.log_clock_last or state.unix(state.progress_at) or state.unix(state.updated_at) or 0.0
    return LaunchRecord(
        run=state.name,
        number=attempt.number,
        at=at,
        nodes=compress(nodes),
        whole=_whole(state, len(nodes)),
        outcome=outcome,
        planned=planned,
        named=_named(state, set(nodes)),
        iterations=attempt.iterations,
        seconds=launch.pace.baseline if paced else None,
        layout=" ".join(map(str, sizes)),
        script=f"{job.user} {job.name}" if job is not None else "",
    )


def _whole(state: RunState, known: int) -> bool:
    """Whether these are all nodes of the launch: those that only a failure names are a choice of the failure."""
    top = state.launch.topology
    each = top.processes_per_node
    size = top.nodes or (top.world_size // each if top.world_size and each else None)
    return bool(listed_nodes(state)) or (size is not None and known >= size)


def _outcome(state: RunState) -> tuple[str, bool]:
    launch = state.launch
    failure = launch.failure
    if launch.phase == "finished":
        return "finished", True
    if launch.phase == "crashed" and failure is not None and not launch.doubtful:
        return failure.failure, failure.failure in PLANNED
    if launch.hung:
        return "hang", False
    return "running", True


def _named(state: RunState, nodes: set[str]) -> dict[str, list[str]]:
    """The launch's nodes that something named, with what did."""
    launch = state.launch
    named: dict[str, set[str]] = {}
    failure, missing = launch.failure, missing_ranks(state)
    if missing is not None:
        for node in nodes_of_ranks(state, missing.ranks).values():
            named.setdefault(node, set()).add("missing_rank")
    believed = launch.phase == "crashed" and not launch.doubtful
    if failure is not None and believed and failure.failure in NODE_FAULTS and failure.failure != "nccl":
        for name in blamed(state)[:1]:
            named.setdefault(name, set()).add(failure.failure)
    for kind, told, rank in launch.faults:
        where = told if told is not None else node_of(state, rank) if rank is not None else None
        if where is not None:
            named.setdefault(where, set()).add(kind)
    return {node: sorted(kinds) for node, kinds in sorted(named.items()) if node in nodes}
