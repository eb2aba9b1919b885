"""The nodes of a launch: those whose names stand before its lines, and Slurm's own list where a dump shows it."""

from __future__ import annotations

import re

from monitor.run.state import RunState

MOST = 4096  # nodes believed: the largest machines have about ten thousand, a run's message names a few
_GROUP = re.compile(r"([^,\[\]]+)(?:\[([0-9,-]+)\])?([^,\[\]]*)(?:,|$)")


def expand(hostlist: str) -> list[str]:
    """`n[1-3,07],login` -> n1 n2 n3 n07 login; Slurm's form with one bracket a name. What is no list gives nothing."""
    names: list[str] = []
    for match in _GROUP.finditer(hostlist[:20_000]):
        head, ranges, tail = match[1], match[2], match[3]
        if ranges is None:
            names.append(head + tail)
            continue
        for part in ranges.split(","):
            first, _, last = part.partition("-")
            if not first.isdigit() or (last and not last.isdigit()):
                continue
            numbers = range(int(first), min(int(last or first), int(first) + MOST) + 1)
            names.extend(f"{head}{number:0{len(first)}d}{tail}" for number in numbers)
        if len(names) >= MOST:
            break
    return names[:MOST]


def nodes_of(state: RunState) -> list[str]:
    """The nodes of the present launch, sorted; empty where the log names none."""
    listed = state.environment.get("SLURM_JOB_NODELIST")
    return sorted(set(state.attempt.nodes) | set(expand(listed) if listed else ()))


def note_node(state: RunState, node: str, lines: int = 1) -> None:
    """So many more lines of the launch carry this node's name."""
    nodes = state.attempt.nodes
    if node in nodes or len(nodes) < MOST:
        nodes[node] = nodes.get(node, 0) + lines
