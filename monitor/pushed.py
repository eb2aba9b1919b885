"""What the observer knows of pushed streams: where a line's time ends, which agent carried a stream, who is up.

The receiver (monitor/intake) writes pushed lines to a spool, a file for each stream, and the observer follows it.
"""

from collections.abc import Mapping
from typing import NamedTuple

STAMP = 30
"""Characters of the time before each line of the spool."""


class Heard(NamedTuple):
    """Of the agents that send heartbeats."""

    deaf: dict[str, float]
    """Those of which nothing comes: until when they were heard, Unix seconds."""
    beating: frozenset[str]
    """All that send them."""
    states: dict[str, int]
    """How many are heard, deaf, or known by their lines alone."""
    behind: Mapping[str, float] = {}
    """Those whose clocks are not ours: by how many seconds behind."""
    others_behind: float = 0.0
    """The same for those that send no heartbeats, as far as we know: ours was set while they went on."""

    def behind_us(self, carrier: str) -> float:
        """Seconds to add to a time that it gives."""
        return self.behind.get(carrier, 0.0 if carrier in self.beating else self.others_behind)


class Remembered(NamedTuple):
    """What is to be known of an agent over a restart."""

    heard: float
    """Until when, Unix seconds."""
    behind: float | None = None
    """By how many seconds its clock is behind ours, if it is known."""


def carrier_at(path: str) -> str:
    """The agent that carried the stream of this file of the spool."""
    return path.rpartition("/")[2].partition("~")[0]
