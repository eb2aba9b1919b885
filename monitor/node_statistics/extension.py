"""Keeps the record of the nodes beside a core, and shows it: worked out anew when an attempt has begun or ended.

A look takes about a microsecond for each node of each attempt, so that 2,000 attempts of 100 nodes take the loop a
fifth of a second: the next look comes a thousand times as much later.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from megatron_monitor.core import Core
from megatron_monitor.core.extension import Extension, Runtime
from megatron_monitor.core.runs import Run
from megatron_monitor.node_statistics.ledger import Ledger
from megatron_monitor.node_statistics.standing import eventful, standings
from megatron_monitor.run.nodes import launch_of

_ROWS = 500
_SUSPECTS = 20  # series: more nodes than that are no suspects but a cluster that is down
_PAUSE = 1e-3  # seconds for each node of each attempt


def record(ledger: Ledger, run: Run) -> bool:
    """Put what is new of the run's attempts into the ledger; False if nothing is."""
    state = run.state
    changed = [ledger.put(one) for one in state.launch_records]
    state.launch_records.clear()
    launch, failure = state.launch, state.launch.failure
    known = (
        launch.number, launch.phase, launch.hung, launch.doubtful, len(launch.faults), len(launch.collectives),
        len(launch.nodes), launch.dumped, failure and (failure.failure, failure.node, failure.rank),
    )  # fmt: skip
    if state.proven and known != run.notes.get("nodes"):
        run.notes["nodes"] = known
        one = launch_of(state)
        changed.append(one is not None and ledger.put(one))
    return any(changed)


class NodeStatistics(Extension):
    """The attempts of all runs, over restarts, and what was last worked out of them."""

    name = "nodes"

    def __init__(self, core: Core) -> None:
        self._core = core
        self.ledger = Ledger()
        self._stale = True
        self._rows: tuple[dict[str, Any], ...] = ()  # as JSON, nodes to which something happened
        self._in_all = 0
        self._due_at = float("-inf")  # an instant

    def judged(self, run: Run) -> None:
        """Take what is new of the run."""
        if record(self.ledger, run):
            self._stale = self.changed = self._core.changed = True

    def shown(self, now: float) -> Mapping[str, Any]:
        """Up to date, or as it was if it is too soon."""
        if self._stale and now >= self._due_at:
            found = standings(self.ledger)
            self._stale, self._due_at = False, now + _PAUSE * self.ledger.members
            self._rows, self._in_all = tuple(one.to_json() for one in eventful(found)[:_ROWS]), len(found)
            suspects = [((one.node,), float(one.observations)) for one in found[:_SUSPECTS] if one.stands_out]
            self._core.counts.values["megatron_node_suspect"] = dict(suspects)
        return {"nodes": self._rows, "nodes_in_all": self._in_all, "launches": len(self.ledger.launches)}

    def save(self) -> bytes:
        """The ledger."""
        return msgspec.msgpack.encode(self.ledger)

    def restore(self, data: bytes) -> None:
        """The ledger of an earlier daemon."""
        self.ledger, self._stale = msgspec.msgpack.decode(data, type=Ledger), True


def for_core(core: Core, _runtime: Runtime) -> NodeStatistics:
    """It needs no thread."""
    return NodeStatistics(core)
