"""The nodes of a launch: those whose names stand before its lines, and Slurm's own list where a dump shows it."""

from __future__ import annotations

from monitor.nodes.hostlist import HostlistError, expand
from monitor.run.state import RunState

MOST = 4096  # nodes believed: the largest machines have about ten thousand, a run's message names a few


def expand_some(hostlist: str) -> list[str]:
    """The first nodes of Slurm's list; what is no list gives none."""
    try:
        return expand(hostlist)[:MOST]
    except HostlistError:
        return []


def nodes_of(state: RunState) -> list[str]:
    """The nodes of the present launch, sorted; empty where the log names none."""
    listed = state.environment.get("SLURM_JOB_NODELIST")
    return sorted(set(state.attempt.nodes) | set(expand_some(listed) if listed else ()))


def note_node(state: RunState, node: str, lines: int = 1) -> None:
    """So many more lines of the launch carry this node's name."""
    nodes = state.attempt.nodes
    if node in nodes or len(nodes) < MOST:
        nodes[node] = nodes.get(node, 0) + lines
