"""The record of the nodes as it is shown: worked out anew when a launch has begun or ended, and not too often.

A look takes about a microsecond for each node of each launch, so that 2,000 launches of 100 nodes take the loop a fifth
of a second: the next look comes a thousand times as much later. The record changes when launches begin or end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from monitor.nodes.record import Ledger
from monitor.nodes.standing import standings

_ROWS = 500
_SUSPECTS = 20  # series: more nodes than that are no suspects but a cluster that is down
_PAUSE = 1e-3  # seconds for each node of each launch


@dataclass(slots=True)
class NodeView:
    """What was last worked out."""

    stale: bool = True
    rows: tuple[dict[str, Any], ...] = ()
    """As JSON, nodes to which something happened."""
    in_all: int = 0
    suspects: tuple[tuple[tuple[str], float], ...] = ()
    """(labels, value) of the metric."""
    due_at: float = float("-inf")
    """An instant."""

    def shown(self, ledger: Ledger, now: float) -> NodeView:
        """Up to date, or as it was if it is too soon."""
        if not self.stale or now < self.due_at:
            return self
        found = standings(ledger)
        eventful = [one for one in found if one.stands_out or one.named.seen or one.hangs or one.chance < 1.0]
        self.stale, self.due_at = False, now + _PAUSE * ledger.members
        self.rows, self.in_all = tuple(one.to_json() for one in eventful[:_ROWS]), len(found)
        self.suspects = tuple(((one.node,), float(one.observations)) for one in found[:_SUSPECTS] if one.stands_out)
        return self
