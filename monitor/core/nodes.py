"""The record of the nodes: what runs add to it, and how it is shown: worked out anew when a launch has begun or ended,
and not too often.

A look takes about a microsecond for each node of each launch, so that 2,000 launches of 100 nodes take the loop a fifth
of a second: the next look comes a thousand times as much later. The record changes when launches begin or end.
"""

from typing import Any

from msgspec import Struct, field

from megatron_monitor.core.runs import Run
from megatron_monitor.nodes.record import Ledger
from megatron_monitor.nodes.standing import standings
from megatron_monitor.run.nodes import launch_of

_ROWS = 500
_SUSPECTS = 20  # series: more nodes than that are no suspects but a cluster that is down
_PAUSE = 1e-3  # seconds for each node of each launch


class Nodes(Struct):
    """The launches of all runs, over restarts, and what was last worked out of them."""

    ledger: Ledger = field(default_factory=Ledger)
    stale: bool = True
    rows: tuple[dict[str, Any], ...] = ()
    """As JSON, nodes to which something happened."""
    in_all: int = 0
    suspects: tuple[tuple[tuple[str], float], ...] = ()
    """(labels, value) of the metric."""
    due_at: float = float("-inf")
    """An instant."""

    def record(self, run: Run) -> bool:
        """Put what is new of the run's launches into the record; False if nothing is."""
        state = run.state
        changed = [self.ledger.put(record) for record in state.launch_records]
        state.launch_records.clear()
        launch, failure = state.launch, state.launch.failure
        known = (
            launch.number, launch.phase, launch.hung, launch.doubtful, len(launch.faults), len(launch.collectives),
            len(launch.nodes), launch.dumped, failure and (failure.failure, failure.node, failure.rank),
        )  # fmt: skip
        if state.proven and known != run.recorded:
            run.recorded = known
            record = launch_of(state)
            changed.append(record is not None and self.ledger.put(record))
        self.stale = self.stale or any(changed)
        return any(changed)

    def shown(self, now: float) -> "Nodes":
        """Up to date, or as it was if it is too soon."""
        if not self.stale or now < self.due_at:
            return self
        found = standings(self.ledger)
        eventful = [one for one in found if one.stands_out or one.named.seen or one.hangs or one.chance < 1.0]
        self.stale, self.due_at = False, now + _PAUSE * self.ledger.members
        self.rows, self.in_all = tuple(one.to_json() for one in eventful[:_ROWS]), len(found)
        self.suspects = tuple(((one.node,), float(one.observations)) for one in found[:_SUSPECTS] if one.stands_out)
        return self
