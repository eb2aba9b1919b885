"""The record of launches: which nodes each ran on, how it ended, and which of its nodes were named by what broke. Pure.

Kept over all runs and over restarts of the monitor, bounded. What it says of a node is worked out in standing.py.
"""

import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache

from msgspec import Struct, field

from megatron_monitor.nodes.hostlist import HostlistError, expand
from megatron_monitor.run.launch_record import LaunchRecord

_LAUNCHES = 2000  # kept: a month of a large cluster's starts
_CHARACTERS = 1_000_000  # of all their node lists together: they are written with the state
_MEMBERS = 200_000  # nodes of all launches together: what a look at the record takes a fifth of a second for
_SECONDS = 180 * 86400.0  # half a year: what was repaired since is no longer held against a node


class Ledger(Struct):
    """The launches by their keys, oldest first."""

    launches: dict[str, LaunchRecord] = field(default_factory=dict)

    def put(self, launch: LaunchRecord) -> bool:
        """Take a launch or what is newly known of it; False if nothing is new."""
        key = launch.key
        known = self.launches.get(key)
        if known == launch or not launch.nodes:
            return False
        if known is not None and known.outcome == "hang" and launch.outcome == "running":
            return False  # it had hung: that it goes on is told by what comes next
        self.launches[key] = launch
        if known is None:
            self._make_room(max(one.at for one in self.launches.values()))
        return True

    def _make_room(self, now: float) -> None:
        size = sum(len(launch.nodes) for launch in self.launches.values())
        members = self.members
        for key in sorted(self.launches, key=lambda key: self.launches[key].at):
            launch = self.launches[key]
            small = len(self.launches) <= _LAUNCHES and size <= _CHARACTERS and members <= _MEMBERS
            if (small and now - launch.at <= _SECONDS) or len(self.launches) == 1:
                return
            del self.launches[key]
            size -= len(launch.nodes)
            members -= len(_expanded(launch.nodes))

    @property
    def members(self) -> int:
        """Nodes of all launches together: the work of a look at the record."""
        return sum(len(_expanded(launch.nodes)) for launch in self.launches.values())

    def __iter__(self) -> Iterator[LaunchRecord]:
        return iter(self.launches.values())


def read(launches: Iterable[LaunchRecord]) -> Iterator[tuple[LaunchRecord, tuple[str, ...]]]:
    """Each launch with its nodes by name, in the order of time."""
    for launch in sorted(launches, key=lambda launch: (launch.at, launch.run, launch.number)):
        yield launch, _expanded(launch.nodes)


@lru_cache(_LAUNCHES)
def _expanded(text: str) -> tuple[str, ...]:
    try:
        return tuple(map(sys.intern, expand(text)))
    except HostlistError:
        return ()  # a saved list is one that was read before
