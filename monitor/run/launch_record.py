"""One launch of a run as the statistics of nodes need it: its nodes, how it ended, what named a node."""

import re

from msgspec import Struct, field

_VARIES = re.compile(r"[0-9a-f]*\d[0-9a-f]*", re.IGNORECASE)  # a job's id, a date, a digest

HARDWARE = frozenset({"ecc", "xid", "node_failure"})
"""What the driver or the scheduler says of a node: no program's fault."""


class LaunchRecord(Struct):
    """One launch of a run."""

    run: str
    number: int
    at: float
    """Unix seconds, of its last line."""
    nodes: str
    """A Slurm node list, in the order of the ranks where that is known."""
    whole: bool = False
    """They are all its nodes, not only those that some line names."""
    outcome: str = "running"
    """running, finished, else the failure's name; `hang` where it hung and nothing told why."""
    planned: bool = True
    """Not yet ended, or ended as somebody wanted."""
    named: dict[str, list[str]] = field(default_factory=dict)
    """Node -> what named it: kinds of failures, `missing_rank`."""
    seconds: float | None = None
    """Normal seconds per iteration,"""
    layout: str = ""
    """of launches with the same sizes: others cannot be compared."""
    script: str = ""
    """The user and the name of its job, empty where Slurm was not asked."""

    @property
    def key(self) -> str:
        """A launch that is read again replaces itself."""
        return f"{self.run}\n{self.number}"

    @property
    def cause(self) -> str:
        """Who started which script with which sizes: what is wrong with that breaks every such launch, whatever their
        runs are called. A name has no number in it, as each job's log may be called by its id.
        """
        return f"{_VARIES.sub('#', self.script or self.run)}\n{self.layout}"
